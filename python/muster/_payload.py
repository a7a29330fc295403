"""How a function, its arguments and its value travel between processes: as files
that only their owner can read, in a directory that only its owner can enter."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from typing import Any, Callable, Dict, Sequence, Tuple

from .errors import ConfigError

PAYLOAD = "payload"

Function = Callable[..., Any]


def write_private(path: str, data: bytes) -> None:
    """Makes a file that nobody else can read; it is complete or not there."""
    part = path + ".part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    with open(fd, "wb") as f:
        f.write(data)
    os.replace(part, path)


def dumps(value: Any) -> Tuple[bytes, bool]:
    """value as bytes, and whether cloudpickle had to do it. Raises pickle.PicklingError."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL), False
    except Exception as plain:  # what __reduce__ raises is up to the class
        cloudpickle = _cloudpickle()
        if cloudpickle is None:
            raise pickle.PicklingError("%s; cloudpickle, which can send more, is not installed" % _said(plain)) from plain
        try:
            return cloudpickle.dumps(value), True
        except Exception as other:
            raise pickle.PicklingError("%s; nor with cloudpickle: %s" % (_said(plain), _said(other))) from other


def _cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def _said(e: BaseException) -> str:
    return "%s: %s" % (type(e).__name__, e)


def name_of(function: Function) -> str:
    function = getattr(function, "func", function)  # functools.partial
    return str(getattr(function, "__name__", type(function).__name__))


def pack(function: Function, args: Sequence[Any]) -> bytes:
    """The payload of a worker. Raises ConfigError naming what cannot be sent."""
    name = name_of(function)
    advice = "define it at the top level of a module, install cloudpickle, or use start_method=\"fork\""
    setup = _setup()
    try:
        body, by_value = dumps((function, tuple(args)))
    except pickle.PicklingError:
        _blame(function, args, advice)
        raise
    if b"__main__" in body and not by_value and "main_name" not in setup and "main_path" not in setup:
        # A notebook or python -c: the workers cannot import what is defined there.
        cloudpickle = _cloudpickle()
        if cloudpickle is None:
            raise ConfigError("%s is defined in a session that workers cannot import; %s" % (name, advice), 2)
        body, by_value = cloudpickle.dumps((function, tuple(args))), True
    if by_value:  # it brings along what it needs of the script
        setup.pop("main_name", None)
        setup.pop("main_path", None)
    return pickle.dumps(setup) + body


def _blame(function: Function, args: Sequence[Any], advice: str) -> None:
    try:
        dumps(function)
    except pickle.PicklingError as e:
        raise ConfigError("the function %s cannot be sent to the workers: %s; %s" % (name_of(function), e, advice), 2) from e
    for i, arg in enumerate(args):
        try:
            dumps(arg)
        except pickle.PicklingError as e:
            raise ConfigError("argument %d of %s, a %s, cannot be sent to the workers: %s" % (i, name_of(function), type(arg).__name__, e), 2) from e


def _start() -> str:
    from multiprocessing import process

    return getattr(process, "ORIGINAL_DIR", None) or os.getcwd()


def main_path() -> str:
    """The file of the main script; "" if it has none, as a notebook."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.normpath(os.path.join(_start(), path)) if path else ""


def _setup() -> Dict[str, Any]:
    """What a new interpreter needs to find what this one has, as multiprocessing
    does it: the module path, and how the main script is imported again."""
    setup: Dict[str, Any] = {
        "sys_path": [_start() if entry == "" else entry for entry in sys.path],
        "sys_argv": list(sys.argv),
    }
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        setup["main_name"] = name
    elif os.path.isfile(main_path()):
        setup["main_path"] = main_path()
    return setup


def unpack(path: str) -> Tuple[Function, Tuple[Any, ...]]:
    """In the worker: makes this interpreter like the launching one, and reads the
    function and its arguments."""
    from multiprocessing import spawn

    with open(path, "rb") as f:
        setup = pickle.load(f)
        data = {"sys_path": setup["sys_path"], "sys_argv": setup["sys_argv"]}
        for ours, theirs in (("main_name", "init_main_from_name"), ("main_path", "init_main_from_path")):
            if ours in setup:
                data[theirs] = setup[ours]
        spawn.prepare(data)
        function, args = pickle.load(f)
    return function, args
