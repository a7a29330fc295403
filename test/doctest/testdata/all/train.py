"""The training of the documentation's commands. What becomes of it is said by the
test, in TRAIN: words of what happens, in order, each for all ranks and attempts or, with
:RANK:ATTEMPT behind it, either of which may be empty, for those."""

import os
import select
import signal
import sys

rank = int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def say(text, to=sys.stdout):
    to.write(text + "\n")
    to.flush()


def boom():
    raise ValueError("boom")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def beat():
    """Tells of a step, and says so."""
    import muster

    muster.heartbeat(12000)
    say("step 12000  loss %.2f" % (1.02 + rank / 10))


def deadline():
    import muster

    muster.timer.expires(after=300, scope="all_reduce").__enter__()


def stay():
    while True:  # until a signal ends the process
        select.select([], [], [])


say("rank %d of %s: training %s" % (rank, os.environ["WORLD_SIZE"], " ".join(sys.argv[1:])))
for step in os.environ.get("TRAIN", "").split():
    what, *who = step.split(":")
    if all(b in ("", str(a)) for a, b in zip((rank, attempt), who)):
        {"boom": boom, "die": die, "beat": beat, "deadline": deadline, "stay": stay}[what]()
