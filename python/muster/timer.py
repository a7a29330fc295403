"""Timers and heartbeats: tell muster's agent that this worker is alive, or when to give up on it.

``with muster.timer.expires(after=60):`` has the agent kill this process when
the block is not left within a minute. ``muster.heartbeat(step)`` says that the
training moves. With PyTorch's own timers::

    from torch.distributed.elastic import timer
    timer.configure(muster.timer.TimerClient())
    with timer.expires(after=60): ...

The agent names its socket in MUSTER_TIMER_SOCKET. Where that is not set, as in
a script that runs by itself, everything here does nothing.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import _local, get_ident
from types import TracebackType
from typing import Any, Callable, TypeVar

from . import _socket
from ._socket import TimerError

__all__ = ["ENV_SOCKET", "TimerClient", "TimerError", "deadline", "expires", "heartbeat"]

TYPE_CHECKING = False
T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

ENV_SOCKET = "MUSTER_TIMER_SOCKET"

_SIGKILL = 9
_IDLE = 4  # connections kept; more threads than that at once open more for a moment
_INT64 = 1 << 63


class TimerClient:
    """Acquires and releases timers of this process, and sends its heartbeats.

    A drop-in for PyTorch's TimerClient. Any number of threads may use one
    client; after a fork the child's timers are the child's own.

    path is the agent's socket, by default what MUSTER_TIMER_SOCKET says; without
    either, or with an empty path, the client does nothing. signal is what the
    agent sends at the deadline; 0 or less has it report and not kill. timeout is how
    many seconds a request waits for an agent that does not answer; the work goes on then.
    """

    def __init__(self, path: str | None = None, *, signal: int = _SIGKILL, timeout: float = 5.0) -> None:
        if signal > 64:
            raise ValueError(f"signal must be a number, 64 at most, got {signal}")
        if not 1e-3 <= timeout < 1e9:
            raise ValueError(f"timeout must be seconds, 0.001 or more, got {timeout}")
        self.path = os.environ.get(ENV_SOCKET, "") if path is None else path
        self._signal = max(signal, 0)
        self._timeout = timeout
        self._idle = _Idle()
        # PyTorch's type hints ask for its abstract class. Importing torch for
        # that would take a second; where it is loaded, joining costs nothing.
        api = sys.modules.get("torch.distributed.elastic.timer.api")
        if api is not None:
            api.TimerClient.register(TimerClient)

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Has the agent end this process at expiration_time, in seconds since
        1970, unless scope_id is released before; infinity is never.

        Acquiring a scope again moves its deadline. When this returns the agent
        has the timer, or does not answer: then there is none, and a warning in
        the log, once. Raises TimerError when the agent cannot be reached or refuses.
        """
        if not self.path:
            return
        if _is_contextlib(scope_id):
            scope_id = _enter_torch()
            try:
                self._acquire(scope_id, expiration_time)
            except BaseException:
                _leave_torch()
                raise
        else:
            self._acquire(scope_id, expiration_time)

    def _acquire(self, scope_id: str, expiration_time: float) -> None:
        scope = _scope(scope_id)
        head = _socket.REQUEST_TIME.pack(
            _socket.VERSION, _socket.ACQUIRE, self._signal, 0, expiration_time, len(scope)
        )
        self._request(head + scope)

    def release(self, scope_id: str) -> None:
        """Takes the timer back. Releasing what is not held is harmless, and so
        is an agent that is gone: its timers are gone with it."""
        if not self.path:
            return
        if _is_contextlib(scope_id):
            scope_id = _leave_torch() or scope_id
        scope = _scope(scope_id)
        frame = _socket.REQUEST_TIME.pack(_socket.VERSION, _socket.RELEASE, 0, 0, 0.0, len(scope)) + scope
        try:
            self._request(frame)
        except _Gone:
            pass

    def heartbeat(self, step: int | None = None) -> bool:
        """Says that this process is alive, and at which step of its work if
        step, a number from 0, is given.

        Never waits for the agent and never raises because of it: returns
        whether the message was sent.
        """
        if not self.path:
            return False
        if step is None:
            step = -1
        elif not 0 <= (step := int(step)) < _INT64:
            raise ValueError(f"step {step} is not a number from 0 to 2**63-1")
        frame = _socket.REQUEST_STEP.pack(_socket.VERSION, _socket.HEARTBEAT, 0, 0, step, 0)
        try:
            self._exchange(frame, _socket.Connection.post)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Closes the connections. The timers stay; the next request connects anew."""
        idle, self._idle = self._idle, _Idle()
        conns, idle.conns = idle.conns, []
        for conn in conns:
            conn.close()

    def _request(self, frame: bytes) -> None:
        try:
            self._exchange(frame, _socket.Connection.request)
        except TimerError:
            raise
        except (TimeoutError, BlockingIOError):  # the latter: too many wait to be connected
            _say_once("the agent does not answer timer requests; is it stopped? The work goes on without its timers")
        except OSError as e:
            raise _Gone(
                f"no timer server at {self.path}: {e.strerror or e}; the agent that set {ENV_SOCKET} is gone or was restarted"
            ) from e

    def _exchange(self, frame: bytes, how: Any) -> None:
        # Whoever takes a connection out of the list has it alone, without a
        # lock: threads, and a signal handler that interrupts one of them,
        # simply get different ones. A fork in the middle leaves no lock held.
        idle = self._idle
        if idle.pid != os.getpid():
            # The agent knows a connection by the process that opened it.
            idle = self._idle = _Idle()
        while True:
            try:
                conn = idle.conns.pop()
                fresh = False
            except IndexError:
                conn = _socket.Connection(self.path, self._timeout)
                fresh = True
            try:
                how(conn, frame)
            except (TimerError, TimeoutError, BlockingIOError) as e:
                if isinstance(e, BlockingIOError):
                    idle.put(conn)  # nothing of the frame was sent
                else:
                    conn.close()
                raise
            except OSError:
                conn.close()
                if fresh:
                    raise
                continue  # the agent may have a new server at the same path
            except BaseException:
                conn.close()  # interrupted: an answer may still come
                raise
            idle.put(conn)
            return

    def __reduce__(self) -> Any:
        return _remake, (self.path, self._signal, self._timeout)


def _remake(path: str, signal: int, timeout: float) -> TimerClient:
    return TimerClient(path, signal=signal, timeout=timeout)


class _Gone(TimerError):
    """Nobody listens."""


class _Idle:
    """The connections of one process that no thread is using."""

    __slots__ = ("conns", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.conns: list[_socket.Connection] = []

    def put(self, conn: _socket.Connection) -> None:
        if len(self.conns) < _IDLE:
            self.conns.append(conn)
        else:
            conn.close()


class expires:
    """Has the agent end this process unless the block is left within ``after`` seconds.

    Without scope the timer is named after the caller's file and line, so nested
    blocks each have their own; a block that is entered again before it is left,
    by recursion or by another thread, has one more. A block inside
    another with the same explicit scope moves the deadline of both. Without
    client, MUSTER_TIMER_SOCKET's agent is told, or nobody where it is not set.
    """

    __slots__ = ("_after", "_client", "_held", "_scope", "_stem")

    def __init__(self, after: float, scope: str | None = None, client: Any = None) -> None:
        self._after = after
        self._client = _default() if client is None else client
        self._scope = scope
        self._stem = ""
        self._held: dict[int, list[str]] = {}  # by thread, since one object may guard blocks of several
        if scope is None and self._client is not None:
            caller = sys._getframe(1)
            self._stem = _stem(caller.f_code.co_filename, caller.f_lineno)

    def __enter__(self) -> None:
        if self._client is None:
            return
        scope = _claim(self._stem) if self._scope is None else self._scope
        try:
            self._client.acquire(scope, time.time() + self._after)
        except BaseException:
            self._drop(scope)
            raise
        self._held.setdefault(get_ident(), []).append(scope)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is None:
            return
        held = self._held[get_ident()]
        scope = held.pop()
        if not held:
            del self._held[get_ident()]
        try:
            self._client.release(scope)
        except TimerError:
            # An agent that refuses is no reason to hide the error that
            # ended the block, nor to end work that is done.
            pass
        finally:
            self._drop(scope)

    def _drop(self, scope: str) -> None:
        if self._scope is None:
            _live.pop(scope, None)


class deadline(expires):
    """Has the agent end this process unless a block, or each call of a function, ends in time::

        with muster.deadline("10m"): ...

        @muster.deadline(60)
        def train_step(batch): ...

    after: seconds, or a text such as "500ms", "60s", "10m", "1h30m".

    In a process that muster has not started it does nothing, and says so once in the log.
    """

    __slots__ = ("_given",)

    def __init__(self, after: float | str, client: Any = None) -> None:
        super().__init__(_seconds(after), "", client)
        self._given = client
        self._scope = None
        caller = sys._getframe(1)
        self._stem = _stem(caller.f_code.co_filename, caller.f_lineno)

    def __enter__(self) -> None:
        if self._client is None:
            _say_once("muster.deadline has no effect: this process is not a worker of muster run")
        super().__enter__()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        import functools

        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & _SUSPENDS:
            raise TypeError(f"{code.co_name} is a coroutine or a generator, whose call ends at once; "
                            "use `with muster.deadline(...)` within it")
        after, client = self._after, self._given

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            timer = deadline(after, client)  # each call has one, in whichever process
            if code is not None:
                timer._stem = _stem(code.co_filename, code.co_firstlineno)
            with timer:
                return function(*args, **kwargs)

        return call


_said: set[str] = set()


def _say_once(what: str) -> None:
    if what not in _said:
        _said.add(what)
        import logging

        logging.getLogger("muster").warning(what)


_SUSPENDS = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(after: float | str) -> float:
    seconds: float = -1.0
    if isinstance(after, str):
        import re

        parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|[smh])", after)
        if "".join(number + unit for number, unit in parts) == after:
            seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        seconds = after
    if not seconds > 0:
        raise ValueError(f"the deadline {after!r} is neither a number of seconds nor a time such as 500ms, 60s or 1h30m")
    return seconds


_live: dict[str, object] = {}  # default scopes in use


def _claim(stem: str) -> str:
    mine = object()
    n = 1
    scope = stem
    while _live.setdefault(scope, mine) is not mine:
        n += 1
        scope = f"{stem}~{n}"
    return scope


def _stem(file: str, line: int) -> str:
    # 1,000 characters have 4,000 bytes at most. The end of a path tells more than its
    # beginning.
    return f"{file[-1000:]}#{line}"


# PyTorch's expires names a timer after the line that calls it, and means the line
# of the with statement; but what calls it is always the same line of contextlib.
# So an inner block would end the outer one's timer. Blocks of a thread are left in
# the opposite order in which they were entered, so a stack tells whose turn it is.
_entered = _local()


def _is_contextlib(scope_id: str) -> bool:
    return "contextlib.py#" in scope_id


def _enter_torch() -> str:
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    scope = _claim(_stem(frame.f_code.co_filename, frame.f_lineno))
    try:
        _entered.scopes.append(scope)
    except AttributeError:
        _entered.scopes = [scope]
    return scope


def _leave_torch() -> str:
    scopes = getattr(_entered, "scopes", None)
    if not scopes:
        return ""
    scope: str = scopes.pop()
    _live.pop(scope, None)
    return scope


_BETWEEN = ("contextlib", "torch.distributed.elastic.timer.api", __name__)


def _scope(scope_id: str) -> bytes:
    scope = scope_id.encode("utf-8", "replace")
    if len(scope) > _socket.MAX_SCOPE:
        raise ValueError(f"scope of {len(scope)} bytes, {scope_id[:40]!r}…: want {_socket.MAX_SCOPE} at most")
    return scope


_client: TimerClient | None = None


def _default() -> TimerClient | None:
    global _client
    path = os.environ.get(ENV_SOCKET)
    if not path:
        return None
    if _client is None or _client.path != path:
        _client = TimerClient(path)
    return _client


def heartbeat(step: int | None = None) -> bool:
    """Says that this process is alive, and at which step of its work, a number
    from 0, if given.

    Costs some 10 microseconds, never waits and never raises because of the agent.
    Returns whether it was sent; without MUSTER_TIMER_SOCKET it was not.
    """
    client = _default()
    return client is not None and client.heartbeat(step)
