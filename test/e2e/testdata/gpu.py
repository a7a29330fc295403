"""What the tests on a GPU run: the first argument is the backend, each other one what a rank does in attempt 0."""

import os
import sys
import time

import torch
import torch.distributed as dist

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def reduce():
    dist.all_reduce(torch.ones(4, device="cuda"))


def compute():
    for _ in range(300):  # a second each, more or less
        torch.cuda._sleep(1_900_000_000)


def spin():
    compute()
    torch.cuda.synchronize()


def block():
    compute()
    event = torch.cuda.Event(blocking=True)
    event.record()
    event.synchronize()


def wait():
    time.sleep(1000)


def fill():
    block = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
    print("filled", block.numel(), file=sys.stderr, flush=True)
    spin()


def trip():
    torch.arange(8, device="cuda")[torch.tensor([100], device="cuda")]
    torch.cuda.synchronize()


def end():
    sys.exit(3)


torch.cuda.set_device(0)
dist.init_process_group(sys.argv[1])
reduce()
torch.cuda.synchronize()
if attempt == 0:
    globals()[sys.argv[2 + rank]]()
reduce()
print("done", rank, flush=True)
dist.destroy_process_group()
