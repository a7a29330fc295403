"""A training for test_live.py. What LIVE_FAULT says happens in a step: raise (a
collective's error between backward and the optimizer's step), mid-step (after it), forget (a
message whose receiver is stopped in it; within: that C++ waits for), or after the step: outside (a collective there)."""

import datetime
import json
import os
import signal
import threading
import time

import torch
import torch._dynamo  # as optimizers do, but once, before processes are forked
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import muster._livelink, muster._livetorch, muster.live


class Ballast:
    """State that takes a while to send: so many MiB."""

    def __init__(self, size):
        self.bytes = torch.zeros(size << 20, dtype=torch.uint8)

    def state_dict(self):
        return {"bytes": self.bytes}

    def load_state_dict(self, found):
        self.bytes = found["bytes"]


def stop_when_it_receives():
    """Stops this process when a part of the ballast has come."""

    def memory():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def watch():
        before = memory()
        while memory() < before + (24 << 20):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGSTOP)

    receive = muster._livetorch._broadcast

    def receiving(*args):
        threading.Thread(target=watch, daemon=True).start()
        receive(*args)

    muster._livetorch._broadcast = receiving


def forget(rank, broadcast, say):
    """Rank 0 has begun to send something large when rank 1, which receives it, is stopped."""
    large = torch.full((128 << 20,), int(rank == 0), dtype=torch.uint8)

    def stop():
        while not large[0]:
            pass
        say(stops=rank)
        os.kill(os.getpid(), signal.SIGSTOP)

    if rank == 1:
        threading.Thread(target=stop, daemon=True).start()
    broadcast(large)


def work(environ, lines, errors, steps, batch, keep):
    """What a process of the fork server does. It sends dicts through lines."""
    os.environ.update(environ)
    with open(errors, "ab") as f:
        os.dup2(f.fileno(), 2)

    def say(**values):
        lines.send(values)

    fault = json.loads(os.environ.get("LIVE_FAULT") or "{}")
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ.get("LIVE_SEED", "17")))
    generator = torch.Generator().manual_seed(17)
    x = torch.rand(96, 8, generator=generator)
    y = x.sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1)).double()
    x, y = x.double(), y.double()
    sampler = muster.live.Sampler(len(x), batch, seed=17, keep=keep)
    limit = float(os.environ.get("LIVE_TIMEOUT", "60"))
    more = [Ballast(int(os.environ["LIVE_BALLAST"]))] if "LIVE_BALLAST" in os.environ else []
    if os.environ.get("LIVE_STOPS"):
        stop_when_it_receives()
    size = int(os.environ.get("LIVE_REPLICA_SIZE", "1"))

    def state(run):
        if size > 1:
            for layer in (model[0], model[3], model):
                fully_shard(layer, mesh=run.mesh)
        return [model, torch.optim.Adam(model.parameters(), lr=1e-2), sampler, *more]

    run = muster.live.join("gloo", state=state, replica_size=size, timeout=datetime.timedelta(seconds=limit),
                           on_change=lambda run: say(changed=run.step, world=run.world))
    optimizer = run.state[1]
    model.eval()  # samples do not depend on how they are shared
    ddp = run.ddp(model) if size == 1 else model
    place = run.mesh.get_local_rank("shard") if size > 1 else 0
    say(pid=os.getpid(), joined=run.step, live=run.live, world=run.world)
    # No rank goes beyond this step until the gate is open.
    hold = int(os.environ.get("LIVE_HOLD", steps))
    while run.before(steps):
        while run.step >= hold and not os.path.exists(os.environ["LIVE_GATE"]) and run._link.stop_at > run.step:
            time.sleep(0.001)
        with run:
            samples = sampler.indices()
            say(enter=run.step, draw=torch.rand(1).item())
            if fault.get("step") == run.step and fault["do"] == "forget":
                fault = {}
                forget(run.rank, lambda large: dist.broadcast(large, 0), say)
            if fault.get("step") == run.step and fault["do"] == "forget within":
                fault = {}
                forget(run.rank, lambda large: ddp._distributed_broadcast_coalesced([large], 1 << 30, 0), say)
            loss = (ddp(x[samples]) - y[samples]).square().mean() * sampler.scale
            loss.backward()
            if size > 1:
                nn.utils.clip_grad_norm_(model.parameters(), 100)
            with torch.no_grad():
                model[1].running_mean += 1  # as a forward pass in training does
            if fault.get("step") == run.step and fault["do"] == "raise":
                fault = {}
                raise dist.DistError("a test's")
            optimizer.step()
            if fault.get("step") == run.step and fault["do"] == "mid-step":
                fault = {}
                raise dist.DistError("a test's")
            if fault.get("step") == run.step and fault["do"] == "bug":
                raise RuntimeError("a bug")
            optimizer.zero_grad()
            say(step=run.step, world=run.world, rank=run.rank, t=time.time(),
                sum=sum((p.detach().to_local() if size > 1 else p.detach()).sum().item() for p in model.parameters()),
                place=place,
                mean=model[1].running_mean[0].item(), samples=samples if sampler.scale else [])
        if fault.get("step") == run.step and fault["do"] == "outside":
            fault = {}
            try:
                dist.barrier()
            except RuntimeError as e:
                say(refused=str(e))
    say(end=run.step)
    dist.destroy_process_group()
