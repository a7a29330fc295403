"""Trains as examples/train_checkpoint.py does, with the gradients summed by hand:
DistributedDataParallel and torch.optim take as long to import as torch itself."""

import argparse
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--dir", help="where the checkpoint lives")
options = parser.parse_args()
checkpoint = options.dir and os.path.join(options.dir, "checkpoint.pt")

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {world}", flush=True)
torch.manual_seed(17)
x = torch.rand(256, 8)
y = x.sum(1, keepdim=True)
weights = torch.rand(8, 1, requires_grad=True)
first = 0
if checkpoint and os.path.exists(checkpoint):
    state = torch.load(checkpoint)
    weights.data.copy_(state["weights"])
    first = state["epoch"] + 1
if rank == 0:
    print(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}: starting at epoch {first}", flush=True)

for epoch in range(first, options.epochs):
    for step in range(len(x) // (world * 16)):
        begin = (step * world + rank) * 16
        loss = ((x[begin : begin + 16] @ weights - y[begin : begin + 16]) ** 2).mean()
        (gradient,) = torch.autograd.grad(loss, weights)
        dist.all_reduce(gradient)
        weights.data -= 0.1 / world * gradient
    mean = loss.detach() / world
    dist.all_reduce(mean)
    if rank == 0:
        if checkpoint:
            torch.save({"epoch": epoch, "weights": weights.detach()}, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
        print(f"epoch {epoch}: loss {mean.item():.6f}", flush=True)
    dist.barrier()
dist.destroy_process_group()
