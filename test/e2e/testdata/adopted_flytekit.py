"""A task that trains on two ranks. adopted_flytekit.py good|fail"""

import sys

import torch
import torch.distributed as dist
from flytekit import task, workflow
from flytekitplugins.kfpytorch.task import Elastic


@task(task_config=Elastic(nnodes=1, nproc_per_node=2, start_method="fork", max_restarts=0))
def train(mode: str) -> float:
    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    if mode == "fail" and dist.get_rank() == 1:
        raise ValueError("boom")
    return total.item()


@workflow
def flow(mode: str) -> float:
    return train(mode=mode)


if __name__ == "__main__":
    print("worked", flow(mode=sys.argv[1]))
