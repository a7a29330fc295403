"""Processes of a script's own: pools by each start method, a manager, shared memory, a subprocess."""
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory


class Job:
    def __init__(self, n):
        self.n = n


def work(job):
    return job.n * job.n, multiprocessing.current_process().daemon, os.environ["LOCAL_RANK"]


if __name__ == "__main__":
    out = []
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            out.append(pool.map(work, [Job(n) for n in range(4)]))
        with ProcessPoolExecutor(2, mp_context=context) as executor:
            out.append(list(executor.map(work, [Job(3)])))
    with multiprocessing.Manager() as manager:
        names = manager.dict(a=1)
        out.append(dict(names))
    block = shared_memory.SharedMemory(create=True, size=16)
    block.buf[:5] = b"bytes"
    other = shared_memory.SharedMemory(block.name)
    out.append(bytes(other.buf[:5]))
    other.close()
    block.close()
    block.unlink()
    out.append(subprocess.run([sys.executable, "-c", "import os; print(os.environ['RANK'])"], capture_output=True, text=True).stdout)
    out.append(multiprocessing.active_children())
    with open(os.path.join(os.environ["OUT"], "out" + os.environ["RANK"]), "w") as f:
        f.write(repr(out))
