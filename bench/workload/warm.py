"""Trains with DDP over gloo, one step in each attempt, and notes moments: warm.py DEATHS.

Rank 0 dies in the first DEATHS attempts. The number beside a moment is how long imports have
taken until then that came after torch's own: those of the script, and those that DDP() does.
"""

import time

BEGIN = time.monotonic_ns()

import atexit
import importlib
import os
import sys

inside = spent = 0
load = importlib._bootstrap._find_and_load  # which the interpreter calls for what is not loaded yet


def timed(*args):
    global inside, spent
    inside, begin = inside + 1, time.monotonic_ns()
    try:
        return load(*args)
    finally:
        inside -= 1
        if not inside:
            spent += time.monotonic_ns() - begin


def note(what, at=None, number=0):
    line = "%s %s %s %d %d %d\n" % (
        what, os.environ["LOCAL_RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.getpid(), at or time.monotonic_ns(), number)
    with open(os.environ["BENCH_EVENTS"], "a") as events:
        events.write(line)


import torch

note("start", BEGIN)
note("torch")
importlib._bootstrap._find_and_load = timed

import signal

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
note("group", number=spent)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
note("step", number=spent)
importlib._bootstrap._find_and_load = load


def ended(number, frame):
    note("term")
    os._exit(1)


if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(sys.argv[1]):
    if dist.get_rank() > 0:
        signal.signal(signal.SIGTERM, ended)
        time.sleep(300)
    time.sleep(1.1)  # a worker that dies in its first second makes the next start cold
    if "SLOW_FROM" in os.environ:
        open(os.environ["SLOW_FROM"], "w").close()
    note("death")
    os._exit(7)
dist.barrier()
dist.destroy_process_group()
atexit._run_exitfuncs()  # in which a warm worker says what it has imported
os._exit(0)  # the interpreter's end aborts now and then, under torchrun, too
