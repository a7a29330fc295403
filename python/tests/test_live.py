"""muster.live against an agent of this file's, which decides about real processes."""

import importlib.util
import json
import os
import queue
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH = importlib.util.find_spec("torch")
WAIT = 60  # seconds, for a machine that is busy


class Worker:
    def __init__(self, agent, ident, environ, arguments):
        self.ident, self.sock, self.lines, self.messages = ident, None, [], []
        self.member, self.ready, self.gone, self.spare = False, None, False, False
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "live_worker.py"), *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=agent.errors, env=dict(os.environ, OMP_NUM_THREADS="1", **environ))
        threading.Thread(target=self.read, args=(agent.events,), daemon=True).start()

    def read(self, events):
        for line in self.process.stdout:
            events.put((self, "line", json.loads(line)))
        events.put((self, "end", None))

    def send(self, **message):
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # its end comes as an event

    def steps(self):
        return [line for line in self.lines if "step" in line]

    def at(self, step):
        return [line for line in self.steps() if line["step"] == step][-1]


class Agent:
    """Begins a change when a member is lost or fails, and brings in whoever asks."""

    def __init__(self, test, steps=30, batch=24, keep="global"):
        import torch.distributed as dist

        self.arguments = (steps, batch, keep)
        self.dir = tempfile.TemporaryDirectory()
        test.addCleanup(self.dir.cleanup)
        self.errors = tempfile.TemporaryFile()
        test.addCleanup(self.errors.close)
        self.events = queue.Queue()
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.path = os.path.join(self.dir.name, "live")
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.path)
        self.server.listen()
        test.addCleanup(self.server.close)
        threading.Thread(target=self.accept, daemon=True).start()
        self.workers, self.change, self.open = {}, 0, False
        self.hold = 1  # how many are awaited before the next members are decided
        self.changes = []  # messages of members, without what differs
        test.addCleanup(self.stop)

    def stop(self):
        for worker in self.workers.values():
            worker.process.kill()
            worker.process.wait()
            worker.process.stdout.close()
            if worker.sock:
                worker.sock.close()

    def accept(self):
        while True:
            try:
                sock, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.listen, args=(sock,), daemon=True).start()

    def listen(self, sock):
        worker = None
        with sock.makefile("rb") as lines:
            try:
                for line in lines:
                    message = json.loads(line)
                    if message["type"] == "hello":
                        worker = self.workers[message["id"]]
                        worker.sock = sock
                    self.events.put((worker, "message", message))
            except OSError:
                pass
        self.events.put((worker, "hangup", None))

    def start(self, n, rank=None, world=None, spare=False, **environ):
        started = []
        for i in range(n):
            ident = "w%d" % len(self.workers)
            self.workers[ident] = worker = Worker(self, ident, dict(
                environ, MUSTER_LIVE_SOCKET=self.path, MUSTER_LIVE_ID=ident,
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.store.port),
                RANK=str(i if rank is None else rank), WORLD_SIZE=str(world or n)), self.arguments)
            worker.spare = spare
            started.append(worker)
        if not self.change and not spare:
            self.hold = n  # the first members come together
        return started

    def members(self):
        return [w for w in self.workers.values() if w.member]

    def waiting(self):
        return [w for w in self.workers.values() if w.ready and not (w.member or w.gone or w.spare)]

    def begin(self, urgent, at=0, without=()):
        self.change += 1
        self.open, self.at = True, at
        for worker in without:
            worker.member = False
        for worker in self.members():
            worker.ready = None
            worker.send(type="change", change=self.change, urgent=urgent, reason="test", **({} if urgent else {"at": at}))

    def decide(self):
        """Sends the members when all have answered."""
        old, joining = self.members(), self.waiting()
        if len(joining) < self.hold:
            return
        if not self.change:
            self.change, self.open = 1, True
        if not self.open or any(not w.ready or w.ready["change"] != self.change for w in old):
            return
        self.open, self.hold = False, 0
        together = old + joining
        if not together:
            return
        steps = [w.ready["step"] for w in together]
        joined = list(range(len(old), len(together)))
        source = -1
        if joined or len(set(steps)) > 1 or min(steps) < 0:
            source = max(range(len(old) or len(together)), key=lambda i: (steps[i], -i))
        message = dict(type="members", change=self.change, uuid=self.change, world=len(together),
                       handles=[w.ready["handle"] for w in together], steps=steps, source=source, joined=joined, timeout=4)
        self.changes.append(message)
        for rank, worker in enumerate(together):
            worker.member, worker.ready = True, None
            worker.send(rank=rank, env={"RANK": str(rank), "WORLD_SIZE": str(len(together))}, **message)

    def step(self):
        """Handles one event."""
        worker, kind, value = self.events.get(timeout=WAIT)
        if kind == "line":
            worker.lines.append(value)
        elif kind == "message":
            worker.messages.append(value)
            if value["type"] == "ready":
                worker.ready = value
            elif value["type"] == "at" and self.open and value["step"] >= self.at:
                for member in self.members():
                    member.send(type="change", change=self.change, urgent=True, reason="too late")
            elif value["type"] == "failed" and value["change"] == self.change and not self.open:
                # A lost member's own connection ends at the same time.
                self.begin(urgent=True)
        elif kind == "hangup" and worker:
            worker.gone = True
            if worker.member and worker.process.wait(WAIT) != 0:  # otherwise it has completed all steps
                self.begin(urgent=True, without=[worker])
            worker.member = False
        self.decide()

    def until(self, what):
        end = time.monotonic() + WAIT
        while not what():
            assert time.monotonic() < end, "timed out"
            try:
                self.step()
            except queue.Empty:
                raise AssertionError("nothing happens: %r\n%s" % (
                    {w.ident: (w.lines[-1:], w.messages[-1:]) for w in self.workers.values()}, self.said())) from None

    def until_end(self, workers):
        self.until(lambda: all("end" in (w.lines or [{}])[-1] for w in workers))
        for worker in workers:
            assert worker.process.wait(WAIT) == 0, self.said()

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode()


def reached(worker, step):
    return lambda: any(line["step"] >= step for line in worker.steps())


@unittest.skipUnless(TORCH, "needs PyTorch")
class Live(unittest.TestCase):
    def same_sums(self, workers):
        """Equal steps have equal sums, once the last word on each is spoken."""
        sums = {}
        for worker in workers:
            for line in {line["step"]: line for line in worker.steps()}.values():
                sums.setdefault(line["step"], {})[worker.ident] = (line["sum"], line["mean"])
        for step, found in sorted(sums.items()):
            self.assertEqual(len(set(found.values())), 1, (step, found))
        return {step: next(iter(found.values())) for step, found in sums.items()}

    def each_once(self, workers, steps, batch):
        """In the epochs of which all ranks said which samples they took."""
        shares = {}
        for worker in workers:
            for line in worker.steps():
                shares.setdefault(line["step"], {}).setdefault(line["world"], {})[line["rank"]] = line["samples"]
        taken = {step: sum(found.values(), []) for step, worlds in shares.items()
                 for world, found in worlds.items() if len(found) == world}
        per, epochs = 96 // batch, 0
        for first in range(0, steps, per):
            parts = [taken.get(step) for step in range(first, first + per)]
            if all(parts):
                epochs += 1
                self.assertEqual(sorted(sum(parts, [])), list(range(96)))
        self.assertGreaterEqual(epochs, steps // per - 2)

    def test_undisturbed(self):
        agent = Agent(self, steps=8)
        workers = agent.start(3)
        agent.until_end(workers)
        sums = self.same_sums(workers)
        self.each_once(workers, 8, 24)
        alone = Agent(self, steps=8)
        one = alone.start(1)
        alone.until_end(one)
        for step, (total, mean) in self.same_sums(one).items():
            self.assertAlmostEqual(total, sums[step][0], places=9)
            self.assertEqual(mean, step + 1)

    def test_killed(self):
        """One of three is killed; the others go on, and a replacement joins."""
        agent = Agent(self, steps=120)
        workers = agent.start(3)
        spare, = agent.start(1, rank=2, world=3, spare=True, LIVE_SEED="5")
        agent.until(lambda: spare.ready)
        agent.until(reached(workers[2], 20))
        killed = time.time()
        workers[2].process.kill()
        left = workers[:2]
        agent.until(lambda: all(w.steps()[-1]["world"] == 2 for w in left))
        after = [min(line["t"] for line in w.steps() if line["world"] == 2) - killed for w in left]
        print("killed: %s ms" % [round(1e3 * seconds) for seconds in after], file=sys.stderr)
        spare.spare = False
        agent.begin(urgent=False)
        agent.until_end([*left, spare])
        self.assertEqual([m["world"] for m in agent.changes], [3, 2, 3])
        self.assertEqual(agent.changes[2]["joined"], [2])
        self.assertGreater(spare.steps()[0]["step"], 20)
        self.same_sums([*left, spare])
        self.each_once([*workers, spare], 120, 24)
        for worker in left:
            steps = [line["step"] for line in worker.steps()]
            self.assertEqual(steps, sorted(set(steps)))
            self.assertEqual(worker.steps()[-1]["mean"], 120)


if __name__ == "__main__":
    unittest.main()
