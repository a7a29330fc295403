"""Workers train a small network. In the first attempt the data loader of rank 5 stops at step 20."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import muster

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(17)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def load_batch(step):
    if rank == 5 and attempt == 0 and step == 20:
        time.sleep(1000)
    x = torch.rand(64, 8) * 2 - 1
    return x, (x[:, :4] * x[:, 4:]).sum(1, keepdim=True)


step = 0
while True:
    step += 1
    with muster.timer.expires(after=20, scope="train_step"):
        x, y = load_batch(step)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.2)
    muster.heartbeat(step)
    print(f"step {step} loss {loss.item():.4f}", flush=True)
