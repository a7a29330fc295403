# Steps of 100 ms. The last rank is 50 ms late in each of the first 90 s.
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
late = dist.get_rank() == dist.get_world_size() - 1
begin, ends, grad = time.time(), torch.zeros(1), torch.ones(1000)
while not ends[0]:
    time.sleep(0.1)
    if late and time.time() < begin + 90:
        time.sleep(0.05)
    dist.all_reduce(grad)
    grad /= dist.get_world_size()
    ends.fill_(time.time() > begin + 165)
    dist.all_reduce(ends)
dist.destroy_process_group()
