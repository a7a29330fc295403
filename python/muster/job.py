"""run and start: a function or a script as a job, with every option of ``muster run``."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from types import TracebackType
from typing import Any, Callable, Dict, Generic, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union, cast, overload

from . import _agent, _flags
from ._options import VARIABLES, Options
from .api import Launch
from .errors import TORCH_API, ConfigError, SignalException, like_torch

TYPE_CHECKING = False
T = TypeVar("T")
Count = Union[int, str]
Line = Tuple[List[str], List[str], str]  # options, what follows them, and the signals to pass on
if TYPE_CHECKING:
    from typing_extensions import Literal, TypeVarTuple, Unpack

    Ts = TypeVarTuple("Ts")


@overload
def run(fn: str, args: Sequence[object] = ..., *, nproc_per_node: Count = ..., **options: "Unpack[Options]") -> Dict[int, None]: ...
@overload
def run(fn: Callable[[], T], args: Tuple[()] = ..., *, nproc_per_node: Count = ..., **options: "Unpack[Options]") -> Dict[int, T]: ...
@overload
def run(
    fn: "Callable[[Unpack[Ts]], T]", args: "Tuple[Unpack[Ts]]", *, nproc_per_node: Count = ..., **options: "Unpack[Options]"
) -> Dict[int, T]: ...
def run(fn: Any, args: Sequence[Any] = (), *, nproc_per_node: Count = "auto", **options: Any) -> Any:
    """Runs a function or a script on the workers of this host, and waits for the end.

    fn: a function, or the path of a script.
    args: the function's arguments as a tuple, or the script's.
    nproc_per_node: how many workers; "auto" is one for each GPU, or without GPUs for
        each core.
    options: those of ``muster run``, with underscores. None is the same as not given.
        Variables PET_... and MUSTER_CONFIG have no effect, other MUSTER_... have.

    Returns what the function returned, by global rank, for the workers of this host;
    a script returns nothing. Raises ChildFailedError if workers failed, with the cause
    as its text; the report is on stderr and, with read_report, in the directory
    log_dir. Raises SignalException if a signal stopped the job, ConfigError and
    LaunchError. In the main thread signals_to_handle are passed on to the workers.
    """
    launch, line = _prepare("run", fn, args, nproc_per_node, options)
    try:
        launch.run(*line)
        return launch.values()
    finally:
        launch.close()


@overload
def start(fn: str, args: Sequence[object] = ..., *, nproc_per_node: Count = ..., **options: "Unpack[Options]") -> "Job[None]": ...
@overload
def start(fn: Callable[[], T], args: Tuple[()] = ..., *, nproc_per_node: Count = ..., **options: "Unpack[Options]") -> "Job[T]": ...
@overload
def start(
    fn: "Callable[[Unpack[Ts]], T]", args: "Tuple[Unpack[Ts]]", *, nproc_per_node: Count = ..., **options: "Unpack[Options]"
) -> "Job[T]": ...
def start(fn: Any, args: Sequence[Any] = (), *, nproc_per_node: Count = "auto", **options: Any) -> Any:
    """The same as run, but returns at once. The job ends with the program at the latest.

    Returns a Job. Raises ConfigError if the function or its arguments cannot be sent.
    """
    launch, line = _prepare("start", fn, args, nproc_per_node, options)
    return Job(launch, line)


class Job(Generic[T]):
    """A job that start has started. Any thread may use it. As a context manager it
    stops the job at the end of the block.

    pid: the process of ``muster run``.
    log_dir: where logs and reports are.
    """

    def __init__(self, launch: Launch, line: Line) -> None:
        self.pid = 0
        self.log_dir = launch.log_dir
        self._launch = launch
        self._owner = os.getpid()
        self._values: Dict[int, T] = {}
        self._error: Optional[BaseException] = None
        self._state: 'Literal["running", "succeeded", "failed", "stopped"]' = "running"
        self._run_id = ""
        self._stopped = False
        self._begun, self._ended = threading.Event(), threading.Event()
        # The agent gets SIGTERM when the thread that started it ends.
        threading.Thread(target=self._work, args=(line,), name="muster-job", daemon=True).start()
        self._begun.wait()
        if not self.pid:
            self._ended.wait()
            assert self._error is not None
            raise self._error
        atexit.register(self.stop)

    def _work(self, line: Line) -> None:
        def begun(child: Any) -> None:
            self.pid = child.pid
            self._begun.set()

        state: 'Literal["succeeded", "failed", "stopped"]' = "failed"
        try:
            self._launch.run(*line, started=begun)
            self._values = self._launch.values()
            state = "succeeded"
        except BaseException as e:
            self._error = e
            outcome = self._launch.said("outcome")
            if self._stopped and outcome != "failed":
                self._error = like_torch(SignalException, TORCH_API)("the job was stopped", signal.SIGTERM)
                outcome = "stopped"
            if outcome in ("stopped", "preempted"):
                state = "stopped"
        finally:
            self._run_id = self._launch.said("run_id")
            self._launch.close()
            self._state = state
            self._ended.set()
            self._begun.set()
            atexit.unregister(self.stop)

    @property
    def state(self) -> 'Literal["running", "succeeded", "failed", "stopped"]':
        """running, succeeded, failed or stopped."""
        return self._state

    @property
    def run_id(self) -> str:
        """The job's ID; "" in the first moments, until the agent has chosen one."""
        return self._run_id or self._launch.said("run_id")

    def wait(self, timeout: Optional[float] = None) -> Dict[int, T]:
        """Waits for the end; returns and raises what run does.

        Raises TimeoutError if the job still runs after timeout seconds; it runs on.
        Raises SignalException if stop has ended it.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError("the job still runs after %g s" % cast(float, timeout))
        if self._error is not None:
            raise self._error
        return self._values

    def stop(self) -> None:
        """Stops the job as SIGTERM does: the workers get it and have shutdown_timeout.
        Returns when everything has ended; a job that has ended stays as it is."""
        if os.getpid() != self._owner:
            return  # the job is the parent's
        child = self._launch.child
        if child is not None and not self._ended.is_set():
            self._stopped = True
            _agent.terminate(child)
        self._ended.wait()

    def __enter__(self) -> "Job[T]":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.stop()


def _prepare(caller: str, fn: Any, args: Sequence[Any], nproc_per_node: Count, options: Dict[str, Any]) -> Tuple[Launch, Line]:
    options = {name: value for name, value in options.items() if value is not None}
    for name in options:
        if name not in Options.__annotations__:
            from difflib import get_close_matches

            near = get_close_matches(name, Options.__annotations__, 1)
            raise TypeError("%s() has no option %r%s" % (caller, name, "; did you mean %r?" % near[0] if near else ""))
    if isinstance(args, str):
        raise TypeError("args must be a sequence of arguments, got the string %r" % args)
    method = options.pop("start_method", "spawn")
    if method not in _flags.START_METHODS:
        raise ConfigError("start_method must be one of %s, got %r" % (", ".join(_flags.START_METHODS), method), 2)
    if callable(fn):
        for name in ("module", "no_python", "run_path"):
            if options.get(name):
                raise ConfigError("%s is for a script; %s runs a function" % (name, caller), 2)
    log_dir = os.fspath(options.pop("log_dir", ""))
    signals = [_word(options.get("signals_to_handle", _flags.SIGNALS)),
               _word(options.get("preemption_signals", os.environ.get("MUSTER_PREEMPTION_SIGNALS", "")))]
    if isinstance(fn, os.PathLike):
        fn = os.fspath(fn)
    launch = Launch(fn, args, log_dir and os.path.abspath(log_dir), not (options.get("redirects") or options.get("tee")), brief=True)
    try:
        line = ["--nproc-per-node=%s" % _word(nproc_per_node), "--log-dir=" + launch.log_dir]
        bad: List[str] = []
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            if isinstance(value, bool):
                line += [flag] if value else []
                if not value and name in VARIABLES:  # no option says so
                    launch.variables[VARIABLES[name]] = "0"
                continue
            words = [value]
            if name in ("env", "env_file") and not isinstance(value, (str, os.PathLike)):  # once for each
                words = [k if v is None else "%s=%s" % (k, v) for k, v in value.items()] if isinstance(value, Mapping) else value
            elif isinstance(value, Mapping):
                words = [(_flags.streams if name in ("redirects", "tee") else _flags.pairs)(name, value, bad)]
            line += ["%s=%s" % (flag, _word(word)) for word in words]
        if bad:
            raise ConfigError("; ".join(bad), 2)
        command = launch.function(method, bool(options.get("warm"))) if callable(fn) else ["--", fn, *map(str, args)]
        return launch, (line, command, ",".join(signals))
    except BaseException:
        launch.close()
        raise


def _word(value: Any) -> str:
    """A value as the command line has it."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(str(item).replace(",", ",,") for item in value)
    return "%d" % value if isinstance(value, int) else str(value)  # Std is an int with a name
