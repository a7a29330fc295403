"""PyTorch's FileTimerServer alone. Arguments: the FIFO's path, max_interval. Prints the path; ends with its standard input.

It does not kill itself after it killed a worker, which PyTorch's does: one server could be measured once only."""

import os
import sys

from torch.distributed.elastic.timer import FileTimerServer


class Server(FileTimerServer):
    def _reap_worker(self, worker_pid, signal):
        return worker_pid == os.getpid() or super()._reap_worker(worker_pid, signal)


server = Server(sys.argv[1], "bench", float(sys.argv[2]))
server.start()
print(f"listening on {sys.argv[1]}", flush=True)
sys.stdin.read()
os._exit(0)
