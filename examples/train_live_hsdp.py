"""A training whose state is sharded, and that goes on while whole copies of it come and go.

    muster run --live --nnodes 1:4 --nproc-per-node 2 ... examples/train_live_hsdp.py

Two ranks make a replica group: they hold the parameters and the optimizer's state between
them. Each rank prints what train_live.py prints, where the sum is that over its shards, and
which shards it has, as place. Equal steps and places have equal sums.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import muster


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--samples", type=int, default=960)
    parser.add_argument("--batch", type=int, default=48, help="of all ranks together")
    parser.add_argument("--replica-size", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="work that each step pretends to do")
    options = parser.parse_args()

    torch.manual_seed(17)
    torch.set_num_threads(1)
    x = torch.rand(options.samples, 8)
    y = x.sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    sampler = muster.live.Sampler(options.samples, options.batch, seed=17)

    def state(run):
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=run.mesh)
        return [model, torch.optim.Adam(model.parameters(), lr=1e-3), sampler]

    run = muster.live.join("gloo", state=state, replica_size=options.replica_size)
    optimizer = run.state[1]
    place = run.mesh.get_local_rank("shard")
    while run.before(options.steps):
        with run:
            samples = sampler.indices()
            time.sleep(options.pause)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[samples]), y[samples])
            (loss * sampler.scale).backward()
            optimizer.step()
            total = sum(p.detach().to_local().double().sum().item() for p in model.parameters())
            print(json.dumps({"step": run.step, "world": run.world, "rank": run.rank, "place": place, "t": time.time(),
                              "sum": total, "samples": samples if sampler.scale else []}) + "\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
