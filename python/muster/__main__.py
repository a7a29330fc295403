"""``python -m muster`` becomes the binary; its workers run in this interpreter."""

import os
import sys

from ._binary import INTERPRETER, find


def main() -> None:
    if sys.argv[1:2] == ["adopt"] and not {"-h", "--help"} & {*sys.argv}:
        from ._adopt import main as adopt

        sys.exit(adopt(sys.argv[2:]))
    try:
        path = find()
    except FileNotFoundError as e:
        sys.exit("muster: error: %s" % e)
    if sys.executable and "PYTHON_EXEC" not in os.environ:
        os.environ[INTERPRETER] = sys.executable
    line = [path, *sys.argv[1:]]
    if "pydevd" in sys.modules:
        from tempfile import TemporaryDirectory

        from . import _agent, _flags

        with TemporaryDirectory(prefix="muster_") as dir:  # and this process stays, since the workers' debuggers belong to it
            _agent.follow(os.environ, dir)
            sys.exit(_agent.run(line, dict(os.environ), _flags.SIGNALS, False, lambda child: None)[0])
    try:
        os.execv(path, line)
    except OSError as e:
        sys.exit("muster: error: %s: %s; is the wheel one for this platform?" % (path, e.strerror))


if __name__ == "__main__":
    main()
