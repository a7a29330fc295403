"""A launch by PyTorch's elastic_launch or run in an adopted environment; see adopted/sitecustomize.py."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Callable, Dict, List

from . import api
from .config import LaunchConfig
from .errors import ConfigError


def launch(
    say: Callable[[str], None], theirs: Callable[..., Dict[int, Any]], config: Any, entrypoint: Any, args: List[Any], *more: Any, **named: Any
) -> Dict[int, Any]:
    """launch_agent of torch.distributed.launcher.api. What muster refuses before it starts a worker, such as plug-ins,
    is left to PyTorch's: theirs. Environments keep the sitecustomize of the release that adopted them, so these
    arguments stay as they are."""
    try:
        if not hasattr(config, "logs_specs"):
            raise ConfigError("this PyTorch is older than 2.3", 2)
        names = [field.name for field in dataclasses.fields(LaunchConfig) if hasattr(config, field.name)]
        ours = LaunchConfig(**{name: getattr(config, name) for name in names})
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ours.signals_to_handle  # as theirs does
        try:
            return api.launch(ours, entrypoint, args, {"MUSTER_ADOPTED": "1"})
        finally:
            config.run_id = ours.run_id
    except ConfigError as e:
        say("PyTorch's launcher runs this job: %s" % e)
    return theirs(config, entrypoint, args, *more, **named)
