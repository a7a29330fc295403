# Steps that begin with a broadcast. In the first attempt the last rank works for half a second in the last one, and fails.
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
shapes, buffers, grad = [torch.zeros(1) for _ in range(dist.get_world_size())], torch.ones(10), torch.ones(1000)
late = dist.get_rank() == dist.get_world_size() - 1
dist.all_gather(shapes, torch.ones(1))
for step in range(20):
    if step == 19 and late and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(0.5)
        raise ValueError("loss is NaN")
    dist.broadcast(buffers, 0)
    dist.all_reduce(grad)
dist.destroy_process_group()
