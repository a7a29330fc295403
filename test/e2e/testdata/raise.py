# Rank 1 fails with nothing to record it; the others wait to be stopped.
import os, signal


def inner():
    raise ValueError("boom\nsecond line é")


if os.environ["RANK"] == "1":
    inner()
signal.pause()
