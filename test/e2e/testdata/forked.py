"""Imports torchrun once, and forks an agent for each request on the socket at descriptor 3.

A request is a JSON object of argv and env, with stdout and stderr as descriptors; the answer is
the agent's process ID. The agent is a child of the process that has started this one.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import tempfile

from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, static_tcp_rendezvous  # noqa: F401: else imported late
from torch.distributed.run import main

CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, SYS_CLONE = 0x8000, 0x200000, 0x1000000, 56
PR_GET_TID_ADDRESS = 40

libc = ctypes.PyDLL(None, use_errno=True)  # which keeps the interpreter's lock
own_id = ctypes.c_void_p()  # where libc keeps the thread's ID
if os.uname().machine != "x86_64" or len(os.listdir("/proc/self/task")) > 1 or libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(own_id)):
    sys.exit("a fork may differ from a start")


def fork():
    """os.fork, but the child has the same parent as this process."""
    flags = CLONE_PARENT | CLONE_CHILD_CLEARTID | CLONE_CHILD_SETTID | signal.SIGCHLD
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = libc.syscall(ctypes.c_long(SYS_CLONE), ctypes.c_long(flags), None, None, own_id, None)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


gc.collect()
gc.freeze()
tests = socket.socket(fileno=3)
tests.send(b"ready")
while True:
    request, fds, _, _ = socket.recv_fds(tests, 1 << 20, 2)
    if not request:
        os._exit(0)
    pid = fork()
    if pid == 0:
        break
    for fd in fds:
        os.close(fd)
    tests.send(b"%d" % pid)

tests.close()
for fd, standard in zip(fds, (1, 2)):
    os.dup2(fd, standard)
    os.close(fd)
request = json.loads(request)
os.environ.clear()
os.environ.update(request["env"])
tempfile.tempdir = None  # TMPDIR is another one
sys.argv = request["argv"]
sys.path[0] = os.path.dirname(sys.argv[0])
sys.exit(main())
