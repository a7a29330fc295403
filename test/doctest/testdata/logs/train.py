"""Writes what docs/logs.md shows, when the test lets it."""

import os

rank = int(os.environ["LOCAL_RANK"])
here = os.environ["TMPDIR"]
board = os.open(os.path.join(here, "board"), os.O_WRONLY)
gates = 0


def say(ranks, line):
    global gates
    os.write(board, b".")
    os.read(os.open(os.path.join(here, "gate%d" % gates), os.O_RDONLY), 1)
    gates += 1
    if rank in ranks:
        os.write(1, (line + "\n").encode())


say(range(8), "loading the data set")
say(range(2), "epoch 1, loss %.2f" % (2.31 - rank * 0.02))
say((0, 1, 2, 5), "warning: no checkpoint found")
say((), "")
