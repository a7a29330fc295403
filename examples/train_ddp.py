"""Two workers fit one small network together with DistributedDataParallel.

    muster run --standalone --nproc-per-node 2 examples/train_ddp.py

Each worker trains on its own part of the same data; gloo averages the
gradients, so all of them hold the same model after every step. Seeds are fixed:
every run prints the same losses.
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world}: pid {os.getpid()}, {torch.get_num_threads()} threads", flush=True)

    torch.manual_seed(17)
    x = torch.rand(1024, 8) * 2 - 1
    y = (x[:, :4] * x[:, 4:]).sum(1, keepdim=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, seed=17)
    loader = DataLoader(data, batch_size=64 // world, sampler=sampler)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: loss {total.item() / (world * len(loader)):.6f}", flush=True)

    # The model holds the process group, and itself. Collected only while Python
    # exits, the group's threads may abort the process, under any launcher.
    del model, optimizer, loss
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
