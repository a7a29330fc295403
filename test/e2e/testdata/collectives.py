"""Steps in two groups, dp of all ranks and tp of two each. In step 10 the last rank does not come (HOW)."""

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

how, limit = os.environ["HOW"], timedelta(seconds=int(os.environ.get("LIMIT", 1000)))
dist.init_process_group("gloo", timeout=limit)
rank, world = dist.get_rank(), dist.get_world_size()
dp = dist.new_group(list(range(world)), timeout=limit, group_desc="dp")
tp = [dist.new_group([i, i + 1], timeout=limit, group_desc="tp") for i in range(0, world, 2)][rank // 2]
x = torch.ones(1 << 18)
if how in ("loop", "spins"):
    os.nice(10)  # this thread, which leaves the processors to agents and other jobs


def load_batch():
    if how == "loader":
        time.sleep(1000)
    if how == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    while how in ("loop", "spins"):
        pass


def reduce(group):
    work = dist.all_reduce(x, group=group, async_op=True)
    while how == "spins" and not work.is_completed():
        pass
    work.wait()


for step in range(int(os.environ.get("STEPS", 20))):
    if step == 10 and rank == world - 1:
        load_batch()
        if how == "another":
            dist.all_gather([torch.empty_like(x) for _ in range(world)], x, group=dp)
        if how in ("small", "large"):
            dist.all_reduce(torch.ones(16 if how == "small" else 1 << 20), group=dp)
        if how == "order":
            reduce(tp)
    reduce(dp)
    reduce(tp)
dist.barrier()
print("done", rank, os.environ.get("PYTHONPATH"), [p for p in sys.path if "witness" in p], flush=True)
dist.destroy_process_group()
