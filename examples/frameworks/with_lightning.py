"""A training with Lightning, on CPUs.

    muster run --nproc-per-node 2 examples/frameworks/with_lightning.py
"""

import os

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        x, y = batch
        return ((self.layer(x) - y) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


x = torch.randn(64, 4)
data = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8
)
trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Model(), data)
print(
    f"rank {trainer.global_rank} of {trainer.world_size}: {trainer.global_step} steps",
    flush=True,
)
