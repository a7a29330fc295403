"""examples/train_live_hsdp.py, of which rank 3 is lost when ranks 0 and 2 have left the barrier
before the optimizer, and rank 1 has not: live_barrier.py EXAMPLE MARK ..."""

import os
import runpy
import signal
import sys

import torch.distributed as dist

AT = 9  # the barrier in which it happens; the first one is that of join
example, mark = sys.argv[1:3]
barrier, passed = dist.barrier, 0


def leave(*args, **options):
    global passed
    barrier(*args, **options)
    passed += 1
    if passed != AT:
        return
    rank = dist.get_rank()
    if rank == 3 and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        barrier(*args, **options)  # in which nobody else is


dist.barrier = leave
sys.argv[:3] = [example]
runpy.run_path(example, run_name="__main__")
