"""Debuggers that consist of pydevd (VS Code's, PyCharm's) follow a program into the Python programs
that it starts, but not through the binary."""

import os
import shlex
import sys
from typing import MutableMapping

from ._binary import INTERPRETER


def follow(environ: MutableMapping[str, str], dir: str) -> None:
    """Makes workers' scripts and modules run under the debugger of this program, if it has one that follows."""
    monkey = sys.modules.get("_pydev_bundle.pydev_monkey")
    if monkey is None or INTERPRETER not in environ:
        return
    from .api import _interpreter_flags

    words = monkey.patch_args([environ[INTERPRETER], "-u", *_interpreter_flags(), "script"])
    if "--file" in words:
        under = " ".join(map(shlex.quote, words[:words.index("--file")]))
        environ[INTERPRETER] = os.path.join(dir, "python")
        with open(os.open(environ[INTERPRETER], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w") as f:
            f.write('#!/bin/sh\nwhile :; do case "$1" in -m) shift; exec %s --module --file "$@";; -c) exec %s "$@";; '
                    '-*) shift;; *) exec %s --file "$@";; esac; done\n' % (under, shlex.quote(words[0]), under))
