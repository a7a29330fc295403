"""Imports PyTorch once, and forks a worker for each interpreter that testdata/python3 stands for.

Listens at the socket that its argument names, says so, and ends with its stdin. A request is a JSON object of argv,
env and cwd, with the standard streams as descriptors. The answers are the worker's process ID, from the worker, and
after a = its wait status. The worker is in the namespaces of the process that asks, and the kernel kills it when that ends.
"""

import ctypes
import fcntl
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile

import torch._dynamo  # noqa: F401: optimizers import it late
import torch.distributed.elastic.multiprocessing.errors  # noqa: F401
import torch.distributed.fsdp  # noqa: F401
import torch.nn.parallel  # noqa: F401

libc = ctypes.CDLL(None, use_errno=True)
NAMESPACES = "net", "uts", "ipc", "mnt"  # the process ID's, which is that of children, is entered before the fork
own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY)


def enter(namespace):
    if libc.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), "setns")


def fork(peer):
    """os.fork, but the child is in the namespaces of another process."""
    theirs = {n: os.open("/proc/%d/ns/%s" % (peer, n), os.O_RDONLY) for n in ("pid", *NAMESPACES)}
    others = {n: fd for n, fd in theirs.items() if not os.path.samestat(os.fstat(fd), os.stat("/proc/self/ns/" + n))}
    if "pid" in others:
        enter(others["pid"])
    pid = os.fork()
    if pid == 0:
        for n in NAMESPACES:
            if n in others:
                enter(others[n])
    elif "pid" in others:
        enter(own_pids)
    for fd in theirs.values():
        os.close(fd)
    return pid


def serve():
    """Returns in a worker, with its request, standard streams, and the connection to the process that it works for."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(sys.argv[1])
    listener.listen(64)
    ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    print("listening", flush=True)
    jobs = {}
    while True:
        ready, _, _ = select.select([0, ended, listener], [], [])
        if 0 in ready:
            os._exit(0)
        if ended in ready:
            os.read(ended, 4096)
            while jobs:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                with jobs.pop(pid) as conn:
                    try:
                        conn.send(b"=%d" % status)
                    except OSError:
                        pass  # that has ended, and the worker with it
        if listener not in ready:
            continue
        conn, _ = listener.accept()
        request, fds, _, _ = socket.recv_fds(conn, 1 << 20, 3)
        if len(fds) < 3:
            continue  # it has ended
        peer = struct.unpack("3i", conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        try:
            pid = fork(peer)
        except FileNotFoundError:
            pid = None  # so has this one
        if pid == 0:
            break
        if pid:
            jobs[pid] = conn
        for fd in fds:
            os.close(fd)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for other in (listener, *jobs.values()):
        other.close()
    for fd in (ended, wake, own_pids):
        os.close(fd)
    return json.loads(request), fds, conn


gc.collect()
gc.freeze()
request, fds, conn = serve()
for fd, standard in zip(fds, (0, 1, 2)):
    os.dup2(fd, standard)
    os.close(fd)
os.setsid()
fcntl.fcntl(conn, fcntl.F_SETOWN, os.getpid())
fcntl.fcntl(conn, fcntl.F_SETSIG, signal.SIGKILL)  # at the connection's end
fcntl.fcntl(conn, fcntl.F_SETFL, os.O_ASYNC)
os.environ.clear()
os.environ.update(request["env"])
os.chdir(request["cwd"])
tempfile.tempdir = None  # TMPDIR is another one
random.seed()
sys.argv = request["argv"]
sys.path[0:1] = [os.path.dirname(sys.argv[0]), *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
try:
    conn.send(b"%d" % os.getpid())
except BrokenPipeError:
    os._exit(1)  # it has ended before it could be told
runpy.run_path(sys.argv[0], run_name="__main__")
