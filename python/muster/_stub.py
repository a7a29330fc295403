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
from typing import Dict, List, Optional, Tuple, Union

PASSED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")


def main(job: str, local_rank: int) -> None:
    """Has the fork made and ends as it ends."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    environ = dict(os.environ)
    relay = Relay(environ, job, local_rank)
    request: Dict[str, Union[int, List[int], List[str], Dict[str, str]]] = {
        "local_rank": local_rank, "environ": environ, "cgroups": _cgroups()}
    if hasattr(os, "sched_getaffinity"):
        request["cpus"] = sorted(os.sched_getaffinity(0))
    body = json.dumps(request).encode()
    signals = _signals()
    try:
        server.connect(address(os.path.join(job, "fork"), os.open(job, os.O_RDONLY)))
        data = struct.pack("<I", len(body)) + body
        sent = server.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))])
        if sent < len(data):  # or a fork that has ended already would look like an error
            server.sendall(data[sent:])
    except OSError as e:
        sys.stderr.write("muster: the process that forks the workers has ended: %s\n" % e)
        os._exit(1)
    status = _status(server, signals, relay)
    if status < 0:
        _die(-status)
    os._exit(status)


def _status(server: socket.socket, signals: int, relay: "Relay") -> int:
    """Waits for the fork's end, and passes signals and timers on meanwhile."""
    data = b""
    while len(data) < 4:
        ready = select.select([server.fileno(), signals, *relay.waits()], [], [])[0]
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
        relay.serve(ready)
    return int(struct.unpack("<i", data)[0])


class Relay:
    """Timers and heartbeats of the fork. muster believes the processes that it has
    started and their children, of which the fork is none; so they come through the
    stub, as the stub's own."""

    ENV = "MUSTER_TIMER_SOCKET"
    LARGEST = 1 << 13  # packets have half of it at most

    def __init__(self, environ: Dict[str, str], job: str, local_rank: int) -> None:
        self._to = environ.get(self.ENV, "")
        self._peers: Dict[int, Tuple[socket.socket, socket.socket]] = {}
        self._listener: Optional[socket.socket] = None
        if not self._to:
            return
        path = os.path.join(job, "timer.%d" % local_rank)
        if os.path.exists(path):
            os.unlink(path)  # of an earlier attempt
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address(path, os.open(job, os.O_RDONLY)))
        self._listener.listen(64)
        environ[self.ENV] = path

    def waits(self) -> List[int]:
        return [*self._peers, *([self._listener.fileno()] if self._listener is not None else [])]

    def serve(self, ready: List[int]) -> None:
        for fd in ready:
            if fd in self._peers:
                self._pass(fd)
            elif self._listener is not None and fd == self._listener.fileno():
                self._accept(self._listener)

    def _accept(self, listener: socket.socket) -> None:
        ours, _ = listener.accept()
        theirs = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            dir = os.open(os.path.dirname(self._to), os.O_RDONLY)
            try:
                theirs.connect(address(self._to, dir))
            finally:
                os.close(dir)
        except OSError:
            ours.close()  # the agent's watchdog is gone, which the client will say
            theirs.close()
            return
        self._peers[ours.fileno()], self._peers[theirs.fileno()] = (ours, theirs), (theirs, ours)

    def _pass(self, fd: int) -> None:
        """Hands one packet over. One for which there is no room is lost: a heartbeat is
        worth no wait, and other clients wait for an answer."""
        source, target = self._peers[fd]
        try:
            packet = source.recv(self.LARGEST, socket.MSG_DONTWAIT)
            if packet:
                target.send(packet, socket.MSG_DONTWAIT)
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        for one in (source, target):
            del self._peers[one.fileno()]
            one.close()


def address(path: str, dir: int) -> str:
    """What to bind or connect a Unix socket to that is at path, whose directory is
    open as dir. The name has room for about a hundred bytes, which a directory can
    exceed."""
    if len(os.fsencode(path)) > 100 and os.path.isdir("/proc/self/fd"):
        return "/proc/self/fd/%d/%s" % (dir, os.path.basename(path))
    return path


def _signals() -> int:
    """A descriptor from which the numbers of the signals that come can be read."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs)
    for name in PASSED:
        signal.signal(getattr(signal, name), lambda number, frame: None)
    return ours


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
