"""A training that goes on while ranks come and go.

    muster run --live --nnodes 2:4 --nproc-per-node 1 ... examples/train_live.py

Each rank prints a line of JSON for each step that it completes: step, world, rank,
t in Unix seconds, the sum over all parameters, and which samples it took. Equal
steps have equal sums on all ranks; each epoch has every sample once.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn

import muster


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--samples", type=int, default=960)
    parser.add_argument("--batch", type=int, default=48, help="of all ranks together, or of each with --keep local")
    parser.add_argument("--keep", choices=("global", "local"), default="global")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="work that each step pretends to do")
    options = parser.parse_args()

    torch.manual_seed(17)
    torch.set_num_threads(1)
    x = torch.rand(options.samples, 8)
    y = x.sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, options.width), nn.Tanh(), nn.Linear(options.width, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sampler = muster.live.Sampler(options.samples, options.batch, seed=17, keep=options.keep)

    run = muster.live.join("gloo", state=[model, optimizer, sampler])
    ddp = run.ddp(model)
    while run.before(options.steps):
        with run:
            samples = sampler.indices()
            time.sleep(options.pause)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(ddp(x[samples]), y[samples])
            (loss * sampler.scale).backward()
            optimizer.step()
            total = sum(p.detach().double().sum().item() for p in model.parameters())
            print(json.dumps({"step": run.step, "world": run.world, "rank": run.rank, "t": time.time(),
                              "sum": total, "samples": samples if sampler.scale else []}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
