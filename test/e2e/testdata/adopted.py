"""A training script of a launcher that is a Python program: its ranks meet, and rank 1 may fail."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
if "fail" in sys.argv and dist.get_rank() == 1:
    raise ValueError("boom")
if dist.get_rank() == 0:
    print("worked %d %s\n" % (dist.get_world_size(), total.item()), end="", flush=True)
dist.destroy_process_group()
