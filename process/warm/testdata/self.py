"""Prints all that Python lets a worker see of itself, as JSON."""
import atexit
import io
import json
import os
import resource
import signal
import sys

if __name__ == "__mp_main__":
    raise SystemExit  # a child of spawn has seen the file


def describe(stream):
    return [stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.newlines,
            type(stream.buffer).__name__, stream.fileno(), stream.isatty(), stream.closed]


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read().decode("latin-1")
    except OSError as e:
        return str(e)


main = sys.modules["__main__"]
seen = {
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "flags": repr(sys.flags), "warnoptions": sys.warnoptions,
    "xoptions": sys._xoptions, "path": sys.path, "executable": sys.executable, "prefix": [sys.prefix, sys.exec_prefix, sys.base_prefix],
    "main": {k: (v if isinstance(v, (str, type(None))) else type(v).__name__) for k, v in vars(main).items()},
    "globals": main.__dict__ is globals(), "loader": repr(main.__loader__)[:60].split(" object")[0], "name": __name__,
    "environ": list(os.environ.items()), "cwd": os.getcwd(),
    "handlers": {s.name: str(signal.getsignal(s)) for s in signal.Signals}, "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "umask": os.umask(os.umask(0)), "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT")},
    "affinity": sorted(os.sched_getaffinity(0)), "nice": os.nice(0), "policy": os.sched_getscheduler(0),
    "leads": [os.getpid() == os.getpgid(0), os.getpid() == os.getsid(0)],
    "fds": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1], "threads": len(os.listdir("/proc/self/task")),
    "children": read("/proc/self/task/%d/children" % os.getpid()),
    "cmdline": read("/proc/self/cmdline"), "comm": read("/proc/self/comm"), "cgroup": read("/proc/self/cgroup").count("/"),
    "proc environ": read("/proc/self/environ").split("\0"), "parent": read("/proc/%d/comm" % os.getppid()),
    "status": [l for l in read("/proc/self/status").split("\n") if l.split(":")[0] in (
        "SigBlk", "SigIgn", "SigCgt", "CapEff", "NoNewPrivs", "Seccomp", "TracerPid", "Groups", "Uid", "Gid", "Umask")],
    "oom": read("/proc/self/oom_score_adj"), "io": read("/proc/self/io") and None,
    "stdin": describe(sys.stdin), "stdout": describe(sys.stdout), "stderr": describe(sys.stderr),
    "same": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "excepthook": sys.excepthook is sys.__excepthook__, "trace": str(sys.gettrace()), "switch": sys.getswitchinterval(),
    "recursion": sys.getrecursionlimit(), "dont_write_bytecode": sys.dont_write_bytecode,
}
import gc
import threading
import warnings

seen["frames"] = 0
frame = sys._getframe()
while frame.f_back is not None:
    frame, seen["frames"] = frame.f_back, seen["frames"] + 1
seen["gc"] = [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0, len(gc.callbacks)]
seen["thread"] = [threading.current_thread() is threading.main_thread(), threading.main_thread().ident == threading.get_ident(),
                  getattr(threading.main_thread(), "native_id", os.getpid()) == os.getpid(), threading.active_count()]
seen["warnings"] = [str(f) for f in warnings.filters]
try:
    import ctypes

    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(value), 0, 0, 0)
    seen["pdeathsig"] = value.value
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    seen["getenv"] = str(libc.getenv(b"RANK"))
except ImportError:
    pass
import faulthandler

seen["faulthandler"] = faulthandler.is_enabled()
import random

seen["random"] = random.random()
seen["hash"] = hash("muster")


class Kept:
    def __eq__(self, other):
        return type(self) is type(other)


import pickle

seen["pickle"] = [pickle.loads(pickle.dumps(Kept())) == Kept(), Kept.__module__, pickle.dumps(Kept()).count(b"__main__")]


def child(queue):
    queue.put([sys.argv, __name__ == "__mp_main__" or __name__ == "__main__", os.environ["RANK"]])


if os.environ.get("MP"):
    import multiprocessing

    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        if method == "fork":
            queue = context.SimpleQueue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            seen["fork"] = queue.get()
            process.join()
        else:
            process = context.Process(target=print)
            process.start()
            process.join()
        seen[method + " exit"] = process.exitcode
atexit.register(lambda: os.write(1, b"at exit, __file__ %s\n" % str(hasattr(main, "__file__")).encode()))
with open(os.path.join(os.environ["OUT"], os.environ["RANK"]), "w") as f:
    json.dump(seen, f, indent=1, default=str)
