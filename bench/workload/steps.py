"""Trains for some steps, and notes how long one took: steps.py STEPS."""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def note(what, number):
    with open(os.environ["BENCH_EVENTS"], "a") as events:
        events.write("%s %s 0 %d %d %d\n" % (what, os.environ["LOCAL_RANK"], os.getpid(), time.monotonic_ns(), number))


note("start", 0)
steps = int(sys.argv[1])
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(256, 256)
took = []
for step in range(steps):
    begin = time.monotonic_ns()
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    print("step %d loss %.4f" % (step, loss.item()), flush=True)
    took.append(time.monotonic_ns() - begin)
note("step", int(statistics.median(took[steps // 5:])))
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # the interpreter's end aborts in one of 40 workers, under torchrun, too
