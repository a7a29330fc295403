"""python -I -S _exec.py PARENT PROGRAM ARGS...

Becomes PROGRAM, in a session of its own, so that a terminal's Ctrl-C reaches it through its
parent only, and once, and no terminal stops it for writing (stty tostop). On Linux it gets SIGTERM when the thread of
process PARENT that started it ends. subprocess could do this between fork and exec
only by running Python there, which is not safe in a program with threads.
"""

import os
import signal
import sys


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2]
    os.setsid()
    if sys.platform == "linux":
        import ctypes

        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(1)  # it has ended already
    # Python ignores these; a program expects them as they were.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execv(program, sys.argv[2:])
    except OSError as e:
        # Told as the program tells what is wrong with its command line.
        import json

        text = "%s: %s; is the wheel one for this platform?" % (program, e.strerror)
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as f:
            json.dump({"message": text}, f)
        sys.exit(2)


main()
