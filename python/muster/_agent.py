"""Runs the binary as a child that gets this process's signals."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import Any, Callable, Dict, List, MutableMapping, Optional, Tuple

from ._binary import INTERPRETER, interpreter_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import _forkserver

#: Held while a child is reaped, or signalled from another thread.
_reaping = threading.Lock()


def run(
    line: List[str], environ: Dict[str, str], signals: str, quiet_stdin: bool,
    started: Callable[["subprocess.Popen[bytes]"], None], server: "Optional[_forkserver.Server]" = None,
) -> Tuple[Optional[int], Optional[int]]:
    """Runs the command line and waits for its end. Returns its status, as subprocess
    has it, or None where another part of the program has taken that, and the first of the signals that came meanwhile, which were passed on.
    Any other exception, KeyboardInterrupt among them, stops the child first."""
    with _Signals(signals) as passing:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()  # before what the workers say
            except (AttributeError, OSError, ValueError):
                pass
        more: Dict[str, Any] = {}
        if server is not None:
            environ = {**environ, server.ENV: str(server.agent.fileno())}
            more = {"pass_fds": (server.agent.fileno(),), "preexec_fn": server.begin}
            server.expect()
        child = subprocess.Popen(
            _own_session(line), env=environ, stdin=subprocess.DEVNULL if quiet_stdin else None, **more)
        if server is not None:
            server.close()
        try:
            started(child)
            passing.to(child)
            passing.until_end_of(child)
            _until_zombie(child)
            with _reaping:
                status = _reap(child)
        except BaseException:
            child.terminate()
            try:
                child.wait()
            except BaseException:
                child.kill()  # it takes its workers along
                child.wait()
                raise
            raise
        return status, passing.first


def _reap(child: "subprocess.Popen[bytes]") -> Optional[int]:
    # Popen.wait says 0 where SIGCHLD is ignored, or where another thread waits for any child.
    try:
        _, status = os.waitpid(child.pid, 0)
    except ChildProcessError:
        child.wait()
        return None
    child.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return child.returncode


def follow(environ: MutableMapping[str, str], dir: str) -> None:
    """Has workers' scripts and modules run under this program's debugger if that is made of pydevd (VS Code's, PyCharm's):
    it follows into the Python programs that this one starts, but not through the binary."""
    monkey = sys.modules.get("_pydev_bundle.pydev_monkey")
    if monkey is None or INTERPRETER not in environ:
        return
    words = monkey.patch_args([environ[INTERPRETER], "-u", *interpreter_flags(), "script"])
    if "--file" in words:
        under = " ".join(map(shlex.quote, words[:words.index("--file")]))
        environ[INTERPRETER] = os.path.join(dir, "python")
        with open(os.open(environ[INTERPRETER], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w") as f:
            f.write('#!/bin/sh\nwhile :; do case "$1" in -m) shift; exec %s --module --file "$@";; -c) exec %s "$@";; '
                    '-*) shift;; *) exec %s --file "$@";; esac; done\n' % (under, shlex.quote(words[0]), under))


def terminate(child: "subprocess.Popen[bytes]") -> None:
    """Tells the child of a run in another thread to end, if it has not."""
    with _reaping:
        child.terminate()


def _own_session(line: List[str]) -> List[str]:
    if not sys.executable:
        return line
    helper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_exec.py")
    # An interpreter that needs PYTHONHOME may not ignore it.
    alone = [] if os.environ.get("PYTHONHOME") and not sys.flags.ignore_environment else ["-I"]
    return [sys.executable, *alone, "-S", helper, str(os.getpid()), *line]


_END = b"\0"  # no signal has this number


def _wait_and_tell(child: "subprocess.Popen[bytes]", waker: int) -> None:
    _until_zombie(child)
    os.write(waker, _END)


def _until_zombie(child: "subprocess.Popen[bytes]") -> None:
    if hasattr(os, "waitid"):
        # The process stays a zombie, so that no signal can hit another one of its number.
        try:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # after an exception the main thread was first
    else:
        child.wait()


class _Signals:
    """Passes signals on to a child, in the main thread, where Python can handle them."""

    def __init__(self, names: str) -> None:
        self.first: Optional[int] = None
        self._early: List[int] = []
        self._child: Optional["subprocess.Popen[bytes]"] = None
        self._before: Dict[int, Any] = {}
        self._waiter: Optional[threading.Thread] = None
        self._pipe: Tuple[int, ...] = ()
        self._numbers = [
            int(getattr(signal, name.strip())) for name in names.split(",")
            if name.strip().startswith("SIG") and isinstance(getattr(signal, name.strip(), None), signal.Signals)
        ]

    def __enter__(self) -> "_Signals":
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in self._numbers:
            if number in (signal.SIGKILL, signal.SIGSTOP):
                continue  # the binary says what is wrong with it
            before = signal.getsignal(number)
            if number == signal.SIGHUP and before == signal.SIG_IGN:
                continue  # nohup
            self._before[number] = before
            signal.signal(number, self._pass)
        return self

    def to(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        while self._early:
            child.send_signal(self._early.pop(0))

    def until_end_of(self, child: "subprocess.Popen[bytes]") -> None:
        """Waits for the child. A signal that comes just before a blocking call does
        not interrupt it, and its handler would not run before the child's end; so this
        waits for what the interpreter writes for each signal."""
        if not self._before:
            return
        wake, waker = self._pipe = os.pipe()
        os.set_blocking(waker, False)
        others = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._waiter = threading.Thread(target=_wait_and_tell, args=(child, waker), name="muster-wait", daemon=True)
        try:
            self._waiter.start()
            numbers = b""
            while _END not in numbers:
                numbers = os.read(wake, 512)  # the handlers run when it returns
                if others >= 0:
                    os.write(others, numbers.replace(_END, b""))
        finally:
            signal.set_wakeup_fd(others)

    def _pass(self, number: int, frame: Optional[FrameType]) -> None:
        if self.first is None:
            self.first = number
        if self._child is None:
            self._early.append(number)
        else:
            self._child.send_signal(number)

    def __exit__(self, *_: object) -> None:
        if self._waiter is not None and self._waiter.ident is not None:
            self._waiter.join()  # the child has ended
        for fd in self._pipe:
            os.close(fd)
        for number, before in self._before.items():
            signal.signal(number, before if before is not None else signal.SIG_DFL)
