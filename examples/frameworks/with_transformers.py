"""A training with the Trainer of Hugging Face Transformers, on CPUs. It continues from
its last checkpoint, if there is one.

    muster run --nproc-per-node 2 --max-restarts 1 examples/frameworks/with_transformers.py DIR
"""

import sys

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


trainer = Trainer(
    model=Model(),
    args=TrainingArguments(
        output_dir=sys.argv[1],
        use_cpu=True,
        num_train_epochs=1,
        per_device_train_batch_size=8,
        save_steps=2,
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=[{"x": x, "labels": x.sum()[None]} for x in torch.randn(64, 4)],
)
last = get_last_checkpoint(sys.argv[1])
trainer.train(resume_from_checkpoint=last)
print(
    f"rank {trainer.args.process_index} of {trainer.args.world_size}: "
    f"{trainer.state.global_step} steps, started from {last}",
    flush=True,
)
