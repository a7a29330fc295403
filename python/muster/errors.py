"""How a launch can fail."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple, Type

from .report import Failure, Report

NOT_AVAILABLE = "<N/A>"

# What is read of a worker's error file.
MAX_ERROR_FILE = 4 << 20


class LaunchError(RuntimeError):
    """The agent ended without running the job to its end.

    status: its exit status, negative for a signal.
    """

    def __init__(self, message: str, status: Optional[int] = None) -> None:
        super().__init__(message)
        self.status = status


class ConfigError(LaunchError, ValueError):
    """The configuration, the function or its arguments cannot be used; the message
    names everything that was found. No worker was started."""


class SignalException(Exception):
    """A signal stopped the job. Where PyTorch is loaded, also its SignalException.

    sigval: which signal.
    """

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        Exception.__init__(self, msg)  # not super(), which may be PyTorch's and wants sigval
        self.sigval = sigval


@dataclass
class ProcessFailure:
    """One worker's failure; the first seven fields are torch's.

    exitcode: 0..255, or -N for signal N.
    error_file: where the worker recorded its exception, or "<N/A>".
    message: the error file's "message", or one line where there is no such file.
    timestamp: when it went wrong, seconds since 1970.
    kind: "failed", "lost peer" for a failure that another one explains, "stopped"
        for a worker that muster stopped.
    cause, hint: one line each.
    traceback: the remote traceback, "" if none is known.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str = NOT_AVAILABLE
    error_file_data: Dict[str, Any] = field(default_factory=dict, repr=False)
    message: Any = ""
    timestamp: int = 0
    rank: int = 0
    host: str = ""
    kind: str = "failed"
    cause: str = ""
    hint: str = ""
    traceback: str = field(default="", repr=False)
    stderr_tail: List[str] = field(default_factory=list, repr=False)
    log: str = ""

    def signal_name(self) -> str:
        """SIGKILL and so on; "<N/A>" where no signal ended it."""
        try:
            return signal.Signals(-self.exitcode).name if self.exitcode < 0 else NOT_AVAILABLE
        except ValueError:
            return NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Local time, YYYY-MM-DD_HH:MM:SS."""
        return time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(self.timestamp))

    def where(self) -> str:
        text = "rank %d (local_rank %d, pid %d)" % (self.rank, self.local_rank, self.pid)
        return text + (" on host " + self.host if self.host else "")

    def _text(self) -> str:
        """What the report shows as traceback."""
        shown = self.traceback
        if not shown and isinstance(self.message, dict):
            shown = str(self.message.get("message", NOT_AVAILABLE))
        shown = shown or str(self.message)
        if shown.startswith("To enable traceback see: "):  # muster looks at stderr, too
            shown = "none, neither in an error file nor on the worker's stderr"
        return shown.replace("\n", "\n  ")

    def _block(self, index: int) -> List[str]:
        name = self.signal_name()
        lines = [
            "[%d]:" % index,
            "  time      : " + self.timestamp_isoformat(),
            "  host      : " + (self.host or NOT_AVAILABLE),
            "  rank      : %d (local_rank: %d)" % (self.rank, self.local_rank),
            "  exitcode  : %d (pid: %d) %s" % (self.exitcode, self.pid, "" if name == NOT_AVAILABLE else " (%s)" % name),
            "  error_file: " + self.error_file,
        ]
        for name, text in (("cause", self.cause), ("hint", self.hint), ("log", self.log)):
            if text:
                lines.append("  %-10s: %s" % (name, text))
        lines.append("  traceback : " + self._text())
        if self.stderr_tail:
            lines.append("  stderr    : the last lines")
            lines += ["    " + line for line in self.stderr_tail]
        return lines


class ChildFailedError(Exception):
    """Workers failed, and no restart was left. Where PyTorch is loaded, the instance
    is also one of its ChildFailedError, so that its ``@record`` passes it on.

    name: the function's name, or the program.
    failures: by global rank, the root cause first. They are those of the whole job
        as far as its hosts have told, without the workers that muster stopped.
    stopped: those, by global rank.
    report: path of the report as JSON, "" if there is none.
    cause: the root cause in one line, which is then the exception's text.
    """

    def __init__(
        self,
        name: str,
        failures: Dict[int, ProcessFailure],
        stopped: Optional[Dict[int, ProcessFailure]] = None,
        report: str = "",
        cause: str = "",
    ) -> None:
        if not failures:
            raise AssertionError("a ChildFailedError needs a failure")
        self.name = name
        self.failures = failures
        self.stopped = stopped or {}
        self.report = report
        self.cause = cause
        text = "%s failed: %s" % (name, cause) if cause else self.format_msg()
        if cause and report:
            text += "\nhint: muster report %s" % os.path.dirname(os.path.dirname(report))
        Exception.__init__(self, text)

    def __reduce__(self) -> Tuple[Any, ...]:
        return _child_failed, (self.name, self.failures, self.stopped, self.report, self.cause)

    def get_first_failure(self) -> Tuple[int, ProcessFailure]:
        """The root cause, with its global rank."""
        return next(iter(self.failures.items()))

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """The failures as torch's block shows them."""
        title = self.name + " FAILED"
        blocks = [f._block(i) for i, f in enumerate(self.failures.values())]
        width = min(60, max(len(line) for lines in [[title], *blocks] for text in lines for line in text.split("\n")))
        border, section = boarder_delim * width, section_delim * width
        others = [line for block in blocks[1:] for line in block] or ["  <NO_OTHER_FAILURES>"]
        return "\n".join(
            ["", border, title, section, "Failures:", *others, section, "Root Cause (first observed failure):", *blocks[0], border])


def like_torch(own: Type[Exception], module: str) -> Type[Exception]:
    """own, or where the module of PyTorch is loaded a class that is both own and
    PyTorch's class of that name, so that either catches it. It is shown under PyTorch's name, which people
    and programs know."""
    theirs = getattr(sys.modules.get(module), own.__name__, None)
    if not isinstance(theirs, type) or not issubclass(theirs, Exception):
        return own
    return type(own.__name__, (own, theirs), {"__module__": theirs.__module__, "__doc__": own.__doc__})


TORCH_ERRORS = "torch.distributed.elastic.multiprocessing.errors"
TORCH_API = "torch.distributed.elastic.multiprocessing.api"


def _child_failed(*args: Any) -> Exception:
    """A ChildFailedError from another process."""
    return like_torch(ChildFailedError, TORCH_ERRORS)(*args)


def by_rank(report: Report) -> Tuple[Dict[int, ProcessFailure], Dict[int, ProcessFailure]]:
    """The failures of a report, and the workers that were stopped, by global rank."""
    failures: Dict[int, ProcessFailure] = {}
    stopped: Dict[int, ProcessFailure] = {}
    for f in report.failures:
        # The root cause counts as a failure even where it is a stopped worker.
        into = stopped if f.kind == "stopped" and not f.root else failures
        into.setdefault(f.rank, _like_torch(f))
    return failures, stopped


def _like_torch(f: Failure) -> ProcessFailure:
    failure = ProcessFailure(
        local_rank=f.local_rank, pid=f.pid or 0, exitcode=f.exit_code, error_file=f.error_file or NOT_AVAILABLE,
        message=f.message, timestamp=_seconds(f.failed_at), rank=f.rank, host=f.host, kind=f.kind, cause=f.cause,
        hint=f.hint, traceback=f.traceback, stderr_tail=f.stderr_tail, log=f.log,
    )
    failure.error_file_data = _error_data(failure)
    message = failure.error_file_data.get("message")
    if isinstance(message, dict):
        failure.message = message
    return failure


def _error_data(failure: ProcessFailure) -> Dict[str, Any]:
    """What the worker recorded: from its file, or, of another host, from the report.
    The file is the worker's, so it may be anything: a FIFO, a link, endless."""
    if failure.error_file == NOT_AVAILABLE:
        data: Dict[str, Any] = {"message": "<NONE>"}
        if failure.exitcode >= 0 and failure.kind != "stopped":
            data["errorTraits"] = {"category": "system_terminated_error", "retryability": "False"}
        return data
    if failure.host == socket.gethostname():
        try:
            fd = os.open(failure.error_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as f:
                text = f.read(MAX_ERROR_FILE + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
            recorded = json.loads(text.decode()) if len(text) <= MAX_ERROR_FILE else None
            if isinstance(recorded, dict) and "message" in recorded:
                return recorded
        except (OSError, ValueError, RecursionError):
            pass
    return {"message": {"message": failure.message, "extraInfo": {
        "py_callstack": failure.traceback or failure.message, "timestamp": str(failure.timestamp)}}}


def _seconds(stamp: str) -> int:
    """RFC 3339 in UTC, as muster writes it."""
    import calendar

    try:
        return calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0
