"""Lightning trains on two workers, and is restarted once: its own launcher finds what torchrun sets."""
import os
import time

import lightning
import torch
from lightning.pytorch.demos.boring_classes import BoringModel


class Dies(lightning.Callback):
    def on_train_batch_end(self, trainer, model, outputs, batch, number):
        if number == 1 and trainer.global_rank == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(1.1)  # a worker that dies in its first second makes the next start cold
            os._exit(7)


lightning.seed_everything(1, workers=True)
model = BoringModel()
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=4, limit_val_batches=1, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False, callbacks=[Dies()])
trainer.fit(model)
with open(os.path.join(os.environ["OUT"], "out%d" % trainer.global_rank), "w") as f:
    f.write(repr([type(trainer.strategy.cluster_environment).__name__, trainer.world_size, trainer.global_step,
                  round(sum(p.sum().item() for p in model.parameters()), 4)]))
