"""What training scripts do: DataLoaders with workers, a compiled function, FSDP2."""
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.tensor([float(i * i)])


if __name__ == "__main__":
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    out = []
    for method in ("fork", "spawn")[: 2 - dist.get_rank()]:  # one rank of two: what is spawned imports torch
        loader = DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=method)
        out.append(sum(float(batch.sum()) for batch in loader))
    out.append(float(torch.compile(lambda x: (x * 2).relu().sum(), backend="aot_eager")(torch.arange(8.0))))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.ones(4, 8)).sum()
        loss.backward()
        optimizer.step()
    out.append(round(loss.item(), 4))
    with open(os.path.join(os.environ["OUT"], "out%d" % dist.get_rank()), "w") as f:
        f.write(repr(out))
    dist.barrier()
    dist.destroy_process_group()
