"""Heartbeats of a Lightning Trainer::

    from muster.lightning import Heartbeat
    trainer = Trainer(callbacks=[Heartbeat()])
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from .timer import heartbeat

# Both packages may be installed; the program has imported the one that it uses.
_name = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
try:
    _Callback: Any = import_module(_name).Callback
except ModuleNotFoundError:
    _Callback = import_module("pytorch_lightning").Callback


class Heartbeat(_Callback):  # type: ignore[misc]
    """Sends a heartbeat with the trainer's global_step after each batch, of training,
    validation, test and prediction, on every rank. Outside of muster it does nothing."""

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        heartbeat(trainer.global_step)

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = on_train_batch_end
