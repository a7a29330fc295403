"""elastic_launch: a job from a Python program. It mirrors torch.distributed.launcher.api."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import signal
import sys
import tempfile
import uuid
import warnings
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

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
    like_torch,
    read_report,
)

log = logging.getLogger("muster")

Entrypoint = Union[Callable[..., Any], str, None]

JOB_FILE = "job.jsonl"  # how the job went, in each run's log directory


class elastic_launch:
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

    def __init__(self, config: LaunchConfig, entrypoint: Entrypoint, health_check_server: Any = None) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> Dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args), self._health_check_server)


def launch_agent(
    config: LaunchConfig, entrypoint: Entrypoint, args: List[Any], health_check_server: Any = None
) -> Dict[int, Any]:
    """elastic_launch as a function."""
    if _worker.importing:
        raise RuntimeError(
            "this launch is at the top level of a script that workers import again to find their function; "
            "put it under: if __name__ == \"__main__\":")
    if health_check_server is not None:
        warnings.warn("health_check_server has no effect: muster answers health checks itself", stacklevel=3)
    if not config.run_id:
        config.run_id = str(uuid.uuid4().int)
        log.warning("config has no run_id, generated a random run_id: %s", config.run_id)
    launch = _Launch(config, entrypoint, args)
    try:
        return launch.run()
    finally:
        launch.close()


class _Launch:
    """One launch and the files that it needs."""

    def __init__(self, config: LaunchConfig, entrypoint: Entrypoint, args: List[Any]) -> None:
        if not callable(entrypoint) and (not isinstance(entrypoint, str) or not entrypoint):
            raise ConfigError("the entrypoint must be a function or the name of a program, got %r" % (entrypoint,), 2)
        self.config = config
        self.entrypoint = entrypoint
        self.args = args
        self.name = _name(entrypoint, args)
        self.job = tempfile.mkdtemp(prefix="muster_")  # with mode 0700
        self.server: Optional[Any] = None
        self._choose_log_dir()

    def _choose_log_dir(self) -> None:
        """The report is found beside the logs, so there has to be a directory."""
        self.log_dir = _flags.log_dir(self.config.logs_specs)
        self.own_log_dir = ""
        if self.log_dir == os.devnull and _flags.keeps_no_output(self.config.logs_specs):
            self.log_dir = os.path.join(self.job, "logs")  # goes with the rest
        elif not self.log_dir:
            self.log_dir = self.own_log_dir = tempfile.mkdtemp(prefix="torchelastic_")
        self.logs_before = set(_entries(self.log_dir))

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        if self.own_log_dir:
            _remove_empty(self.own_log_dir)
        shutil.rmtree(self.job, ignore_errors=True)

    def run(self) -> Dict[int, Any]:
        options, secret = _flags.split(_flags.flags(self.config, self.log_dir))
        options = ["--title=" + self.name, *options]
        line = [_find_binary(), "run", *options, *self._command()]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PET_")}  # the config says it all
        environ.update(secret)
        environ["TORCHELASTIC_ERROR_FILE"] = os.path.join(self.job, "agent.json")
        if callable(self.entrypoint) or self._is_python():
            environ["PYTHON_EXEC"] = sys.executable
        status, received = _agent.run(
            line, environ, self.config.signals_to_handle, quiet_stdin=callable(self.entrypoint))
        if received is not None:
            error = like_torch(SignalException, TORCH_API)
            raise error("Process %d got signal: %d" % (os.getpid(), received), signal.Signals(received))
        if status != 0:
            raise self._failure(status)
        return self._values()

    def _is_python(self) -> bool:
        return self.entrypoint == sys.executable and self.args[:1] == ["-u"] and len(self.args) > 1

    def _command(self) -> List[str]:
        """What follows the options."""
        if callable(self.entrypoint):
            return self._function_command()
        words = [str(arg) for arg in self.args]
        if self._is_python():
            return ["--", *words[1:]]  # so that the report is headed by the script
        assert isinstance(self.entrypoint, str)
        if self._ranks_are_known():
            return ["--no-python", "--", self.entrypoint, *words]
        if shutil.which(self.entrypoint) is None:
            raise ConfigError("cannot run %s: no such program in PATH" % self.entrypoint, 2)
        # Which ranks this host got is what a worker finds in its environment.
        note = 'printf %s "$RANK" >"$1" && shift && exec "$@"'
        path = _worker.value_path(self.job, 0).replace("$", "$$")[:-1] + "${local_rank}"
        return ["--no-python", "--", "/bin/sh", "-c", note, "sh", path, self.entrypoint, *words]

    def _ranks_are_known(self) -> bool:
        return self.config.max_nodes == 1

    def _function_command(self) -> List[str]:
        """A boot script, named after the function since its name heads the report."""
        assert callable(self.entrypoint)
        method = self.config.start_method
        module = "_worker"
        if method != "fork":
            _payload.write_private(os.path.join(self.job, _payload.PAYLOAD), _payload.pack(self.entrypoint, self.args))
        options = [*_interpreter_flags()]
        if method != "spawn":
            from . import _forkserver

            self.server = _forkserver.start(method, self.job, self.entrypoint, self.args)
            module, options = "_stub", ["-I", "-S"]
        boot = os.path.join(self.job, _file_name(self.name))
        home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        _payload.write_private(boot, (
            "import sys\n"
            "del __file__  # a script that workers could not import again\n"
            "sys.path[:] = [%r] + [p for p in sys.path if p != %r]\n"
            "from muster.%s import main\n"
            "main(%r, int(sys.argv[1]))\n" % (home, self.job, module, self.job)).encode())
        return ["--", *options, boot.replace("$", "$$"), "${local_rank}"]

    def _values(self) -> Dict[int, Any]:
        values: Dict[int, Any] = {}
        for local_rank in range(self.config.nproc_per_node):
            path = _worker.value_path(self.job, local_rank)
            if not callable(self.entrypoint):
                rank = local_rank if self._ranks_are_known() else int(_read(path))
                values[rank] = None
                continue
            try:
                with open(path, "rb") as f:
                    rank = pickle.load(f)
                    values[rank] = pickle.load(f)
            except FileNotFoundError:
                # It ended with sys.exit(0), so there is no value.
                if self._ranks_are_known():
                    values[local_rank] = None
            except Exception as e:
                raise LaunchError("the value of local rank %d cannot be read here: %s: %s" % (local_rank, type(e).__name__, e), 0) from e
        return dict(sorted(values.items()))

    def _failure(self, status: int) -> Exception:
        """What to raise for a job that ended with this status."""
        report = self._find_report()
        if report:
            failures, stopped = read_report(report)
            if failures:
                if self.log_dir.startswith(self.job):
                    report = ""
                    for failure in failures.values():
                        failure.error_file, failure.log = NOT_AVAILABLE, ""
                error = like_torch(ChildFailedError, TORCH_ERRORS)
                return error(self.name, failures, stopped, report)
        text = self._agent_error() or "muster ended with status %d; its messages are on stderr" % status
        return (ConfigError if status == 2 else LaunchError)(text, status)

    def _find_report(self) -> str:
        """The newest report of this launch, "" if it has none. All hosts' agents write
        the same report, so that of another agent on this host will do."""
        found: List[Tuple[float, str]] = []
        for run in set(_entries(self.log_dir)) - self.logs_before:
            for attempt in _entries(os.path.join(self.log_dir, run)):
                path = os.path.join(self.log_dir, run, attempt, "report.json")
                try:
                    if os.path.isfile(path) and json.loads(_read(path))["run_id"] == self.config.run_id:
                        found.append((os.stat(path).st_mtime, path))
                except (OSError, ValueError, KeyError, TypeError):
                    continue  # on a full disk, for one
        return max(found)[1] if found else ""

    def _agent_error(self) -> str:
        """What the agent recorded as its own error."""
        try:
            message = json.loads(_read(os.path.join(self.job, "agent.json")))["message"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return str(message.get("message", "")) if isinstance(message, dict) else str(message)


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


def _interpreter_flags() -> List[str]:
    """This interpreter's options, each one word: what is not an option is the script."""
    import subprocess

    make: Optional[Callable[[], List[str]]] = getattr(subprocess, "_args_from_interpreter_flags", None)
    words: List[str] = []
    for word in make() if make is not None else []:
        if words and words[-1] in ("-X", "-W"):
            words[-1] += word
        else:
            words.append(word)
    return words


def _entries(dir: str) -> List[str]:
    try:
        return os.listdir(dir)
    except OSError:
        return []


def _remove_empty(dir: str) -> None:
    """Removes a log directory that holds no output and no report."""
    if all(name == JOB_FILE for _, _, names in os.walk(dir) for name in names):
        shutil.rmtree(dir, ignore_errors=True)


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as f:
        return f.read()


__all__ = ["ChildFailedError", "LaunchConfig", "ProcessFailure", "SignalException", "elastic_launch", "launch_agent"]
