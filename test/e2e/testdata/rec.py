# Rank 1 fails under @record; the others wait to be stopped.
import os, signal, sys

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("boom\nsecond line é")
    signal.pause()


main()
