"""Rendezvous clients of PyTorch, one thread each: for every number of nodes given prints a line with the seconds that they take to meet.

The endpoint's server and the clients' connections are made before, and are used by all rounds."""

import sys
import threading
import time

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

rounds = [int(n) for n in sys.argv[1:]]
server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
stores = [TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False) for _ in range(max(rounds))]


def meet(run_id, nodes):
    handlers = [
        DynamicRendezvousHandler.from_backend(run_id, s, C10dRendezvousBackend(s, run_id), nodes, nodes, local_addr="127.0.0.1")
        for s in stores[:nodes]
    ]
    ranks = [None] * nodes

    def join(i):
        ranks[i] = handlers[i].next_rendezvous().rank

    threads = [threading.Thread(target=join, args=(i,)) for i in range(nodes)]
    begin = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = time.perf_counter() - begin
    assert sorted(ranks) == list(range(nodes)), ranks
    for h in handlers:
        h.shutdown()
    return took


for i, n in enumerate(rounds):
    print(meet(f"job{i}", n), flush=True)
