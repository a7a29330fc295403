"""Workers as forks: of the launching process (fork), or of a fresh interpreter that
has loaded the function already (forkserver).

The binary cannot fork a Python process that it did not start. So each worker that it
starts is a stub (_stub), which hands its environment, its stdout and stderr, its
cgroup and its CPUs to a server over a Unix socket, passes on the signals that it
gets, and ends as the fork ends. Where the stub is killed the fork is killed.
"""

from __future__ import annotations

import array
import io
import json
import os
import selectors
import signal
import socket
import struct
import sys
from typing import Any, Dict, List, Optional, Sequence

from . import _payload, _stub, _worker
from .errors import ConfigError, LaunchError

#: What a stub passes on to its fork.
PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
MAX_REQUEST = 8 << 20
_LENGTH = struct.Struct("<I")
_STATUS = struct.Struct("<i")


class Handle:
    """The launching process's side of the server: it lives until close."""

    def __init__(self, life: int, process: Any) -> None:
        self._life = life
        self._process = process

    def close(self) -> None:
        """Ends the server and whatever it has forked."""
        os.close(self._life)
        self._process.wait() if hasattr(self._process, "wait") else self._process.join()


def start(method: str, job: str, function: _payload.Function, args: Sequence[Any]) -> Handle:
    """Starts a server for the stubs of this job, and waits until it is ready."""
    if not hasattr(os, "fork"):
        raise ConfigError("start_method %r needs a system that can fork" % method, 2)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind(listener, job)
        life, ours = os.pipe()
        try:
            if method == "fork":
                return Handle(ours, _fork(listener, life, ours, job, function, args))
            return Handle(ours, _spawn(listener, life, job))
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(life)
    finally:
        listener.close()


def _bind(listener: socket.socket, job: str) -> None:
    dir = os.open(job, os.O_RDONLY)
    try:
        listener.bind(_stub.address(os.path.join(job, "fork"), dir))
    except OSError as e:
        raise LaunchError("a socket in %s: %s; set TMPDIR to a shorter path" % (job, e)) from e
    finally:
        os.close(dir)
    listener.listen(128)


def _fork(listener: socket.socket, life: int, ours: int, job: str, function: _payload.Function, args: Sequence[Any]) -> Any:
    import multiprocessing

    def child() -> None:
        os.close(ours)  # or it would never see this process's end
        _detach()
        serve(listener, life, job, function, args)

    process = multiprocessing.get_context("fork").Process(target=child, name="muster-fork")
    process.start()
    return process


def _spawn(listener: socket.socket, life: int, job: str) -> Any:
    import subprocess

    code = "import sys; sys.path.insert(0, %r); from muster._forkserver import main; main(%r, %d, %d)" % (
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))), job, listener.fileno(), life)
    from .api import _interpreter_flags

    return subprocess.Popen(
        [sys.executable, "-u", *_interpreter_flags(), "-c", code],
        stdin=subprocess.DEVNULL, pass_fds=(listener.fileno(), life), start_new_session=True)


def main(job: str, listener: int, life: int) -> None:
    """The forkserver: loads the function once, for all workers and attempts."""
    _detach()
    failed: Optional[Exception] = None
    function: _payload.Function = str
    args: Sequence[Any] = ()
    try:
        function, args = _worker.load(job)
    except Exception as e:
        failed = e  # each worker will say so
    serve(socket.socket(fileno=listener), life, job, function, args, failed)


def _detach() -> None:
    """Leaves the terminal's process group: the launching process says when to end."""
    try:
        os.setpgid(0, 0)
    except OSError:
        pass  # it leads a session
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def serve(
    listener: socket.socket, life: int, job: str, function: _payload.Function, args: Sequence[Any],
    failed: Optional[Exception] = None,
) -> None:
    """Forks a worker for each stub that connects, until the other end of life closes."""
    _Server(listener, life, job, function, args, failed).run()


class _Server:
    def __init__(
        self, listener: socket.socket, life: int, job: str, function: _payload.Function, args: Sequence[Any],
        failed: Optional[Exception],
    ) -> None:
        import multiprocessing

        self.context = multiprocessing.get_context("fork")
        self.listener, self.life, self.job = listener, life, job
        self.function, self.args, self.failed = function, args, failed
        self.workers: Dict[socket.socket, Any] = {}
        self.orphans: List[Any] = []  # their stubs are gone, so they are killed
        self.inherited: List[int] = []
        self.selector = selectors.DefaultSelector()
        self.prctl = _prctl()

    def run(self) -> None:
        wake, waker = os.pipe()
        for fd in (wake, waker):
            os.set_blocking(fd, False)
        self.inherited = [wake, waker]
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(self.life, selectors.EVENT_READ)
        self.selector.register(wake, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj == self.life:
                    self.end()
                    return
                if key.fileobj == wake:
                    os.read(wake, 4096)
                elif key.fileobj is self.listener:
                    self.accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self.workers:
                    self.hear(key.fileobj)
            self.reap()

    def accept(self) -> None:
        """Forks for one stub. The stub writes its request at once, so reading it
        makes nobody wait."""
        stub, _ = self.listener.accept()
        fds: List[int] = []
        try:
            request = _receive(stub, fds)
            if request is None:
                stub.close()
                return
            process = self.context.Process(target=self.work, args=(stub, request, fds), name="worker-%d" % request["local_rank"])
            # Held until the fork can act on them: here they are ignored.
            signal.pthread_sigmask(signal.SIG_BLOCK, PASSED)
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED)
        except (OSError, ValueError) as e:
            sys.stderr.write("muster: fork a worker: %s\n" % e)
            stub.close()  # which ends it
            return
        finally:
            for fd in fds:
                os.close(fd)
        self.workers[stub] = process
        self.selector.register(stub, selectors.EVENT_READ)

    def hear(self, stub: socket.socket) -> None:
        """A stub passes on a signal, or is gone."""
        try:
            numbers = stub.recv(64)
        except OSError:
            numbers = b""
        pid = self.workers[stub].pid
        if not numbers:
            self.forget(stub)
            _kill(pid, signal.SIGKILL)
            return
        for number in numbers:
            _kill(pid, number)

    def forget(self, stub: socket.socket) -> None:
        self.selector.unregister(stub)
        stub.close()
        self.orphans.append(self.workers.pop(stub))

    def reap(self) -> None:
        """Tells each stub how its fork has ended."""
        self.orphans = [process for process in self.orphans if process.exitcode is None]
        for stub, process in list(self.workers.items()):
            status = process.exitcode
            if status is None:
                continue
            _kill_group(process.pid)  # what it left behind
            try:
                stub.sendall(_STATUS.pack(status))
            except OSError:
                pass
            self.selector.unregister(stub)
            stub.close()
            del self.workers[stub]

    def end(self) -> None:
        processes = [*self.workers.values(), *self.orphans]
        for process in processes:
            if process.exitcode is None:
                _kill(process.pid, signal.SIGKILL)
        for process in processes:
            process.join()

    def work(self, stub: socket.socket, request: Dict[str, Any], fds: List[int]) -> None:
        """The fork: takes over what the stub was given, and calls the function."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, *PASSED):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED)
        os.setsid()
        if self.prctl is not None:
            self.prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        for fd, target in zip(fds, (1, 2)):
            os.dup2(fd, target)
        self.selector.close()
        for other in [stub, self.listener, *self.workers]:
            other.close()
        for fd in [*fds, self.life, *self.inherited]:
            os.close(fd)
        os.environ.clear()
        os.environ.update(request["environ"])
        _join(request)
        sys.stdout, sys.stderr = _stream(1, "strict"), _stream(2, "backslashreplace")
        local_rank = int(request["local_rank"])
        _worker.begin(self.job, local_rank)
        if self.failed is not None:
            _worker.fail(self.job, local_rank, self.failed, self.failed.__traceback__)
            raise SystemExit(1)
        _worker.call(self.job, local_rank, self.function, self.args)


def _kill(pid: int, number: int) -> None:
    """Signals a fork that has not been waited for, and what it has started, as muster
    does with a worker."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, number)
            return
        except ProcessLookupError:
            continue  # it leads no session yet
        except PermissionError:
            return


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass  # nothing is left


def _join(request: Dict[str, Any]) -> None:
    """Moves into the stub's cgroup, if there is one of its own, and onto its CPUs."""
    for path in request.get("cgroups", []):
        try:
            with open(path, "w") as f:
                f.write("0")
        except OSError:
            pass  # without the right to, it stays where it is
    if request.get("cpus") and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, request["cpus"])
        except OSError:
            pass


def _stream(fd: int, errors: str) -> io.TextIOWrapper:
    """What python -u has for a stream: nothing is held back."""
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding=getattr(sys.__stdout__, "encoding", None), errors=errors, write_through=True)


def _prctl() -> Any:
    if sys.platform != "linux":
        return None
    import ctypes

    return ctypes.CDLL(None).prctl


def _receive(stub: socket.socket, fds: List[int]) -> Optional[Dict[str, Any]]:
    """Reads a request, and the descriptors that come with its first byte."""
    size = array.array("i").itemsize
    data, ancillary, _, _ = stub.recvmsg(_LENGTH.size, socket.CMSG_LEN(2 * size))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(content[: len(content) - len(content) % size])
            fds.extend(numbers)
    data = _exactly(stub, _LENGTH.size, data)
    if len(data) < _LENGTH.size:
        return None
    length, = _LENGTH.unpack(data)
    if length > MAX_REQUEST or len(fds) != 2:
        raise ValueError("a request of %d bytes with %d descriptors" % (length, len(fds)))
    body = _exactly(stub, length, b"")
    if len(body) < length:
        return None
    request = json.loads(body.decode("utf-8", "surrogateescape"))
    if not isinstance(request, dict):
        raise ValueError("a request that is no object")
    return request


def _exactly(stub: socket.socket, length: int, data: bytes) -> bytes:
    while len(data) < length:
        part = stub.recv(length - len(data))
        if not part:
            break
        data += part
    return data
