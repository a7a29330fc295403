"""Two ranks take a snapshot and restore it, launched by torchsnapshot. adopted_torchsnapshot.py good|fail"""

import os
import sys

import torch
import torch.distributed as dist
from torchsnapshot import Snapshot, StateDict
from torchsnapshot.test_utils import run_with_pet


@run_with_pet(nproc=2)
def train(mode):
    dist.init_process_group("gloo")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "snapshot")
    state = StateDict(weight=torch.full((2, 2), float(dist.get_rank() + 1)))
    snapshot = Snapshot.take(path, {"state": state})
    if mode == "fail" and dist.get_rank() == 1:
        raise ValueError("boom")
    state["weight"] = torch.zeros(2, 2)
    snapshot.restore({"state": state})
    dist.all_reduce(state["weight"])
    if dist.get_rank() == 0:
        print("worked %d %s\n" % (dist.get_world_size(), state["weight"].sum().item()), end="", flush=True)


if __name__ == "__main__":
    train(sys.argv[1])
