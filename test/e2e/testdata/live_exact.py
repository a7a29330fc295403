"""A live training in whole numbers of a grid, so that its sums do not depend on how
many ranks share the samples: each step has one right result, to the last digit.

Each rank prints a line of JSON for each step, and tells the test of each membership
that it is in. The training ends at the step after which a file is there.
"""

import json
import os
import sys
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn

import muster

stop, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
GRID = 2.0**-20


class End:
    """The number of steps, which all ranks have to know, also those that join."""

    def __init__(self):
        self.step = steps

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, found):
        self.step = found["step"]


made = dist._reconfigure
membership = ()


def make(*, uuid, handles, **options):
    global membership
    # A rank's own handle lacks what tells two new processes apart.
    membership = uuid, zlib.crc32(" ".join(handle.split("#")[0] for handle in handles).encode())
    return made(uuid=uuid, handles=handles, **options)


def report(run):
    if run.live:
        uuid, handles = membership
        line = f"{uuid} {run.rank}/{run.world} {os.getpid()} {run.step} {os.environ['HOST']} {handles}\n"
        with open(os.environ["TESTPROC_BOARD"], "w") as board:
            board.write(line)


dist._reconfigure = make
torch.set_num_threads(1)
random = torch.Generator().manual_seed(17)
x = torch.randint(0, 8, (960, 8), generator=random).double()
y = torch.randint(0, 50, (960, 1), generator=random).double()
torch.manual_seed(os.getpid())  # so ranks that do not take rank 0's state differ
model = nn.Linear(8, 1).double()
if os.environ["RANK"] == "0":
    for p in model.parameters():
        nn.init.zeros_(p)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
sampler = muster.live.Sampler(960, 48, seed=17)
end = End()
run = muster.live.join("gloo", state=[model, optimizer, sampler, end], on_change=report)
report(run)
ddp = run.ddp(model)
while run.before(end.step):
    with run:
        samples = sampler.indices()
        time.sleep(pause)
        optimizer.zero_grad()
        stopping = torch.tensor(float(os.path.exists(stop)))
        dist.all_reduce(stopping)
        loss = (ddp(x[samples]) - y[samples]).square().sum() / 2
        (loss * run.world * (sampler.scale > 0)).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.grad.copy_((p.grad / GRID).round() * GRID)  # DDP multiplies with one n-th
            optimizer.step()
            for p in model.parameters():
                p.copy_((p / GRID).round() * GRID)
        if stopping:
            end.step = min(end.step, run.step + 1)
        print(json.dumps({"step": run.step, "world": run.world, "rank": run.rank,
                          "sum": sum(p.sum().item() for p in model.parameters())}), flush=True)
dist.destroy_process_group()
