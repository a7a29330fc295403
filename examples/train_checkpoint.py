"""A training script that goes on where it was when a worker dies.

    muster run --standalone --nproc-per-node 2 --max-restarts 1 \\
        examples/train_checkpoint.py --die-at 3

Rank 0 saves a checkpoint after every epoch, in --dir, or in a temporary directory
that goes at the end. With --die-at N the last rank kills itself in epoch N of the
first attempt, with --hang-at N it hangs there (muster needs --hang-timeout to notice);
muster stops the others, starts all workers again, and they load the checkpoint.
"""

import argparse
import gc
import os
import shutil
import signal
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


def read_batch():
    time.sleep(3600)  # as where a disk does not answer


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--dir", help="where the checkpoint lives")
    parser.add_argument("--die-at", type=int, default=-1, metavar="EPOCH")
    parser.add_argument("--hang-at", type=int, default=-1, metavar="EPOCH")
    options = parser.parse_args()
    # The run ID is the same in every attempt.
    directory = options.dir or os.path.join(tempfile.gettempdir(), "checkpoint-" + os.environ["TORCHELASTIC_RUN_ID"])
    os.makedirs(directory, exist_ok=True)
    checkpoint = os.path.join(directory, "checkpoint.pt")
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(17)
    x = torch.rand(256, 8)
    y = x.sum(1, keepdim=True)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, loss = 0, None
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    if rank == 0:
        print(f"attempt {attempt}: starting at epoch {first}", flush=True)

    for epoch in range(first, options.epochs):
        if attempt == 0 and epoch == options.die_at and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if attempt == 0 and epoch == options.hang_at and rank == world - 1:
            read_batch()
        # As many steps on every rank, whatever the number of them.
        for step in range(len(x) // (world * 16)):
            begin = (step * world + rank) * 16
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[begin : begin + 16]), y[begin : begin + 16])
            loss.backward()
            optimizer.step()
        mean = loss.detach() / world
        dist.all_reduce(mean)
        if rank == 0:
            # Written aside and renamed: whoever reads it sees a whole one.
            torch.save(
                {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
                checkpoint + ".new",
            )
            os.replace(checkpoint + ".new", checkpoint)
            print(f"epoch {epoch}: loss {mean.item():.6f}", flush=True)
        dist.barrier()

    if rank == 0 and not options.dir:
        shutil.rmtree(directory)
    # The model holds the process group, and itself. Collected only while Python
    # exits, the group's threads may abort the process, under any launcher.
    del model, optimizer, loss
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
