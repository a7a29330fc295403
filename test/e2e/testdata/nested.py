# A worker that is a launcher itself.
import os, subprocess, sys

code = 'import os; print("inner", *(os.environ[k] for k in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")), os.environ["MASTER_PORT"] != sys_port)'
code = code.replace("sys_port", repr(os.environ["MASTER_PORT"]))
sys.exit(subprocess.call(sys.argv[1:] + ["--standalone", "--nproc-per-node", "2", "--no-python", sys.executable, "-c", code]))
