"""report.json as dataclasses. docs/formats.md explains the fields, which have the same names there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Optional, Tuple, Type, TypeVar, Union

T = TypeVar("T")
VERSION = 1  # of the reports that this module reads
MAX_REPORT = 256 << 20


@dataclass(frozen=True)
class Collective:
    """What a worker's libraries printed of the collectives of one group of ranks.

    op, seq, waited_ms: the one that it waited for, its number, and for how long.
    enqueued: the number of the last one that it began.
    missing: the ranks that did not come, as this worker says.
    """

    group: str = ""
    op: str = ""
    seq: int = 0
    waited_ms: int = 0
    enqueued: int = 0
    missing: List[int] = field(default_factory=list)


@dataclass(frozen=True)
class Failure:
    """How one worker failed. Text that is unknown is "", a number that is unknown None.

    exit_code: 0..255, or -N for signal N, whose name is signal.
    kind: "failed", "lost peer" for a failure that another one explains, "stopped"
        for a worker that muster stopped.
    """

    rank: int = 0
    local_rank: int = 0
    host: str = ""
    pid: Optional[int] = None
    kind: str = ""
    root: bool = False
    cause: str = ""
    hint: str = ""
    exit_code: int = 0
    signal: str = ""
    core_dumped: bool = False
    failed_at: str = ""
    started_at: str = ""
    ended_at: str = ""
    stopped_by: str = ""
    start_error: str = ""
    errno: Optional[int] = None
    oom: str = ""
    gpu: str = ""
    core: str = ""
    stuck_in: str = ""
    timer: str = ""
    error_file: str = ""
    error_file_note: str = ""
    message: str = ""
    recorded: bool = False
    traceback: str = field(default="", repr=False)
    traceback_from: str = ""
    stderr_tail: List[str] = field(default_factory=list, repr=False)
    collectives: List[Collective] = field(default_factory=list, repr=False)
    log: str = ""


@dataclass(frozen=True)
class PreemptedWorker:
    """How one worker of a preempted job ended."""

    rank: int = 0
    local_rank: int = 0
    pid: Optional[int] = None
    exit_code: int = 0
    signal: str = ""
    ended_at: str = ""
    stopped_by: str = ""
    cut_short: bool = False


@dataclass(frozen=True)
class Preemption:
    """Who told the whole job to stop, and how this host's workers ended."""

    host: str = ""
    signal: str = ""
    time: str = ""
    exit_status: Optional[int] = None
    grace_seconds: Optional[float] = None
    cut_short: str = ""
    workers: List[PreemptedWorker] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """Why an attempt failed, or who preempted it.

    cause: the root cause in one line, with rank and host.
    failures: those of all hosts, the root cause first.
    preempted: None unless the whole job was told to stop.
    """

    version: int = VERSION
    title: str = ""
    run_id: str = ""
    host: str = ""
    attempt: int = 0
    max_restarts: int = 0
    first_rank: int = -1
    silent: List[str] = field(default_factory=list)
    autopsy: str = ""
    autopsy_file: str = ""
    left_out: int = 0
    cause: str = ""
    failures: List[Failure] = field(default_factory=list)
    preempted: Optional[Preemption] = None
    decision: str = ""


def read_report(dir: Union[str, "os.PathLike[str]"]) -> Report:
    """Reads the newest report.json of a job.

    dir: the job's log_dir, the directory of a run or of an attempt in it, or the file.

    Raises FileNotFoundError if there is no report, as for a job that has not failed,
    and ValueError if the file is not a report or one of a newer muster.
    """
    return find_report(dir)[1]


def find_report(dir: Union[str, "os.PathLike[str]"]) -> Tuple[str, Report]:
    """The same, with the path of the file."""
    path = os.fspath(dir)
    if os.path.isdir(path):
        import glob

        below = [os.path.join(glob.escape(path), *["*"] * depth, "report.json") for depth in range(3)]
        found = [(os.stat(p).st_mtime_ns, p) for pattern in below for p in glob.glob(pattern) if os.path.isfile(p)]
        if not found:
            raise FileNotFoundError("no report.json in %s: its job has not failed, or this is not a log directory" % path)
        path = max(found)[1]
    with open(path, encoding="utf-8") as f:
        text = f.read(MAX_REPORT)
    try:
        item = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ValueError("%s is not a report: %s" % (path, e)) from e
    version = item.get("version") if isinstance(item, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise ValueError("%s is of version %d; this muster reads version %d: update muster-run" % (path, version, VERSION))
    return path, _make(Report, item, path)


_TYPES: Dict[str, Any] = {
    "str": str, "int": int, "Optional[int]": int, "bool": bool, "Optional[float]": (int, float), "List[str]": list,
    "List[int]": list}
_NESTED: Dict[str, Type[Any]] = {
    "List[Collective]": Collective, "List[Failure]": Failure, "List[PreemptedWorker]": PreemptedWorker,
    "Optional[Preemption]": Preemption}


def _make(cls: Type[T], item: Any, where: str) -> T:
    """One object of the document. What is null or absent keeps its default, and what a
    newer muster has added is left out."""
    if not isinstance(item, dict):
        raise ValueError("%s: want an object, got %.40r" % (where, item))
    values: Dict[str, Any] = {}
    for f in fields(cls):  # type: ignore[arg-type]
        value, at, kind = item.get(f.name), "%s: %s" % (where, f.name), str(f.type)
        nested = _NESTED.get(kind)
        if value is None:
            continue
        if kind.startswith("List[") and not isinstance(value, list):
            raise ValueError("%s: want a list, got %.40r" % (at, value))
        if nested is not None:
            value = [_make(nested, v, at) for v in value] if kind.startswith("List[") else _make(nested, value, at)
        elif not isinstance(value, _TYPES[kind]):
            raise ValueError("%s: want %s, got %.40r" % (at, kind, value))
        values[f.name] = value
    return cls(**values)
