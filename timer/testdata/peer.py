"""PyTorch's side of the tests: real clients and the real server."""

import json
import math
import os
import sys
import time

from torch.distributed.elastic import timer


def say(text):
    print(text, flush=True)


def client(path):
    """One timer of each kind."""
    c = timer.FileTimerClient(path)
    c.acquire("plain", 1e11)
    c.acquire("whole", 100000000001)
    c.acquire('é"\\\n漢😀', 1e11 + 2)
    c.acquire("\ud83d", 1e11 + 3)
    c.acquire("inf", math.inf)
    c.acquire("nan", math.nan)
    c.acquire("large", 1e22)
    c.acquire("gone", 1e11)
    c.release("gone")
    c.release("never was")
    timer.FileTimerClient(path, signal=15).acquire("term", 1e11 + 4)
    timer.configure(c)
    with timer.expires(after=10000):
        with timer.expires(after=20000, scope="inner"):
            say("inside")
            sys.stdin.readline()
    say("outside")
    sys.stdin.readline()


def hang(path, signal):
    """A hang that its timer ends."""
    timer.configure(timer.FileTimerClient(path, signal=int(signal)))
    say("ready")
    with timer.expires(after=0.2, scope="hang"):
        time.sleep(1000)


def errors(path):
    c = timer.FileTimerClient(path)
    try:
        c.acquire("x" * 4096, 1e11)
    except RuntimeError as e:
        say(type(e).__name__ + ": " + str(e)[:50])
    # The longest text that it sends: with the newline it is over PIPE_BUF.
    room = 4096 - len('{"version": 1, "pid": %d, "scope_id": "", "expiration_time": 100000000000.0, "signal": 9}' % os.getpid())
    c.acquire("y" * room, 1e11)
    say("sent")
    sys.stdin.readline()


def server(path):
    """Says what it does; does not kill itself."""

    class Server(timer.FileTimerServer):
        def _reap_worker(self, worker_pid, signal):
            return worker_pid == os.getpid() or super()._reap_worker(worker_pid, signal)

        def register_timers(self, requests):
            super().register_timers(requests)
            for r in requests:
                say(r.to_json())

    def event(name, request):
        if request is not None:
            say(name + " " + request.scope_id)

    s = Server(path, "test", 0.05, log_event=event)
    s.start()
    say("listening")
    sys.stdin.readline()
    s.stop()


globals()[sys.argv[1]](*sys.argv[2:])
