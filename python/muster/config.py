"""What a job is to be: LaunchConfig and where the workers' output goes."""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Set, Union


class Std(enum.IntFlag):
    """Which of a worker's streams."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3

    @classmethod
    def from_str(cls, text: str) -> "Union[Std, Dict[int, Std]]":
        """Reads ``"3"``, or by local rank ``"0:3,1:1"``."""
        if re.match(r"^[0-3]$", text):
            return cls(int(text))
        if not re.match(r"^[0-9]+:[0-3](,[0-9]+:[0-3])*$", text):
            raise ValueError("%r is neither 0, 1, 2 or 3 nor a list of them by local rank, as 0:3,1:1" % text)
        pairs = (part.split(":") for part in text.split(","))
        return {int(rank): cls(int(value)) for rank, value in pairs}


class LogsSpecs:
    """Where the workers' output goes.

    log_dir: directory for the log files; None is a new one under the temporary
        directory, os.devnull none.
    redirects: streams that go into files, for all workers or by local rank.
    tee: streams that go into files and, each line with a prefix, to the console.
    local_ranks_filter: the local ranks that may write to the console; None is all.
    """

    def __init__(
        self,
        log_dir: Optional[str] = None,
        redirects: Union[Std, Dict[int, Std]] = Std.NONE,
        tee: Union[Std, Dict[int, Std]] = Std.NONE,
        local_ranks_filter: Optional[Set[int]] = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @property
    def root_log_dir(self) -> str:
        """The directory as it was given; "" where it is muster's choice."""
        return self._root_log_dir or ""

    def __repr__(self) -> str:
        return "%s(log_dir=%r, redirects=%r, tee=%r, local_ranks_filter=%r)" % (
            type(self).__name__, self._root_log_dir, self._redirects, self._tee, self._local_ranks_filter)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogsSpecs) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class DefaultLogsSpecs(LogsSpecs):
    """The same under torch's name."""


@dataclass
class LaunchConfig:
    """One host's part of a job. Fields, order and defaults are those of
    ``torch.distributed.launcher.api.LaunchConfig``.

    min_nodes, max_nodes: bounds of the number of hosts.
    nproc_per_node: workers on this host.
    logs_specs: where output goes; torch's LogsSpecs will do as well.
    run_id: the job's name, the same on every host; "" is a random one.
    role: name of the workers in messages and role ranks.
    rdzv_endpoint, rdzv_backend, rdzv_configs: how hosts meet. A job of one host
        needs none of them: without an endpoint the default backend means this host.
    rdzv_timeout: seconds; overrides rdzv_configs["timeout"].
    max_restarts: how often the workers are started again after a failure.
    monitor_interval: accepted for torch's sake; the end of a worker is noticed at once.
    start_method: how a Python function gets its process: spawn, fork, forkserver.
    log_line_prefix_template: prefix of tee'd lines.
    metrics_cfg: taken for compatibility; muster does not use it.
    local_addr: the address at which other hosts reach this one.
    event_log_handler: null or console.
    numa_options: torch's NumaOptions, or the name of a mode.
    signals_to_handle: signals that stop the job; workers get the one received.
    duplicate_stdout_filters, duplicate_stderr_filters: copy lines that contain one
        of these into a file of their own.
    virtual_local_rank: every worker has LOCAL_RANK=0 and sees one device.
    shutdown_timeout: seconds between that signal and SIGKILL; None is
        TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Any = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: Dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: Optional[str] = None
    metrics_cfg: Dict[str, str] = field(default_factory=dict)
    local_addr: Optional[str] = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: Optional[List[str]] = None
    duplicate_stderr_filters: Optional[List[str]] = None
    virtual_local_rank: bool = False
    shutdown_timeout: Optional[int] = None

    def __post_init__(self) -> None:
        self.rdzv_configs = dict(self.rdzv_configs)
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        self.rdzv_configs.setdefault("timeout", 900)
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()
        if self.shutdown_timeout is None:
            self.shutdown_timeout = int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
        elif self.shutdown_timeout < 0:
            raise ValueError("shutdown_timeout must be non-negative, got %r" % self.shutdown_timeout)
