"""A training with torchft, on CPUs: one of these for each group of replicas, and a
lighthouse. Each group goes on without the other.

    torchft_lighthouse --min_replicas 1 --join_timeout_ms 5000 --bind 127.0.0.1:29510
    export TORCHFT_LIGHTHOUSE=http://localhost:29510
    GROUP=0 muster run --max-restarts 3 examples/frameworks/with_torchft.py
    GROUP=1 muster run --max-restarts 3 examples/frameworks/with_torchft.py
"""

import os
import time

import torch
import torchft

model = torch.nn.Linear(4, 1)
manager = torchft.Manager(
    pg=torchft.ProcessGroupGloo(),
    load_state_dict=lambda state: model.load_state_dict(state["model"]),
    state_dict=lambda: {"model": model.state_dict()},
    min_replica_size=1,
    replica_id=f"group{os.environ['GROUP']}_",
)
replica = torchft.DistributedDataParallel(manager, model)
optimizer = torchft.Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.1))
while manager.current_step() < 40:
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    ((replica(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
    optimizer.step()
    print(f"step {manager.current_step()}, {manager.num_participants()} groups", flush=True)
    time.sleep(1)
manager.shutdown()
