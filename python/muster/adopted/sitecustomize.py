"""Programs that start PyTorch's launcher start muster's.

``muster adopt`` copies this into an environment, where a .pth file imports it at each start of Python. With this
directory in PYTHONPATH, Python imports it as sitecustomize. Nothing of PyTorch is changed on disk, and nothing is
imported ahead: a finder looks at the names that a program imports.

- torch.distributed.launcher.api gets another launch_agent when it has been loaded. elastic_launch calls it, and so do
  torch.distributed.run and torch.distributed.launch, with what they made of their options.
- torch itself, first imported by the command torchrun or python -m torch.distributed.run: the process becomes muster.

MUSTER_ADOPT=0 leaves both alone.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOME = "../.."  # where the package muster is, relative to this directory; "" if Python finds it by itself

API = "torch.distributed.launcher.api"
RUN = "torch.distributed.run"
SAID = []  # type: list[str]


class Finder:
    """Asks the other finders for the modules that it changes."""

    muster = True

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name == "torch":
            become()
        elif name == API:
            for finder in sys.meta_path:
                spec = None if finder is Finder else finder.find_spec(name, path, target)
                if spec is not None:
                    return changed(spec)
        return None


def changed(spec: "Any") -> "Any":
    """The spec, with a loader that changes the module when it has loaded it."""
    def exec_module(module: "Any") -> None:
        del spec.loader.exec_module  # the class has it
        spec.loader.exec_module(module)
        change(module)

    if hasattr(spec.loader, "exec_module") and not isinstance(spec.loader, type):
        spec.loader.exec_module = exec_module
    return spec


def change(api: "Any") -> None:
    from functools import wraps

    theirs = api.launch_agent

    @wraps(theirs)
    def launch_agent(*args: "Any", **named: "Any") -> "Any":
        adopted = package("_adopted") if os.environ.get("MUSTER_ADOPT") != "0" else None
        return adopted.launch(say, theirs, *args, **named) if adopted else theirs(*args, **named)

    api.launch_agent = launch_agent


def become() -> None:
    """Becomes muster, if this process is nothing but torchrun."""
    argv, line = sys.argv, getattr(sys, "orig_argv", ())  # since Python 3.10; before, it takes the longer way
    words = [word for word in line[1:len(line) - len(argv) + 1] if word not in ("-u", "-E", "-I", "-s", "-B", "-P")]
    if not (words == ["-m", RUN] and argv[0] == "-m" or words == argv[:1] and is_console_script(argv[0])):
        return
    binary = find_binary()
    if not binary:
        return
    environ = dict(os.environ, MUSTER_ADOPTED=sys.executable)
    environ.setdefault("MUSTER_REPORT", "muster")
    if "PYTHON_EXEC" not in environ:
        environ["MUSTER_INTERPRETER"] = sys.executable
    try:
        os.execve(binary, ["torchrun"] + argv[1:], environ)
    except OSError as e:
        say("%s: %s; PyTorch's launcher runs this job" % (binary, e.strerror))


def is_console_script(path: str) -> bool:
    """Whether a file is the command torchrun as pip, uv and conda make it."""
    if os.path.basename(path) != "torchrun":
        return False
    try:
        with open(path, encoding="utf-8") as f:
            imports = {text.strip() for text in f.read(4096).splitlines() if text.startswith(("import ", "from "))}
    except (OSError, ValueError):
        return False
    entry = "from %s import main" % RUN
    return entry in imports and imports <= {entry, "import re", "import sys"}


def find_binary() -> str:
    """The path of muster, "" if it is not wanted, or after a warning."""
    if os.environ.get("MUSTER_ADOPT") == "0":
        return ""
    binary = package("_binary")
    try:
        return str(binary.find()) if binary else ""
    except FileNotFoundError as e:
        say("PyTorch's launcher runs this job: %s" % e)
        return ""


def package(name: str) -> "Any":
    """A module of the package muster, None after a warning."""
    from importlib import import_module

    here = os.path.dirname(os.path.abspath(__file__))
    home = HOME and os.path.normpath(os.path.join(here, HOME))
    sys.path[:0] = [home] if home else []
    try:
        return import_module("muster." + name)
    except ImportError as e:
        undo = "unset PYTHONPATH" if __name__ == "sitecustomize" else "rm -r %s/*muster_adopt*" % os.path.dirname(here)
        say("PyTorch's launcher runs this job, since the package of muster is gone: %s. Install muster again, "
            "or undo its adoption: %s" % (e, undo))
        return None
    finally:
        if home in sys.path:
            sys.path.remove(home)


def say(text: str) -> None:
    if text not in SAID:
        SAID.append(text)
        sys.stderr.write("muster (adopted): %s\n" % text)


if not any(hasattr(finder, "muster") for finder in sys.meta_path):
    sys.meta_path.insert(0, Finder)
if __name__ == "sitecustomize":
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != os.path.dirname(os.path.abspath(__file__))]
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")  # the environment's own, as if it had come first; site expects that there is none
