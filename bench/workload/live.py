"""Trains until it is stopped, and notes each step with the number of ranks: live.py [SECONDS of a step].

With muster.live, so that under muster run --live the members may change.
"""

import os
import sys
import time

import torch
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import muster  # noqa: E402


def note(what, number):
    with open(os.environ["BENCH_EVENTS"], "a") as events:
        events.write("%s %s %s %d %d %d\n" % (
            what, os.environ["LOCAL_RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.getpid(), time.monotonic_ns(), number))


def noted(cls, method, before="", after=""):
    """Notes when a method is called, and when it returns."""
    call = getattr(cls, method)

    def noting(*args, **options):
        if before:
            note(before, 0)
        result = call(*args, **options)
        if after:
            note(after, 0)
        return result
    setattr(cls, method, noting)


note("start", 0)
if "BENCH_SPANS" in os.environ:
    noted(muster.live._Live, "__enter__", after="begin")
    noted(muster.live._Live, "_pause", before="pause")
    noted(muster._livelink.Link, "rest", before="rest", after="members")
    noted(muster.live._Live, "_align", before="group", after="state")
torch.manual_seed(0)
torch.set_num_threads(1)
pause = float(sys.argv[1]) if len(sys.argv) > 1 else 0.005
data = torch.rand(960, 64)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sampler = muster.live.Sampler(len(data), 48, seed=1)
run = muster.live.join("gloo", state=[model, optimizer, sampler])
ddp = run.ddp(model)
while True:
    with run:
        batch = data[sampler.indices()]
        time.sleep(pause)
        optimizer.zero_grad()
        (ddp(batch).square().mean() * sampler.scale).backward()
        optimizer.step()
        note("step", run.world)
