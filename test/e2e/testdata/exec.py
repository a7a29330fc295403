"""Becomes another program: exec.py PROGRAM [ARGUMENT]…"""

import os
import sys

os.execv(sys.argv[1], sys.argv[1:])
