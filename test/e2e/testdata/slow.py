# Steps of 100 ms. In each of the first 90 s the last rank is 50 ms late: it waits or, with QUOTA, the kernel lets it compute
# only a part of the time, in the control group of that path. The others compute as much.
import os
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
late, quota = dist.get_rank() == dist.get_world_size() - 1, os.environ.get("QUOTA")
begin, ends, grad, weights = time.time(), torch.zeros(1), torch.ones(1000), torch.ones(200, 200)


def move(group):
    if quota and late:
        with open(os.path.join(group, "cgroup.procs"), "w") as procs:
            procs.write("0")


move(quota)
while not ends[0]:
    time.sleep(0.1)
    computed = time.thread_time() + 0.006
    while quota and time.thread_time() < computed:
        weights @ weights
    if late and time.time() < begin + 90:
        time.sleep(0 if quota else 0.05)
    elif late:
        move(os.path.dirname(quota or "/"))
    dist.all_reduce(grad)
    grad /= dist.get_world_size()
    ends.fill_(time.time() > begin + 165)
    dist.all_reduce(ends)
dist.destroy_process_group()
