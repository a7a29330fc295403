"""PyTorch's TCPStore and PrefixStore. They are C++, and all of torch takes three times as long to
import. torchstore.py HOST PORT serves a store.
"""

import ctypes
import importlib.util
import os
import sys
import types

KNOWN = "2.15."  # the release that makes do with this little of the Python around it


def load():
    """Imports the C++ into what looks like torch; returns whether it did."""
    torch = os.path.dirname(importlib.util.find_spec("torch").origin)
    with open(os.path.join(torch, "version.py")) as f:
        version = {}
        exec(f.read(), version)
    if not version["__version__"].startswith(KNOWN):
        return False
    for name in ("torch", "torch.distributed", "torch.futures"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["torch"].__path__ = [torch]
    sys.modules["torch"].distributed = sys.modules["torch.distributed"]
    sys.modules["torch.futures"].Future = type("Future", (), {})  # which a class of C++ has as its base
    ctypes.CDLL(os.path.join(torch, "lib", "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
    import torch._C

    return torch._C._c10d_init()


if load():
    from torch._C._distributed_c10d import PrefixStore, TCPStore
else:
    from torch.distributed import PrefixStore, TCPStore  # noqa: F401

if __name__ == "__main__":
    import signal

    store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False)
    print("listening", flush=True)
    signal.pause()
