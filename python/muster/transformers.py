"""Heartbeats of a Transformers Trainer::

    from muster.transformers import Heartbeat
    trainer = Trainer(..., callbacks=[Heartbeat()])
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .timer import heartbeat

_Callback: Any = import_module("transformers").TrainerCallback


class Heartbeat(_Callback):  # type: ignore[misc]
    """Sends a heartbeat with the trainer's global_step after each step, part of a step
    and prediction, on every rank. Outside of muster it does nothing."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        heartbeat(state.global_step)

    on_substep_end = on_prediction_step = on_step_end
