"""Trains a tiny model by TRL's command, whose rank 1 may fail. adopted_trl.py good|fail"""

import json
import os
import sys

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MODEL = """
import os
from transformers import LlamaForCausalLM

class Model(LlamaForCausalLM):
    def forward(self, *args, **named):
        out = super().forward(*args, **named)
        if os.environ["RANK"] == "1" and %r == "fail":
            raise ValueError("boom")
        if os.environ["RANK"] == "0":
            print("worked %%s %%.4f" %% (os.environ["WORLD_SIZE"], out.loss.item()), flush=True)
        return out
"""

words = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *"abcdefghij"])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>").save_pretrained("model")
LlamaForCausalLM(LlamaConfig(
    vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, initializer_range=0.0,
    auto_map={"AutoModelForCausalLM": "modeling.Model"})).save_pretrained("model")
with open("model/modeling.py", "w") as f:
    f.write(MODEL % sys.argv[1])
os.mkdir("data")
with open("data/train.jsonl", "w") as f:
    f.write((json.dumps({"text": "abcdefghij"}) + "\n") * 8)
os.execvp("trl", ["trl", "sft", "--model_name_or_path", "model", "--trust_remote_code", "--dataset_name", "data", "--max_steps", "1", "--use_cpu",
                  "--bf16", "false", "--gradient_checkpointing", "false", "--save_strategy", "no", "--report_to", "none", "--output_dir", "out",
                  "--num_processes", "2", "--num_machines", "1", "--multi_gpu", "--mixed_precision", "no", "--dynamo_backend", "no"])
