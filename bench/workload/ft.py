"""live.py with torchft: each worker is a replica group of one. ft.py LIGHTHOUSE.

It averages gradients itself: torchft's DistributedDataParallel (0.2.0, torch 2.15) ends with an
AssertionError when a peer is lost.
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, Optimizer, ProcessGroupGloo


def note(what, number):
    with open(os.environ["BENCH_EVENTS"], "a") as events:
        events.write("%s 0 0 %d %d %d\n" % (what, os.getpid(), time.monotonic_ns(), number))


note("start", 0)
torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.rand(16, 64)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
plain = torch.optim.SGD(model.parameters(), lr=0.01)


def load(state):
    model.load_state_dict(state["model"])
    plain.load_state_dict(state["optimizer"])


store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
limit = timedelta(seconds=10)
manager = Manager(
    pg=ProcessGroupGloo(timeout=limit), min_replica_size=2, timeout=limit, quorum_timeout=timedelta(seconds=60),
    load_state_dict=load, state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
    rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port, hostname="127.0.0.1", lighthouse_addr=sys.argv[1])
optimizer = Optimizer(manager, plain)
while True:
    done = manager.current_step()
    time.sleep(0.005)
    optimizer.zero_grad()
    model(data).square().mean().backward()
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    manager.allreduce(flat).wait()
    for p, grad in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
        p.grad.copy_(grad.view_as(p))
    optimizer.step()
    if manager.current_step() > done:
        note("step", manager.num_participants())
