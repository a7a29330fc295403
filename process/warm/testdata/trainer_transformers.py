"""Transformers' Trainer trains a small GPT-2 on two workers, and is restarted once."""
import os
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Dies(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2 and args.process_index == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(1.1)  # a worker that dies in its first second makes the next start cold
            os._exit(7)


if __name__ == "__main__":
    args = TrainingArguments(output_dir=os.path.join(os.environ["OUT"], "trained"), use_cpu=True, ddp_backend="gloo", max_steps=4, seed=1,
                             per_device_train_batch_size=2, report_to=[], save_strategy="no", disable_tqdm=True, dataloader_num_workers=1)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    rows = [{"input_ids": row, "labels": row} for row in torch.arange(16 * 64).reshape(64, 16) % 64]
    result = Trainer(model, args, train_dataset=rows, callbacks=[Dies()]).train()
    with open(os.path.join(os.environ["OUT"], "out%d" % args.process_index), "w") as f:
        f.write(repr([args.world_size, result.global_step, round(sum(p.sum().item() for p in model.parameters()), 3)]))
