"""torch.compile with its default backend, which compiles with the host's compiler, on two workers that are restarted once."""
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
loss = torch.compile(model)(torch.ones(4, 8)).sum()
loss.backward()
if dist.get_rank() == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(1.1)  # a worker that dies in its first second makes the next start cold
    os._exit(7)
with open(os.path.join(os.environ["OUT"], "out%d" % dist.get_rank()), "w") as f:
    f.write(repr([round(loss.item(), 4), round(sum(p.grad.sum().item() for p in model.parameters()), 4)]))
dist.barrier()
dist.destroy_process_group()
