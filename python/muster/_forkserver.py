"""Workers as forks: of the launching process (fork), or of a fresh interpreter that
has loaded the function already (forkserver).

A worker has to be the agent's child, and so has the server that forks it. So the process
that is to become the agent forks the server, before it executes the binary. From then on
the server is a template as those of warm starts: the agent sends it that program
(process/warm/template.py).
"""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
from typing import Any, Dict, Optional, Sequence, Set

from . import _binary, _payload, _worker
from .errors import ConfigError


class Server:
    """Both ends of the agent's socket to the server, until the agent has started."""

    #: Where the agent finds the descriptor of its end.
    ENV = "MUSTER_TEMPLATE"

    def __init__(self, method: str, job: str, function: _payload.Function, args: Sequence[Any]) -> None:
        if sys.platform != "linux":
            raise ConfigError("start_method %r needs Linux" % method, 2)
        self._method, self._job, self._function, self._args = method, job, function, args
        self.agent, self._server = socket.socketpair()
        self._known: Set[str] = set()

    def close(self) -> None:
        self.agent.close()
        self._server.close()

    def expect(self) -> None:
        """Called just before the process is forked that calls begin."""
        self._known = set(os.listdir("/proc/self/fd"))

    def begin(self) -> None:
        """Forks the server, in the process that is to become the agent."""
        if os.fork() != 0:
            return
        try:
            self.agent.close()
            for name in set(os.listdir("/proc/self/fd")) - self._known:
                try:
                    os.close(int(name))  # or who starts the agent would wait for this process
                except OSError:
                    pass
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            body = b"server\0%d" % os.getpid()
            self._server.sendall(len(body).to_bytes(4, "little") + body)
            if self._method == "fork":
                serve(self._server, self._job, self._function, self._args)
            fd = self._server.fileno()
            os.set_inheritable(fd, True)
            code = (
                "import sys; sys.path[:1] == [''] and sys.path.pop(0); sys.path.insert(0, %r); import muster; del sys.path[0]; "
                "from muster._forkserver import main; main(%r, %d)"
            ) % (
                os.path.dirname(os.path.dirname(os.path.abspath(__file__))), self._job, fd)
            os.execv(sys.executable, [sys.executable, "-u", *_binary.interpreter_flags(), "-c", code])
        except BaseException as e:
            os.write(2, ("muster: the process that forks the workers: %s: %s\n" % (type(e).__name__, e)).encode("utf-8", "replace"))
        finally:
            os._exit(1)


def main(job: str, fd: int) -> None:
    """The forkserver: loads the function once, for all workers and attempts."""
    failed: Optional[Exception] = None
    function: _payload.Function = str
    args: Sequence[Any] = ()
    try:
        function, args = _worker.load(job)
    except Exception as e:
        failed = e  # each worker will say so
    serve(socket.socket(fileno=fd), job, function, args, failed)


def serve(
    agent: socket.socket, job: str, function: _payload.Function, args: Sequence[Any], failed: Optional[Exception] = None
) -> None:
    """Runs the agent's template, which forks a worker whenever the agent asks for one, until the
    agent has ended. It does not return."""
    size = int.from_bytes(_exactly(agent, 4), "little")
    source = _exactly(agent, size)

    def call(environ: Dict[str, str], local_rank: int) -> None:
        """What a fork does, once it has the descriptors of a worker."""
        import multiprocessing

        def work() -> None:
            os.environ.clear()
            os.environ.update(environ)
            sys.stdout, sys.stderr = _stream(1, "strict"), _stream(2, "backslashreplace")
            _worker.begin(job, local_rank)
            if failed is not None:
                _worker.fail(job, local_rank, failed, failed.__traceback__)
                raise SystemExit(1)
            _worker.call(job, local_rank, function, args)

        process: Any = multiprocessing.get_context("fork").Process(target=work, name="worker-%d" % local_rank)
        os._exit(process._bootstrap())

    exec(compile(source, "<muster warm>", "exec"), {"__name__": "muster_warm", "AGENT": agent.detach(), "CALL": call})


def _exactly(agent: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = agent.recv(size - len(data))
        if not part:
            os._exit(0)  # the agent is gone
        data += part
    return data


def gone() -> None:
    """What a worker says that could not be forked from the launching process."""
    sys.exit("muster: the process that forks the workers has ended")


def _stream(fd: int, errors: str) -> io.TextIOWrapper:
    """What python -u has for a stream: nothing is held back."""
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding=getattr(sys.__stdout__, "encoding", None), errors=errors, write_through=True)
