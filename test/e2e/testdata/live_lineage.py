"""examples/train_live.py, with a step that rank 0 completes, while a collective of it fails on the
other ranks: live_lineage.py EXAMPLE ... Each reports how many steps it has completed, from then on,
and the sum over all parameters; in place of that, 0 where the collective fails."""

import fcntl
import os
import runpy
import sys

import torch
import torch.distributed as dist

import muster._livelink

AT = 5
backward, zero_grad, step = torch.Tensor.backward, torch.optim.Adam.zero_grad, torch.optim.Adam.step
make, links, stepped, failed, held = muster._livelink.Link.__init__, [], 0, False, False


def report(total):
    with open(os.environ["TESTPROC_BOARD"], "w") as board:
        print(os.environ["AGENT"], stepped, total, file=board)


def linked(self, *args, **options):
    make(self, *args, **options)
    links.append(self)


def fails(*args, **options):
    global failed
    backward(*args, **options)
    if stepped == AT and not failed and dist.get_rank() > 0:
        failed = True
        report(0)
        with open(os.environ["TESTPROC_GATE"]) as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)
        raise dist.DistError("a test's")


def holds(*args, **options):
    """The ranks that have repeated the step do not go on with the next one until it is broken off."""
    global held
    if stepped == AT + 1 and failed and not held:
        held = True
        with links[0].guard():
            links[0].guard().wait_for(lambda: links[0].urgent)
    zero_grad(*args, **options)


def counts(self, *args, **options):
    global stepped
    step(self, *args, **options)
    stepped += 1
    if stepped > AT:
        report(sum(p.detach().double().sum().item() for p in self.param_groups[0]["params"]))


torch.Tensor.backward, torch.optim.Adam.zero_grad, torch.optim.Adam.step = fails, holds, counts
muster._livelink.Link.__init__ = linked
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
