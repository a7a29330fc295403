"""Trains a tiny model by TRL's command, and says what came out. Rank 1 may fail. adopted_trl.py good|fail"""

import hashlib
import json
import os
import subprocess
import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MODEL = """
import os
from transformers import LlamaConfig, LlamaForCausalLM

class Config(LlamaConfig):
    model_type = "own"

class Model(LlamaForCausalLM):
    config_class = Config

    def __init__(self, *args, **named):
        if os.environ["RANK"] == "1" and %r == "fail":
            raise ValueError("boom")
        super().__init__(*args, **named)
"""

torch.manual_seed(0)
words = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *"abcdefghij"])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>").save_pretrained("model")
LlamaForCausalLM(LlamaConfig(
    vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)).save_pretrained("model")
with open("model/config.json") as f:
    about = json.load(f)
about.update(
    architectures=["Model"], model_type="own", auto_map={"AutoConfig": "modeling.Config", "AutoModelForCausalLM": "modeling.Model"})
with open("model/config.json", "w") as f:
    json.dump(about, f)
with open("model/modeling.py", "w") as f:
    f.write(MODEL % sys.argv[1])
os.mkdir("data")
with open("data/train.jsonl", "w") as f:
    f.write((json.dumps({"text": "abcdefghij"}) + "\n") * 8)
status = subprocess.call([
    "trl", "sft", "--model_name_or_path", "model", "--trust_remote_code", "--dataset_name", "data", "--max_steps", "1", "--use_cpu",
    "--bf16", "false", "--gradient_checkpointing", "false", "--save_strategy", "no", "--report_to", "none", "--output_dir", "out",
    "--num_processes", "2", "--num_machines", "1", "--multi_gpu", "--mixed_precision", "no", "--dynamo_backend", "no",
], env=dict(os.environ, HF_HUB_OFFLINE="1"))
if status == 0:
    with open("out/model.safetensors", "rb") as f:
        print("worked", hashlib.sha256(f.read()).hexdigest())
sys.exit(status)
