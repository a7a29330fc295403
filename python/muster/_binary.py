"""Finds the binary that the wheel brought along."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List

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
