"""A training with Hugging Face Accelerate, on CPUs.

    muster run --nproc-per-node 2 examples/frameworks/with_accelerate.py
"""

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
x = torch.randn(64, 4)
data = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8
)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for epoch in range(2):
    for a, b in data:
        optimizer.zero_grad()
        loss = ((model(a) - b) ** 2).mean()
        accelerator.backward(loss)
        optimizer.step()
print(
    f"rank {accelerator.process_index} of {accelerator.num_processes}: "
    f"{type(model).__name__}, {accelerator.mixed_precision}",
    flush=True,
)
accelerator.end_training()
