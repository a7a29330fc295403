"""muster from Python: launch a job from a program, and what its workers can say.

Everything is imported when it is first used, so that ``import muster`` costs
next to nothing in a worker that only wants ``muster.heartbeat()``::

    import muster

    values = muster.run(train, (1e-3,), nproc_per_node=4, max_restarts=3)   # {rank: value}

LaunchConfig and elastic_launch are those of ``torch.distributed.launcher.api``; PyTorch
is not needed.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from typing import Any, List

    from . import live as live, timer as timer
    from .api import elastic_launch as elastic_launch, launch_agent as launch_agent
    from .config import (
        DefaultLogsSpecs as DefaultLogsSpecs,
        LaunchConfig as LaunchConfig,
        LogsSpecs as LogsSpecs,
        Std as Std,
    )
    from .errors import (
        ChildFailedError as ChildFailedError,
        ConfigError as ConfigError,
        LaunchError as LaunchError,
        ProcessFailure as ProcessFailure,
        SignalException as SignalException,
    )
    from .job import Job as Job, run as run, start as start
    from .report import Failure as Failure, Report as Report, read_report as read_report
    from .timer import deadline as deadline, heartbeat as heartbeat

    __version__: str

# Where each name comes from.
_HOME = {
    "run": "job",
    "start": "job",
    "Job": "job",
    "read_report": "report",
    "Report": "report",
    "Failure": "report",
    "deadline": "timer",
    "elastic_launch": "api",
    "launch_agent": "api",
    "LaunchConfig": "config",
    "LogsSpecs": "config",
    "DefaultLogsSpecs": "config",
    "Std": "config",
    "ChildFailedError": "errors",
    "ConfigError": "errors",
    "LaunchError": "errors",
    "ProcessFailure": "errors",
    "SignalException": "errors",
    "heartbeat": "timer",
}

__all__ = [*_HOME, "live", "timer", "__version__"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOME:
        value = getattr(import_module("." + _HOME[name], __name__), name)
    elif name in ("live", "timer"):
        value = import_module("." + name, __name__)
    elif name == "__version__":
        value = _version()
    else:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    """The wheel's version; in a source tree there is none."""
    from importlib import import_module

    try:
        return str(import_module("._version", __name__).VERSION)
    except ImportError:
        return "0.0.0.dev0"
