"""Finds the binary that the wheel brought along, and knows the interpreter that workers run in."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, List, Optional

ENV = "MUSTER_BINARY"
NAME = "muster"
INTERPRETER = "MUSTER_INTERPRETER"  # workers run in it, and do not see it


def find() -> str:
    """The path of the binary: the one in the environment variable MUSTER_BINARY, the
    one that was installed with this package, or the first in PATH."""
    named = os.environ.get(ENV)
    if named:
        if not _runnable(named):
            raise FileNotFoundError("%s=%s is not a program; name the muster binary, or unset it" % (ENV, named))
        return named
    tried: List[str] = []
    for path in _candidates():
        if _runnable(path):
            return path
        tried.append(path)
    raise FileNotFoundError(
        "the muster binary is neither in %s nor in PATH; install muster-run again, or name the binary in %s"
        % (", ".join(tried), ENV)
    )


def interpreter_flags() -> List[str]:
    """This interpreter's options, each one word: what is not an option is the script."""
    import subprocess

    make: Optional[Callable[[], List[str]]] = getattr(subprocess, "_args_from_interpreter_flags", None)
    words: List[str] = []
    for word in make() if make is not None else []:
        if words and words[-1] in ("-X", "-W"):
            words[-1] += word
        else:
            words.append(word)
    return words


def _runnable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _candidates() -> Iterator[str]:
    package = os.path.dirname(os.path.abspath(__file__))
    site = os.path.dirname(package)
    # <prefix>/lib/python3.x/site-packages has its scripts in <prefix>/bin, be the
    # prefix a virtual environment, /usr/local or ~/.local.
    above = os.path.dirname(os.path.dirname(site))
    if os.path.basename(above) in ("lib", "lib64"):
        yield os.path.join(os.path.dirname(above), "bin", NAME)
    yield os.path.join(site, "bin", NAME)  # pip install --target
    yield os.path.join(os.path.dirname(site), "bin", NAME)  # a source tree
    yield os.path.join(os.path.dirname(sys.executable or "/"), NAME)
    for dir in os.environ.get("PATH", os.defpath).split(os.pathsep):
        yield os.path.join(dir or ".", NAME)
