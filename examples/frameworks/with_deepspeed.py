"""A training with DeepSpeed, on CPUs. At its first start DeepSpeed compiles an operator,
which takes minutes.

    muster run --nproc-per-node 2 examples/frameworks/with_deepspeed.py
"""

import deepspeed
import torch

deepspeed.init_distributed(dist_backend="gloo")
model = torch.nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    },
)
for _ in range(8):
    x = torch.randn(8, 4)
    loss = ((engine(x) - x.sum(1, keepdim=True)) ** 2).mean()
    engine.backward(loss)
    engine.step()
print(
    f"rank {deepspeed.comm.get_rank()} of {deepspeed.comm.get_world_size()}: "
    f"{engine.global_steps} steps",
    flush=True,
)
