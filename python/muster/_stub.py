"""What the binary starts for a worker that is a fork: see _forkserver."""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import struct
import sys
from typing import Dict, List, Union

PASSED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")


def main(job: str, local_rank: int) -> None:
    """Has the fork made and ends as it ends."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    request: Dict[str, Union[int, List[int], List[str], Dict[str, str]]] = {
        "local_rank": local_rank, "environ": dict(os.environ), "cgroups": _cgroups()}
    if hasattr(os, "sched_getaffinity"):
        request["cpus"] = sorted(os.sched_getaffinity(0))
    body = json.dumps(request).encode()
    signals = _signals()
    try:
        server.connect(address(job, os.open(job, os.O_RDONLY)))
        data = struct.pack("<I", len(body)) + body
        sent = server.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))])
        if sent < len(data):  # or a fork that has ended already would look like an error
            server.sendall(data[sent:])
    except OSError as e:
        sys.stderr.write("muster: the process that forks the workers has ended: %s\n" % e)
        os._exit(1)
    status = _status(server, signals)
    if status < 0:
        _die(-status)
    os._exit(status)


def address(job: str, dir: int) -> str:
    """Where the server of a job listens, whose directory is open as dir. The name of a
    socket has room for about a hundred bytes, which a directory can exceed."""
    path = os.path.join(job, "fork")
    if len(os.fsencode(path)) > 100 and os.path.isdir("/proc/self/fd"):
        return "/proc/self/fd/%d/fork" % dir
    return path


def _signals() -> int:
    """A descriptor from which the numbers of the signals that come can be read."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs)
    for name in PASSED:
        signal.signal(getattr(signal, name), lambda number, frame: None)
    return ours


def _status(server: socket.socket, signals: int) -> int:
    """Waits for the fork's end, and passes signals on meanwhile."""
    data = b""
    while len(data) < 4:
        ready = select.select([server.fileno(), signals], [], [])[0]
        try:
            if signals in ready:
                server.sendall(os.read(signals, 64))
            part = server.recv(4 - len(data)) if server.fileno() in ready else None
        except ConnectionError:
            part = b""
        if part == b"":
            sys.stderr.write("muster: the process that forks the workers has ended\n")
            return 1
        data += part or b""
    return int(struct.unpack("<i", data)[0])


def _die(number: int) -> None:
    """Ends by the same signal, without a core of its own."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _cgroups() -> List[str]:
    """The cgroup.procs files of this process's cgroup v2."""
    try:
        with open("/proc/self/cgroup") as f:
            lines = f.read().split("\n")
    except OSError:
        return []
    for line in lines:
        if line.startswith("0::/") and len(line) > 4:
            return ["/sys/fs/cgroup/" + line[4:] + "/cgroup.procs", "/sys/fs/cgroup/unified/" + line[4:] + "/cgroup.procs"]
    return []
