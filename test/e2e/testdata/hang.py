"""Ranks reduce; in attempt 0 one of them (ODD, 2) stays in its data loader instead, where it spins with SPIN. With TIMER each has set itself a deadline."""

import contextlib
import datetime
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.elastic.timer as timer

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
deadline = contextlib.nullcontext()
if os.environ.get("TIMER"):
    timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))


def load_batch():
    if rank == int(os.environ.get("ODD", 2)) and attempt == 0:
        while os.environ.get("SPIN"):
            pass
        time.sleep(1000)


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=1000))
batch = torch.ones(4)
dist.all_reduce(batch)
if os.environ.get("TIMER"):
    deadline = timer.expires(after=8 if attempt == 0 else 100, scope="a step")
with deadline:
    load_batch()
    dist.all_reduce(batch)
if rank == 0:
    print("sum", int(batch[0]), flush=True)
dist.destroy_process_group()
