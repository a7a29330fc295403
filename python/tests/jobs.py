"""Functions that the tests launch; workers import them from here."""

import os
import signal
import sys
import time

import muster


def config(nproc=2, **fields):
    """A job of this host that does not restart."""
    fields.setdefault("max_restarts", 0)
    fields.setdefault("run_id", "test")
    return muster.LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=nproc, **fields)


def rank_plus(number):
    return int(os.environ["RANK"]) + number


def environment(*names):
    return {name: os.environ.get(name) for name in names}


def paths():
    """Where a standard module and muster come from."""
    import dataclasses

    return dataclasses.__file__, muster.__file__


def see(*args):
    return args


def fail_on(rank, message):
    if int(os.environ["RANK"]) == rank:
        raise ValueError(message)
    time.sleep(60)


def fail_first(directory):
    """Fails in the first attempt, and says in which it is."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with open(os.path.join(directory, "%s.%d" % (os.environ["RANK"], attempt)), "w"):
        pass
    if attempt == 0:
        raise RuntimeError("the first time")
    return attempt


def leave(status):
    sys.exit(status)


def die(number):
    os.kill(os.getpid(), number)
    time.sleep(60)


def unsendable():
    return lambda: None


def big(size):
    return b"x" * size


def say(out, err):
    print(out)
    print(err, file=sys.stderr)


def wait_for_signal(fifo):
    """Says that it is ready, and what signal came; never ends by itself."""
    signals = signal.SIGTERM, signal.SIGINT
    # Blocked and waited for: a handler would not run if its signal came just before a
    # long sleep began.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with open(fifo, "w") as f:
        f.write("%d\n" % os.getpid())
    number = signal.sigwait(signals)
    with open(fifo + "." + os.environ["RANK"], "w") as f:
        f.write(signal.Signals(number).name)
    sys.exit(1)


def read(path):
    with open(path) as f:
        return f.read()


class Point:
    """A value that is more than numbers."""

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return isinstance(other, Point) and self.x == other.x


def point():
    return Point(int(os.environ["RANK"]))


class Callable:
    """A function that is an object, and has no name."""

    def __call__(self):
        return "called"


class Picky:
    """An argument that cannot be sent."""

    def __reduce__(self):
        raise TypeError("picky does not travel")


def flags():
    return sys.flags.optimize, sys.flags.utf8_mode, sys.warnoptions


def beat(step):
    return muster.heartbeat(step)


def overrun():
    with muster.timer.expires(after=60):
        pass
    with muster.timer.expires(after=0.2):
        time.sleep(60)


@muster.deadline("200ms")
def too_slow():
    time.sleep(60)


def cgroup():
    """The path in the unified hierarchy."""
    with open("/proc/self/cgroup") as f:
        return next((line for line in f.read().split("\n") if line.startswith("0::")), "")


def kill_the_agent(path):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def launch_within():
    """A job within a job."""
    return muster.elastic_launch(config(nproc=1, run_id="inner"), rank_plus)(40)


def how_warm():
    """Whether this worker is a fork of a template, and whether a module is there that only
    this function imports."""
    known = "shelve" in sys.modules
    import shelve  # noqa: F401

    frame, files = sys._getframe(), set()
    while frame is not None:
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return "<muster warm>" in files, known


def kill_server():
    """Kills the process that forks the workers, in the first attempt."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        agent = os.getppid()
        with open("/proc/%d/task/%d/children" % (agent, agent)) as f:
            others = set(map(int, f.read().split())) - {os.getpid()}
        for pid in others:
            if os.path.samefile("/proc/%d/exe" % pid, "/proc/self/exe"):
                os.kill(pid, signal.SIGKILL)
        raise ValueError("once more")
    return 7


def leave_a_process_group(path):
    """Ends with a process group; what it sleeps for then is in the file."""
    import types

    def sleep(seconds):
        with open(path, "w") as f:
            f.write(str(seconds))

    time.sleep = sleep
    sys.modules["torch.distributed"] = types.SimpleNamespace(is_initialized=lambda: True)
