"""A worker that is a Python function: call it, keep its value, record its exception."""

from __future__ import annotations

import os
import pickle
import sys
from types import TracebackType
from typing import Any, Optional, Sequence, Tuple

from . import _payload

#: Set while the main script is imported again, which must not launch anything.
importing = False


def main(job: str, local_rank: int) -> None:
    """What the boot script of a spawned worker does."""
    _faulthandler()
    begin(job, local_rank)
    try:
        function, args = load(job)
    except Exception as e:
        fail(job, local_rank, e, e.__traceback__)
        raise SystemExit(1) from None
    call(job, local_rank, function, args)
    _rest()


def _rest() -> None:
    """Lets threads of gloo come to rest before the interpreter ends: one that lets go of the last
    collective's tensors then would abort the process. PyTorch's workers do not end before their
    launcher has looked, which is every 0.1 s."""
    initialized = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
    if initialized is not None and initialized():
        import time

        time.sleep(0.1)


def load(job: str) -> Tuple[_payload.Function, Tuple[Any, ...]]:
    """The function and its arguments, in an interpreter like the launching one."""
    global importing
    importing = True
    try:
        return _payload.unpack(os.path.join(job, _payload.PAYLOAD))
    finally:
        importing = False


def begin(job: str, local_rank: int) -> None:
    """Forgets what an earlier attempt has left, and says which rank this is."""
    try:
        os.unlink(value_path(job, local_rank) + ".part")
    except FileNotFoundError:
        pass
    _payload.write_private(value_path(job, local_rank), _rank())


def call(job: str, local_rank: int, function: _payload.Function, args: Sequence[Any]) -> None:
    """Calls the function. Raises SystemExit(1) where it, or sending its value, failed."""
    try:
        value = function(*_macros(args, local_rank))
    except Exception as e:
        skipped = e.__traceback__
        fail(job, local_rank, e, skipped.tb_next if skipped is not None and skipped.tb_next is not None else skipped)
        raise SystemExit(1) from None
    try:
        body, _ = _payload.dumps(value)
    except pickle.PicklingError as e:
        error = TypeError("the value that %s returned, a %s, cannot be sent back: %s" % (
            _payload.name_of(function), type(value).__name__, e))
        fail(job, local_rank, error, None)
        raise SystemExit(1) from None
    _payload.write_private(value_path(job, local_rank), _rank() + body)


def _rank() -> bytes:
    return pickle.dumps(int(os.environ.get("RANK", "0")))


def value_path(job: str, local_rank: int) -> str:
    return os.path.join(job, "value.%d" % local_rank)


def fail(job: str, local_rank: int, e: BaseException, where: Optional[TracebackType]) -> None:
    """Shows the exception and records it where the failure report looks for it, in the
    form of PyTorch's @record."""
    import traceback

    text = "".join(traceback.format_exception(type(e), e, where))
    sys.stderr.write(text)
    sys.stderr.flush()
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or _recorded(path, e):
        return
    import json
    import time

    message = {"message": "%s: %s" % (type(e).__name__, e),
               "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))}}
    try:
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"message": message}, f)
    except OSError as other:
        sys.stderr.write("error file %s: %s\n" % (path, other))


def _recorded(path: str, e: BaseException) -> bool:
    """Whether @record has recorded the failure of a launch within the function: its
    root cause says more than that the launch failed."""
    return hasattr(e, "get_first_failure") and os.path.isfile(path) and os.path.getsize(path) > 0


def _macros(args: Sequence[Any], local_rank: int) -> Sequence[Any]:
    """Replaces ${local_rank} in the arguments that are strings, as torch does."""
    if not any(isinstance(arg, str) and "$" in arg for arg in args):
        return args
    from string import Template

    return [Template(arg).safe_substitute(local_rank=str(local_rank)) if isinstance(arg, str) else arg for arg in args]


def _faulthandler() -> None:
    import faulthandler

    try:
        faulthandler.enable(all_threads=True)
    except (OSError, ValueError, RuntimeError):
        pass  # stderr is not a file
