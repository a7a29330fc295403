"""A program written for torch's elastic_launch. test_torch runs it as it is, and with
these imports changed; it prints one JSON line for each thing that can be compared."""

import glob
import json
import os
import re
import signal
import sys
import tempfile
import time

from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def config(nproc=2, start_method="fork", **fields):
    fields.setdefault("max_restarts", 0)
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id="dropin",
        role="trainer",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method=start_method,
        **fields,
    )


def multiply(by, offset):
    return int(os.environ["RANK"]) * by + offset


def environment():
    return {
        name: os.environ.get(name)
        for name in (
            "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
            "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
            "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE",
        )
    }


def see(*args):
    return list(args)


def reduce(by):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.tensor([float(dist.get_rank() + by)])
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor.tolist(), type(tensor).__name__


def boom(rank):
    if int(os.environ["RANK"]) == rank:
        raise KeyError("lost é")
    time.sleep(60)


def die(number):
    os.kill(os.getpid(), number)
    time.sleep(60)


def once(dir):
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt == 0:
        raise RuntimeError("the first time")
    return attempt


def say():
    print("out", os.environ["RANK"])
    print("err", os.environ["RANK"], file=sys.stderr)


def show(what, value):
    print(json.dumps({what: value}, sort_keys=True), flush=True)


def failure(what, config, entrypoint, *args):
    try:
        elastic_launch(config, entrypoint)(*args)
    except ChildFailedError as e:
        rank, first = e.get_first_failure()
        message = first.message
        if isinstance(message, dict):
            text, shape = message["message"], sorted(message["extraInfo"])
            last = message["extraInfo"]["py_callstack"].strip().splitlines()[-1]
        else:
            text, shape, last = re.sub(r"PID \d+", "PID N", message), None, None
        show(what, {
            "name": e.name, "ranks": list(e.failures), "first": rank, "local_rank": first.local_rank,
            "exitcode": first.exitcode, "signal": first.signal_name(), "message": text, "shape": shape, "last": last,
            "data": sorted(first.error_file_data), "has_file": os.path.isfile(first.error_file),
            "recent": 0 <= time.time() - first.timestamp < 60, "iso": len(first.timestamp_isoformat()),
            "title": next(line for line in str(e).splitlines() if line.endswith("FAILED")),
            "root": "Root Cause (first observed failure):" in str(e),
        })


def main(dir):
    show("spawn", elastic_launch(config(start_method="spawn"), multiply)(3, 100))
    show("fork", elastic_launch(config(nproc=3), multiply)(3, 100))
    show("reduce", elastic_launch(config(), reduce)(1))
    show("environment", elastic_launch(config(), environment)())
    show("arguments", elastic_launch(config(nproc=1), see)("a ${local_rank} $$", None, [1, {"k": 2.5}]))
    show("program", elastic_launch(config(), "/bin/sh")("-c", "exit 0"))
    show("restart", elastic_launch(config(max_restarts=1), once)(dir))

    specs = DefaultLogsSpecs(log_dir=os.path.join(dir, "logs"), redirects={0: Std.ALL, 1: Std.OUT})
    elastic_launch(config(logs_specs=specs), say)()
    show("logs", {
        re.sub("dropin_[^/]*", "dropin_X", os.path.relpath(path, dir)): open(path).read()
        for path in glob.glob(os.path.join(dir, "logs", "*", "*", "*", "*.log"))
    })

    failure("exception", config(), boom, 1)
    failure("signal", config(nproc=1), die, int(signal.SIGKILL))
    failure("status", config(nproc=1), "/bin/sh", "-c", "exit 5")
    with open("train.py", "w") as f:
        f.write("raise SystemExit(4)")
    failure("python", config(nproc=1), sys.executable, "-u", "train.py", "--lr", "1")
    try:
        config(shutdown_timeout=-1)
    except ValueError as e:
        show("negative", str(e))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        main(directory)
