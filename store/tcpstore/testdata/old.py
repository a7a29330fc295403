"""A client of PyTorch 1.13, which must be refused: old.py HOST PORT WORLD_SIZE."""

import sys
from datetime import timedelta

from torch.distributed import TCPStore

try:
    kwargs = {"world_size": int(sys.argv[3])} if sys.argv[3] != "0" else {}
    s = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, timeout=timedelta(seconds=5), **kwargs)
    s.set("key", "value")
    s.get("key")
    s.add("n", 1)
except RuntimeError as e:
    print("refused:", e)
    sys.exit(0)
sys.exit("it was served")
