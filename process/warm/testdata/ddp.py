"""DDP over gloo. Each rank says what its random numbers come from, and whether torch was there before it began; rank 0
says when its first step is done, and dies FAILS times."""
import os
import sys
import time

there = "torch" in sys.modules

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

os.write(1, b"SEED %d\nTHERE %d\n" % (torch.initial_seed(), there))
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    if step == 0 and dist.get_rank() == 0:
        print("STEP %.3f" % time.time(), flush=True)
if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(os.environ["FAILS"]) and dist.get_rank() == 0:
    time.sleep(1.1)  # a worker that dies in its first second makes the next start cold
    print("DEATH %.3f" % time.time(), flush=True)
    os._exit(7)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # on a busy machine PyTorch's threads may abort a process that ends by itself
