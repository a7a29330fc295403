"""Compiles a small model, and notes how long its first step took."""

import os
import time

import torch

begin = time.monotonic_ns()
torch.manual_seed(0)
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
model(torch.randn(32, 64)).sum().backward()
with open(os.environ["BENCH_EVENTS"], "a") as events:
    events.write("step 0 0 %d %d %d\n" % (os.getpid(), time.monotonic_ns(), time.monotonic_ns() - begin))
