"""``muster adopt``: makes an environment's programs start muster where they start PyTorch's launcher.

It puts two things into site-packages, a .pth file and the directory that the .pth file imports, which is a copy of
adopted/sitecustomize.py. Undoing removes both, and nothing else is written.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import glob
import json
import os
import shutil
import subprocess
import sys
from typing import Any, Dict, List

from . import _binary

NAME = "_muster_adopt"
PTH = "muster_adopt.pth"
LINE = 'import sys; exec("try:\\n import %s\\nexcept ImportError:\\n pass")\n' % NAME
PACKAGE = os.path.dirname(os.path.abspath(__file__))
HOOK = os.path.join(PACKAGE, "adopted", "sitecustomize.py")

# What an interpreter says about itself, in one line. It looks for torch without importing it.
PROBE = r"""
import sys
sys.path[:1] == [""] and sys.path.pop(0)
import importlib.util, json, os, sysconfig
torch = importlib.util.find_spec("torch")
hook = next((f.find_spec.__globals__ for f in sys.meta_path if hasattr(f, "muster")), {})
print("MUSTER " + json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix, "site": sysconfig.get_path("purelib"),
    "scripts": sysconfig.get_path("scripts"), "torch": torch.origin or "" if torch else "",
    "hook": hook.get("__file__", ""), "managed": sys.prefix == sys.base_prefix and os.path.exists(
        os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")),
    "binary": hook["find_binary"]() if hook else ""}))
"""


class Refused(Exception):
    """What is wrong, and what to do."""


def main(args: List[str]) -> int:
    """args: those of muster adopt, whose help is the binary's."""
    parser = argparse.ArgumentParser("muster adopt", add_help=False)
    parser.add_argument("environment", nargs="?", default=sys.executable, metavar="VENV")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--undo", dest="do", action="store_const", const=undo, default=adopt)
    what.add_argument("--status", dest="do", action="store_const", const=status)
    wanted = parser.parse_args(args)
    try:
        python = interpreter(wanted.environment)
        return int(wanted.do(python, probe(python)))
    except Refused as e:
        sys.stderr.write("error: %s\nhint: %s\n" % e.args)
    except OSError as e:
        owner = "run muster adopt as its owner; " if isinstance(e, PermissionError) else ""
        sys.stderr.write("error: %s\nhint: %s\n" % (e, owner + one_job()))
    return 1


def interpreter(where: str) -> str:
    """The interpreter of an environment, or itself."""
    path = os.path.abspath(where)
    for candidate in (path, os.path.join(path, "bin", "python3"), os.path.join(path, "bin", "python")):
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise Refused("%s is not an environment: it has no bin/python3" % where,
                  "name the directory of a virtual or conda environment, or an interpreter")


def probe(python: str) -> Dict[str, Any]:
    done = subprocess.run([python, "-c", PROBE], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))  # nothing else is to be written there
    for text in done.stdout.decode("utf-8", "replace").splitlines():
        if text.startswith("MUSTER "):
            about: Dict[str, Any] = json.loads(text[7:])
            about["said"] = done.stderr.decode("utf-8", "replace")
            return about
    raise Refused("%s does not run: %s" % (python, " | ".join(done.stderr.decode("utf-8", "replace").splitlines()[-2:])),
                  "name the directory of a virtual or conda environment, or an interpreter")


def one_job() -> str:
    return "to do it for one job, with nothing installed: PYTHONPATH=%s" % os.path.dirname(HOOK)


def alone(site: str) -> None:
    """Has others who adopt or undo wait until this process ends."""
    with contextlib.suppress(OSError):
        fcntl.flock(os.open(site, os.O_RDONLY), fcntl.LOCK_EX)


def adopt(python: str, about: Dict[str, Any]) -> int:
    if about["managed"]:
        raise Refused("%s is the system's Python, which its package manager looks after (PEP 668)" % python,
                      "adopt a virtual environment: python3 -m venv DIR; " + one_job())
    binary = _binary.find()
    site = about["site"]
    # The package is the environment's own, which can be moved with it, or that of another one.
    home = "" if os.path.realpath(os.path.dirname(PACKAGE)) == os.path.realpath(site) else os.path.dirname(PACKAGE)
    with open(HOOK, encoding="utf-8") as f:
        text = f.read().replace('\nHOME = "../.."', "\nHOME = %r" % home, 1)
    alone(site)
    os.umask(0o022)
    module = os.path.join(site, NAME, "__init__.py")
    if not os.path.isdir(os.path.dirname(module)):
        os.mkdir(os.path.dirname(module))
    for path, content in ((module, text), (os.path.join(site, PTH), LINE)):
        with open(module + ".part", "w", encoding="utf-8") as f:
            f.write(content)
        os.replace(f.name, path)  # programs start meanwhile
    subprocess.call([python, "-I", "-S", "-B", "-m", "py_compile", module])  # -B: of this module alone
    after = probe(python)
    if not after["hook"]:
        remove(site)
        raise Refused("%s does not read %s" % (python, os.path.join(site, PTH)), one_job())
    print("%s is adopted: its torchrun, python -m torch.distributed.run, run() and elastic_launch start %s" % (
        about["prefix"], after["binary"] or binary + ", except with MUSTER_ADOPT=0, as now"))
    return 0


def sites(about: Dict[str, Any]) -> List[str]:
    """Where an adoption may be: also that of another Python that the environment had before."""
    every = glob.glob(os.path.join(glob.escape(about["prefix"]), "lib*", "python3*", "site-packages"))
    return [site for site in sorted({os.path.realpath(path) for path in [about["site"], *every]})
            if os.path.lexists(os.path.join(site, PTH)) or os.path.lexists(os.path.join(site, NAME))]


def remove(site: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(site, PTH))  # first, since programs start meanwhile
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(os.path.join(site, NAME))


def undo(python: str, about: Dict[str, Any]) -> int:
    found = sites(about)
    for site in found:
        alone(site)
        remove(site)
    said = "is no longer adopted" if found else "was not adopted"
    if os.path.exists(about["hook"]):  # that of an environment below, or in PYTHONPATH
        said = "is still adopted by " + about["hook"]
    print("%s %s" % (about["prefix"], said))
    return 0


def status(python: str, about: Dict[str, Any]) -> int:
    """Says what starts what; 0 if it is muster."""
    starts = about["binary"] or "PyTorch's launcher"
    here = os.path.join(about["scripts"], "torchrun")
    rows = [("environment", "%s, Python %s" % (about["prefix"], about["version"])),
            ("adopted", about["hook"] or "no"),
            ("torch", os.path.dirname(about["torch"]) or "not installed"),
            (here if os.path.exists(here) else "torchrun", starts),
            ("%s -m torch.distributed.run" % python, starts),
            ("run(), elastic_launch", starts),
            ("python -S, subclasses of LocalElasticAgent, start_processes", "as without muster")]
    first = shutil.which("torchrun")
    if first and os.path.realpath(first) != os.path.realpath(here):
        rows.append(("torchrun in PATH", "%s, of another environment" % first))
    if about["hook"] and not about["binary"]:
        rows.append(("note", about["said"].strip() or "MUSTER_ADOPT=0 is set"))
    for site in sites(about):
        if not os.path.realpath(about["hook"]).startswith(site + os.sep):
            rows.append(("note", "this Python does not read %s; muster adopt --undo removes it" % os.path.join(site, PTH)))
    print("\n".join("%s: %s" % row for row in rows))
    return 0 if about["binary"] else 1
