"""``python -m muster`` becomes the binary; its workers run in this interpreter."""

import os
import sys

from ._binary import INTERPRETER, find


def main() -> None:
    try:
        path = find()
    except FileNotFoundError as e:
        sys.exit("muster: error: %s" % e)
    if sys.executable and "PYTHON_EXEC" not in os.environ:
        os.environ[INTERPRETER] = sys.executable
    if "pydevd" in sys.modules:
        sys.stderr.write(
            "muster: this debugger does not follow the workers, so their breakpoints are never hit; start it in a worker: "
            "muster run --nproc-per-node 1 --no-python %s -m debugpy --listen 5678 --wait-for-client train.py\n"
            % (os.environ.get("PYTHON_EXEC") or sys.executable))
    try:
        os.execv(path, [path, *sys.argv[1:]])
    except OSError as e:
        sys.exit("muster: error: %s: %s; is the wheel one for this platform?" % (path, e.strerror))


if __name__ == "__main__":
    main()
