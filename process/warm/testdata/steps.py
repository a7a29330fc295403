"""DDP over gloo until the file ENOUGH is there. Says when it begins, when its first step is done, what its random numbers
come from, and whether torch was there before it began."""
import itertools
import os
import sys

attempt = os.path.basename(os.path.dirname(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"])))


def say(word):
    with open(os.environ["TESTPROC_BOARD"], "w") as board:
        board.write("%s %s %d\n" % (word, attempt, os.getpid()))


say("begin")
there = "torch" in sys.modules
import time

import torch
import torch.distributed as dist

os.write(1, b"SEED %d %d\n" % (torch.initial_seed(), there))
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
enough = torch.zeros(1)
for step in itertools.count():
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    if step == 0:
        say("step")
    if dist.get_rank() == 0:
        enough.fill_(os.path.exists(os.environ["ENOUGH"]))
    dist.broadcast(enough, 0)
    if enough:
        break
    time.sleep(0.005)
dist.destroy_process_group()
