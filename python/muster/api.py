"""elastic_launch: a job from a Python program. It mirrors torch.distributed.launcher.api."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
import warnings
from typing import Any, Callable, Dict, Generic, List, Optional, Sequence, TypeVar, Union, cast, overload

from . import _agent, _binary, _flags, _payload, _worker
from .config import LaunchConfig
from .errors import (
    NOT_AVAILABLE,
    TORCH_API,
    TORCH_ERRORS,
    ChildFailedError,
    ConfigError,
    LaunchError,
    ProcessFailure,
    SignalException,
    by_rank,
    like_torch,
)
from .report import find_report

TYPE_CHECKING = False
T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")
else:
    P = TypeVar("P")  # Python 3.8 and 3.9 have no ParamSpec

log = logging.getLogger("muster")

Entrypoint = Union[Callable[..., Any], str, None]

JOB_FILE = "job.jsonl"  # how the job went, in each run's log directory
TIME_FILE = "time.jsonl"  # where its time went


class elastic_launch(Generic[P, T]):
    """Launches this host's part of a job and waits for its end::

        values = elastic_launch(config, train)(1e-3)        # {rank: what train returned}
        elastic_launch(config, "/usr/bin/env")("python3", "train.py")

    entrypoint: a Python function, or a program, looked up in PATH.
    health_check_server: taken for compatibility; muster has its own.

    The call returns a dict of this host's global ranks, whose values are None for a
    program. It raises ChildFailedError, SignalException where a signal of
    config.signals_to_handle stopped the job, ConfigError and LaunchError. In the main
    thread it handles those signals while it runs; in another one the caller has to.
    """

    @overload
    def __init__(
        self: "elastic_launch[P, T]", config: LaunchConfig, entrypoint: "Callable[P, T]", health_check_server: Any = None
    ) -> None: ...
    @overload
    def __init__(
        self: "elastic_launch[..., None]", config: LaunchConfig, entrypoint: Optional[str], health_check_server: Any = None
    ) -> None: ...
    def __init__(self, config: LaunchConfig, entrypoint: Any, health_check_server: Any = None) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: "P.args", **kwargs: "P.kwargs") -> Dict[int, T]:
        entrypoint = functools.partial(self._entrypoint, **kwargs) if kwargs else self._entrypoint
        return cast(Dict[int, T], launch_agent(self._config, entrypoint, list(args), self._health_check_server))


def launch_agent(
    config: LaunchConfig, entrypoint: Entrypoint, args: List[Any], health_check_server: Any = None
) -> Dict[int, Any]:
    """elastic_launch as a function."""
    if health_check_server is not None:
        warnings.warn("health_check_server has no effect: muster answers health checks itself", stacklevel=3)
    return launch(config, entrypoint, args)


def launch(
    config: LaunchConfig, entrypoint: Entrypoint, args: List[Any], variables: Optional[Dict[str, str]] = None
) -> Dict[int, Any]:
    """The same with more variables for the agent."""
    if not config.run_id:
        config.run_id = str(uuid.uuid4().int)
        log.info("config has no run_id, generated a random run_id: %s", config.run_id)
    launch = Launch(entrypoint, args, _flags.log_dir(config.logs_specs), _flags.keeps_no_output(config.logs_specs))
    launch.variables.update(variables or {})
    try:
        options = _flags.flags(config, launch.log_dir)
        if callable(entrypoint):
            launch.run(options, launch.function(config.start_method), config.signals_to_handle)
            return launch.values()
        launch.run(options, launch.program(config.max_nodes == 1), config.signals_to_handle, quiet_stdin=False)
        return launch.ranks(config.nproc_per_node, config.max_nodes == 1)
    finally:
        launch.close()


class Launch:
    """One launch and the files that it needs. brief: a failure's text is its cause,
    since the binary has printed the rest."""

    def __init__(self, entrypoint: Entrypoint, args: Sequence[Any], log_dir: str, no_output: bool, brief: bool = False) -> None:
        if _worker.importing:
            raise RuntimeError(
                "this launch is at the top level of a script that workers import again to find their function; "
                "put it under: if __name__ == \"__main__\":")
        if not callable(entrypoint) and (not isinstance(entrypoint, str) or not entrypoint):
            raise ConfigError("the entrypoint must be a function or the name of a program, got %r" % (entrypoint,), 2)
        self.entrypoint = entrypoint
        self.args = args
        self.brief = brief
        self.name = _name(entrypoint, args)
        self.job = tempfile.mkdtemp(prefix="muster_")  # with mode 0700
        self.lock = os.open(self.job, os.O_RDONLY)  # systemd-tmpfiles skips what is locked
        with contextlib.suppress(OSError):
            fcntl.flock(self.lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self.server: Optional[Any] = None
        self.child: Optional["subprocess.Popen[bytes]"] = None
        self.variables: Dict[str, str] = {}  # more for the agent
        # The report is found beside the logs, so there has to be a directory.
        self.log_dir, self.own_log_dir = log_dir, ""
        if log_dir == os.devnull and no_output:
            self.log_dir = os.path.join(self.job, "logs")  # goes with the rest
        elif not log_dir:
            self.log_dir = self.own_log_dir = tempfile.mkdtemp(prefix="torchelastic_")
        self.logs_before = set(_entries(self.log_dir))

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        if self.own_log_dir:
            _remove_empty(self.own_log_dir)
        shutil.rmtree(self.job, ignore_errors=True)
        os.close(self.lock)

    def run(
        self, options: List[str], command: List[str], signals: str, quiet_stdin: bool = True,
        started: Callable[["subprocess.Popen[bytes]"], None] = lambda child: None,
    ) -> None:
        """Runs the job to its end; started is called when it has begun."""
        def begun(child: "subprocess.Popen[bytes]") -> None:
            self.child = child
            started(child)

        options, secret = _flags.split(options)
        # Of torch's names the exception shows the report.
        report = [] if self.brief else ["--report=none"]
        line = [_find_binary(), "run", "--title=" + self.name, *report, *options, *command]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PET_") and k != "MUSTER_CONFIG"}  # the options say it all
        environ.update({**self.variables, **secret})
        environ["TORCHELASTIC_ERROR_FILE"] = os.path.join(self.job, "agent.json")
        environ["MUSTER_FILES"] = self.job  # which the agent removes if this process is killed
        if command[0] == "--":
            environ[_binary.INTERPRETER] = sys.executable
            _agent.follow(environ, self.job)
        status, received = _agent.run(line, environ, signals, quiet_stdin, begun, self.server)
        if status is None:  # what the agent has written counts
            status = 0 if self.said("outcome") == "succeeded" else 1
        if received is not None:
            error = like_torch(SignalException, TORCH_API)
            raise error("Process %d got signal: %d" % (os.getpid(), received), signal.Signals(received))
        if status != 0:
            raise self._failure(status)

    def _is_python(self) -> bool:
        return self.entrypoint == sys.executable and self.args[:1] == ["-u"] and len(self.args) > 1

    def program(self, ranks_are_known: bool) -> List[str]:
        """What follows the options, for a program."""
        # torch replaces ${local_rank} only.
        words = [re.sub(r"\$\$|\$(?=\{(?:rank|role_name|hostname)\})", "$$", str(arg)) for arg in self.args]
        if self._is_python():
            return ["--", *words[1:]]  # so that the report is headed by the script
        assert isinstance(self.entrypoint, str)
        if ranks_are_known:
            return ["--no-python", "--", self.entrypoint, *words]
        if shutil.which(self.entrypoint) is None:
            raise ConfigError("cannot run %s: no such program in PATH" % self.entrypoint, 2)
        # Which ranks this host got is what a worker finds in its environment.
        note = 'printf %s "$RANK" >"$1" && shift && exec "$@"'
        path = _worker.value_path(self.job, 0).replace("$", "$$")[:-1] + "${local_rank}"
        return ["--no-python", "--", "/bin/sh", "-c", note, "sh", path, self.entrypoint, *words]

    def function(self, method: str, warm: bool = False) -> List[str]:
        """The same for a function: a boot script, named after the function since its name heads the report."""
        assert callable(self.entrypoint)
        if warm and method == "fork":
            raise ConfigError("start_method \"fork\" forks the workers from this process, which needs no warm start; leave warm out", 2)
        if warm:
            method = "spawn"  # the agent's template takes the fork server's place
        main = "_worker import main"
        if method != "fork":
            _payload.write_private(os.path.join(self.job, _payload.PAYLOAD), _payload.pack(self.entrypoint, self.args))
        if method != "spawn":
            from . import _forkserver

            self.server = _forkserver.Server(method, self.job, self.entrypoint, self.args)
        call = "main(%r, int(sys.argv[1]))" % self.job
        if method == "fork":  # there is no other way to the function
            main, call = "_forkserver import gone", "gone()"
        boot = os.path.join(self.job, _file_name(self.name))
        home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        # For warm starts, which learn about the function and not about this file.
        about = "# muster runs %s of %s" % (self.name, _payload.main_path())
        _payload.write_private(boot, (
            "%s\n"
            "import sys\n"
            "del __file__  # a script that workers could not import again\n"
            "sys.path[:] = [%r] + [p for p in sys.path if p != %r]\n"
            "import muster\n"
            "del sys.path[0]  # beside muster may lie what has a standard module's name\n"
            "from muster.%s\n"
            "%s\n" % (" ".join(about.encode("utf-8", "replace").decode().splitlines()), home, self.job, main, call)).encode())
        return ["--", *_binary.interpreter_flags(), boot.replace("$", "$$"), "${local_rank}"]

    def values(self) -> Dict[int, Any]:
        """What the functions of this host returned, by global rank."""
        values: Dict[int, Any] = {}
        for name in _entries(self.job):
            if not (name.startswith("value.") and name[6:].isdigit()):
                continue
            try:
                with open(os.path.join(self.job, name), "rb") as f:
                    rank = pickle.load(f)
                    # It has none where the function ended with sys.exit(0).
                    values[rank] = pickle.load(f) if f.peek(1) else None
            except Exception as e:
                raise LaunchError("the value of local rank %s cannot be read here: %s: %s" % (name[6:], type(e).__name__, e), 0) from e
        return dict(sorted(values.items()))

    def ranks(self, nproc: int, known: bool) -> Dict[int, Any]:
        """The ranks of a program's processes; they have no values."""
        return dict.fromkeys(sorted(n if known else int(_read(_worker.value_path(self.job, n))) for n in range(nproc)))

    def _failure(self, status: int) -> Exception:
        """What to raise for a job that ended with this status."""
        cause = self.said("cause")
        try:
            path, report = find_report(self.directory())
            failures, stopped = by_rank(report)
        except (OSError, ValueError):
            failures = {}  # on a full disk, for one
        if failures:
            if self.log_dir.startswith(self.job):
                path = ""
                for failure in failures.values():
                    failure.error_file, failure.log = NOT_AVAILABLE, ""
            error = like_torch(ChildFailedError, TORCH_ERRORS)
            return error(self.name, failures, stopped, path, report.cause if self.brief else "")
        text = self._agent_error() or cause or "muster ended with status %d; its messages are on stderr" % status
        return (ConfigError if status == 2 else LaunchError)(text, status)

    def directory(self) -> str:
        """The directory of this run's logs. Raises FileNotFoundError until the agent has made it."""
        for run in set(_entries(self.log_dir)) - self.logs_before:
            path = os.path.join(self.log_dir, run)
            if self.child is not None and job_lines(path).get("pid") == self.child.pid:
                return path
        raise FileNotFoundError(self.log_dir)

    def said(self, key: str) -> str:
        """A field of job.jsonl, "" until it is there."""
        try:
            return str(job_lines(self.directory()).get(key, ""))
        except FileNotFoundError:
            return ""

    def _agent_error(self) -> str:
        """What the agent recorded as its own error."""
        try:
            message = json.loads(_read(os.path.join(self.job, "agent.json")))["message"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return str(message.get("message", "")) if isinstance(message, dict) else str(message)


def job_lines(run: str) -> Dict[str, Any]:
    """The fields of both lines of a run's job.jsonl."""
    fields: Dict[str, Any] = {}
    try:
        for line in _read(os.path.join(run, JOB_FILE)).splitlines():
            fields.update(json.loads(line))
    except (OSError, ValueError, TypeError):
        pass  # it is not there yet, or not to its end
    return fields


def _find_binary() -> str:
    try:
        return _binary.find()
    except FileNotFoundError as e:
        raise ConfigError(str(e), 2) from e


def _name(entrypoint: Entrypoint, args: Sequence[Any]) -> str:
    """What a failure is headed by; for Python its script."""
    if callable(entrypoint):
        return _payload.name_of(entrypoint)
    if entrypoint == sys.executable:
        return next((str(arg) for arg in args if not str(arg).startswith("-")), "")
    return str(entrypoint)


def _file_name(name: str) -> str:
    """name as the name of a file that is none of the job's other files."""
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in name)[:60] + ".py"


def _entries(dir: str) -> List[str]:
    try:
        return os.listdir(dir)
    except OSError:
        return []


def _remove_empty(dir: str) -> None:
    """Removes a log directory that holds no output and no report."""
    if all(name in (JOB_FILE, TIME_FILE) for _, _, names in os.walk(dir) for name in names):
        shutil.rmtree(dir, ignore_errors=True)


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as f:
        return f.read()


__all__ = ["ChildFailedError", "LaunchConfig", "ProcessFailure", "SignalException", "elastic_launch", "launch_agent"]
