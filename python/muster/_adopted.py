"""A launch by PyTorch's elastic_launch or run in an adopted environment; see adopted/sitecustomize.py."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any, Callable, Dict, List

from . import _binary, api
from .config import LaunchConfig
from .errors import ConfigError

NOTE = "MUSTER_ADOPTED"  # the binary says so in a job's first line


def find() -> str:
    """The binary; "" after a warning if there is none."""
    try:
        return _binary.find()
    except FileNotFoundError as e:
        _say("PyTorch's launcher runs this job: %s" % e)
        return ""


def launch(
    theirs: Callable[..., Dict[int, Any]], binary: str, config: Any, entrypoint: Any, args: List[Any], *more: Any, **named: Any
) -> Dict[int, Any]:
    """launch_agent of torch.distributed.launcher.api. What muster refuses before it starts a worker, such as plug-ins,
    is left to PyTorch's: theirs."""
    try:
        if not hasattr(config, "logs_specs"):
            raise ConfigError("this PyTorch is older than 2.3", 2)
        ours = LaunchConfig(**{
            field.name: getattr(config, field.name) for field in dataclasses.fields(LaunchConfig) if hasattr(config, field.name)})
        if hasattr(config, "signals_to_handle"):
            os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle  # as theirs does
        try:
            values = api.launch(ours, entrypoint, args, {NOTE: "1"}, binary)
        finally:
            config.run_id = ours.run_id
    except ConfigError as e:
        _say("PyTorch's launcher runs this job: %s" % e)
        return theirs(config, entrypoint, args, *more, **named)
    return values


def _say(text: str) -> None:
    sys.stderr.write("muster (adopted): %s\n" % text)
