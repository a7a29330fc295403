"""muster.live against an agent of this file's, which decides about real processes."""

import functools
import importlib.util
import json
import multiprocessing
import os
import queue
import signal
import socket
import tempfile
import threading
import time
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH = importlib.util.find_spec("torch")
WAIT = 120  # seconds, for a machine that is busy: longer than the limit of a collective


# Its processes have imported torch before they are forked.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["live_worker"])


class Forgotten(Exception):
    """A worker that was to go on has ended by itself, since gloo had forgotten a message."""


def again(tests):
    """gloo may forget a message where ranks break off a step, which is its fault and not the
    tests' (docs/live.md), so a test to which that happens is done again."""

    def repeated(test):
        @functools.wraps(test)
        def repeat(self):
            for _ in range(2):
                try:
                    return test(self)
                except Forgotten:
                    self.doCleanups()
            return test(self)

        return repeat

    for name, test in list(vars(tests).items()):
        if name.startswith("test_"):
            setattr(tests, name, repeated(test))
    return tests


class Worker:
    def __init__(self, agent, ident, environ):
        self.ident, self.sock, self.lines, self.messages = ident, None, [], []
        self.member, self.ready, self.gone, self.spare, self.place = False, None, False, False, None
        agent.workers[ident] = self  # before the process can say hello
        reader, writer = CONTEXT.Pipe(duplex=False)
        import live_worker

        self.process = CONTEXT.Process(
            target=live_worker.work, args=(environ, writer, agent.errors, *agent.arguments), daemon=True)
        self.process.start()
        writer.close()
        threading.Thread(target=self.read, args=(reader, agent.events), daemon=True).start()

    def read(self, reader, events):
        with reader:
            try:
                while True:
                    events.put((self, "line", reader.recv()))
            except EOFError:
                events.put((self, "end", None))

    def wait(self):
        """Returns the exit code."""
        self.process.join(WAIT)
        return self.process.exitcode

    def kill(self):
        self.process.kill()
        self.wait()

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

    def __init__(self, test, steps=30, batch=24, keep="global", size=1):
        import torch.distributed as dist

        self.arguments, self.size = (steps, batch, keep), size
        self.dir = tempfile.TemporaryDirectory()
        test.addCleanup(self.dir.cleanup)
        self.errors = os.path.join(self.dir.name, "stderr")
        self.events = queue.Queue()
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.path = os.path.join(self.dir.name, "live")
        self.gate = os.path.join(self.dir.name, "gate")
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.path)
        self.server.listen()
        accepting = threading.Thread(target=self.accept, daemon=True)
        accepting.start()

        def close():  # not before nobody accepts: the next test's server may get this one's number
            self.server.shutdown(socket.SHUT_RDWR)
            accepting.join()
            self.server.close()

        test.addCleanup(close)
        self.workers, self.change, self.open = {}, 0, False
        self.hold = 1  # how many are awaited before the next members are decided
        self.changes = []  # messages of members, without what differs
        self.failed = False  # a member's collective
        self.forgets = False  # whether the test makes gloo forget a message
        self.may_begin = lambda: True  # to look for what has failed
        self.before_members = lambda: None
        self.alone = lambda worker: None  # with a worker that joins, when it is told of members and the others are not yet
        self.timeout = 60
        test.addCleanup(self.stop)

    def stop(self):
        for worker in self.workers.values():
            worker.kill()
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
            worker = Worker(self, ident, {
                "MUSTER_LIVE_SOCKET": self.path, "MUSTER_LIVE_ID": ident, "LIVE_GATE": self.gate,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.store.port),
                "RANK": str(i if rank is None else rank), "WORLD_SIZE": str(world or n),
                "LIVE_REPLICA_SIZE": str(self.size), **environ})
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
        self.open, self.at, self.failed = True, at, False
        for worker in without:
            worker.member = False
        for worker in self.members():
            worker.ready = None
            worker.send(type="change", change=self.change, urgent=urgent, reason="test", **({} if urgent else {"at": at}))

    def go(self):
        """Lets the workers pass the step that they may not go beyond."""
        with open(self.gate, "w"):
            pass

    def invite(self):
        """Begins a change before a step that no member has reached, as agents do for a host that
        joins, and returns that step."""
        heard = {worker: len(worker.messages) for worker in self.members()}
        for worker in heard:
            worker.send(type="where", change=self.change + 1)

        def steps():
            return [[m["step"] for m in worker.messages[n:] if m["type"] == "at"] for worker, n in heard.items()]

        self.until(lambda: all(steps()))
        at = max(sum(steps(), [])) + 20
        self.begin(urgent=False, at=at)
        self.go()
        return at

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
        rows = self.rows(old + joining)
        together = [w for w in old + joining if any(w in row for row in rows)]
        for worker in set(old) - set(together):
            worker.member = False  # it waits
        if not together:
            return
        steps = [w.ready["step"] for w in together]
        lineage = max(w.ready["lineage"] for w in together)
        joined = [i for i, w in enumerate(together) if not w.ready["lineage"] == lineage > 0]
        source = -1
        if joined or len(set(steps)) > 1 or min(steps) < 0:
            source = max((i for i, w in enumerate(together) if w.ready["lineage"] == lineage), key=lambda i: (steps[i], -i))
        message = dict(type="members", change=self.change, uuid=self.change, lineage=lineage or self.change,
                       world=len(together),
                       handles=[w.ready["handle"] for w in together], steps=steps, source=source, joined=joined, timeout=self.timeout)
        if self.size > 1:
            message["groups"] = [[together.index(w) for w in row] for row in rows]
        self.changes.append(message)
        self.before_members()
        for rank, worker in reversed(list(enumerate(together))):
            worker.member, worker.ready = True, None
            worker.send(rank=rank, env={"RANK": str(rank), "WORLD_SIZE": str(len(together))}, **message)
            if rank in joined:
                self.alone(worker)

    def rows(self, workers):
        """Whole replica groups of them. Who had a place keeps it."""
        rows, left = [], list(workers)
        while True:
            row = []
            for place in range(self.size):
                fit = [w for w in left if w.place == place] or [w for w in left if w.place is None]
                if not fit:
                    return rows
                row.append(fit[0])
                left.remove(fit[0])
            for place, worker in enumerate(row):
                worker.place = place
            rows.append(row)

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
            elif value["type"] == "failed":
                self.failed = value["change"] == self.change
        elif kind == "hangup" and worker:
            worker.gone = True
            if worker.member and worker.wait() != 0:  # otherwise it has completed all steps
                if not self.forgets and "waits for good, since gloo" in self.said():
                    raise Forgotten(self.said())
                self.begin(urgent=True, without=[worker])
            worker.member = False
        if self.failed and not self.open and self.may_begin():
            self.begin(urgent=True)
        self.decide()

    def until(self, what):
        end = time.monotonic() + 5 * WAIT  # all of it; WAIT is for one event
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
            assert worker.wait() == 0, self.said()

    def said(self):
        with open(self.errors) as f:
            return f.read()


def state(pid):
    """As ps shows it."""
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rsplit(") ", 1)[1][0]


def reached(worker, step):
    return lambda: any(line["step"] >= step for line in worker.steps())


@again
@unittest.skipUnless(TORCH, "needs PyTorch")
class Live(unittest.TestCase):
    def same_sums(self, workers):
        """Equal steps have equal sums, once the last word on each is spoken."""
        sums = {}
        for worker in workers:
            for line in {line["step"]: line for line in worker.steps()}.values():
                sums.setdefault((line["step"], line["place"]), {})[worker.ident] = (line["sum"], line["mean"])
        for step, found in sorted(sums.items()):
            self.assertEqual(len(set(found.values())), 1, (step, found))
        return {step: next(iter(found.values())) for (step, place), found in sums.items() if not place}

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
        workers = agent.start(3, LIVE_FAULT='{"step": 4, "do": "outside"}')
        agent.until_end(workers)
        agent.until(lambda: all(w.gone for w in workers))
        for worker in workers:
            self.assertEqual(worker.messages[-1], {"type": "end"})
            refused, = (line["refused"] for line in worker.lines if "refused" in line)
            self.assertIn("torch.distributed.barrier outside of a step", refused)
        sums = self.same_sums(workers)
        self.each_once(workers, 8, 24)
        alone = Agent(self, steps=8)
        one = alone.start(1)
        alone.until_end(one)
        for step, (total, mean) in self.same_sums(one).items():
            self.assertAlmostEqual(total, sums[step][0], places=9)
            self.assertEqual(mean, step + 1)

    def test_same_members(self):
        """A change that changes nothing."""
        agent = Agent(self, steps=60)
        workers = agent.start(2, LIVE_HOLD="20")
        agent.until(lambda: all(reached(w, 10)() for w in workers))
        agent.invite()
        agent.until_end(workers)
        self.assertEqual([(m["world"], m["joined"], m["source"]) for m in agent.changes], [(2, [0, 1], 0), (2, [], -1)])
        self.same_sums(workers)
        self.each_once(workers, 60, 24)

    def test_killed(self):
        """One of three is killed; the others go on, and a replacement joins."""
        agent = Agent(self, steps=120)
        workers = agent.start(3, LIVE_HOLD="60")
        spare, = agent.start(1, rank=2, world=3, spare=True, LIVE_SEED="5")
        agent.until(lambda: spare.ready)
        agent.until(reached(workers[2], 20))
        killed = time.time()
        workers[2].process.kill()
        left = workers[:2]
        agent.until(lambda: all(line["world"] == 2 for w in left for line in w.steps()[-1:]))
        after = [min(line["t"] for line in w.steps() if line["world"] == 2) - killed for w in left]
        self.assertLess(max(after), 10)  # 50 ms on a quiet machine
        spare.spare = False
        agent.invite()
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

    def test_a_replica_group(self):
        """One of 2 x 2 ranks is killed; the other group goes on. The rank that shared a state with it
        rests until there is a replacement."""
        agent = Agent(self, steps=120, size=2)
        workers = agent.start(4, LIVE_HOLD="60")
        spare, = agent.start(1, rank=3, world=4, spare=True, LIVE_SEED="5")
        agent.until(lambda: spare.ready)
        agent.until(reached(workers[3], 20))
        workers[3].process.kill()
        left = workers[:2]
        agent.until(lambda: all(line["world"] == 2 for w in left for line in w.steps()[-1:]))
        self.assertEqual((workers[2].member, workers[2].steps()[-1]["world"]), (False, 4))
        spare.spare = False
        agent.invite()
        agent.until_end([*workers[:3], spare])
        self.assertEqual([m["world"] for m in agent.changes], [4, 2, 4])
        self.assertEqual(agent.changes[2]["joined"], [2, 3])
        self.assertEqual({w.steps()[-1]["place"] for w in (workers[2], spare)}, {0, 1})
        self.assertGreater(spare.steps()[0]["step"], 20)
        self.same_sums([*workers, spare])
        self.each_once([*workers, spare], 120, 24)
        for worker in left:
            self.assertEqual([line["step"] for line in worker.steps()], list(range(120)))

    def fails(self, do, may_begin=lambda workers: True, n=3):
        """A collective of the second rank fails in step 5."""
        agent = Agent(self, steps=12)
        workers = agent.start(1, rank=0, world=n)
        workers += agent.start(1, rank=1, world=n, LIVE_FAULT=json.dumps({"step": 5, "do": do}))
        workers += agent.start(1, rank=2, world=n)
        agent.hold = n
        agent.may_begin = lambda: may_begin(workers)
        return agent, workers

    def test_a_step_apart(self):
        """Two ranks have completed the step, and are in the next one."""
        agent, workers = self.fails("raise", lambda workers: all(
            any(line.get("enter") == 6 for line in workers[i].lines) for i in (0, 2)))
        agent.until_end(workers)
        self.assertEqual([m["steps"] for m in agent.changes], [[0, 0, 0], [6, 5, 6]])
        self.assertEqual(agent.changes[1]["source"], 0)
        self.assertEqual([line["step"] for line in workers[1].steps()], [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11])
        self.same_sums(workers)
        for worker in (workers[0], workers[2]):  # which repeated step 6
            draws = [line["draw"] for line in worker.lines if line.get("enter") == 6]
            self.assertEqual([draws[0]] * 2, draws)
        draws = [[line["draw"] for line in worker.lines if "draw" in line][-5:] for worker in workers]
        self.assertEqual(draws[1], draws[0])

    def test_between_two_steps(self):
        """The rank's optimizer had stepped, so it takes another's state."""
        agent, workers = self.fails("mid-step", lambda workers: all(
            any(line.get("enter") == 6 for line in workers[i].lines) for i in (0, 2)))
        agent.until_end(workers)
        self.assertEqual([m["steps"] for m in agent.changes], [[0, 0, 0], [6, -1, 6]])
        self.same_sums(workers)

    def test_no_whole_state(self):
        agent = Agent(self)
        worker, = agent.start(1, LIVE_FAULT='{"step": 5, "do": "mid-step"}')
        agent.until(lambda: worker.gone)
        self.assertEqual(worker.wait(), 1)
        self.assertIn("a collective failed after the optimizer's step on all ranks", agent.said())

    def test_a_bug_is_raised(self):
        agent = Agent(self)
        worker, = agent.start(1, LIVE_FAULT='{"step": 5, "do": "bug"}')
        agent.until(lambda: worker.gone)
        self.assertEqual(worker.wait(), 1)
        self.assertIn("RuntimeError: a bug", agent.said())

    def test_stopped(self):
        """A rank is silent; the others wait for it in a collective, and are told."""
        agent = Agent(self, steps=60)
        workers = agent.start(3, LIVE_HOLD="30")
        silent, left = workers[1], [workers[0], workers[2]]
        agent.until(reached(silent, 10))
        os.kill(silent.process.pid, signal.SIGSTOP)
        while state(silent.process.pid) != "T":
            os.sched_yield()
        told = time.time()
        agent.begin(urgent=True, without=[silent])
        agent.go()
        agent.until_end(left)
        after = [min(line["t"] for line in w.steps() if line["world"] == 2) - told for w in left]
        self.assertLess(max(after), 10)  # 15 ms on a quiet machine; gloo's own limit is 30 minutes
        self.assertEqual([m["world"] for m in agent.changes], [3, 2])
        self.same_sums(left)

    def test_grows(self):
        """Before a step that the agent names."""
        agent = Agent(self, steps=400)
        workers = agent.start(2, LIVE_HOLD="200")
        spare, = agent.start(1, rank=2, world=3, spare=True, LIVE_SEED="5")
        agent.until(lambda: spare.ready)
        agent.until(lambda: all(worker.steps() for worker in workers))
        spare.spare = False
        at = agent.invite()
        agent.until_end([*workers, spare])
        first, second = agent.changes
        self.assertEqual(second["joined"], [2])
        self.assertEqual(second["steps"][0], second["steps"][1])
        self.assertGreaterEqual(second["steps"][0], at)
        self.assertEqual(spare.steps()[0]["step"], second["steps"][0])
        self.same_sums([*workers, spare])
        self.each_once([*workers, spare], 400, 24)

    def test_lost_in_a_change(self):
        """The second loss comes when the members of the first are decided."""
        agent = Agent(self, steps=40, keep="local", batch=8)
        workers = agent.start(3, LIVE_HOLD="20")

        def kill():
            if len(agent.changes) == 2:
                workers[1].kill()

        agent.before_members = kill
        agent.until(reached(workers[2], 10))
        workers[2].process.kill()
        agent.go()
        agent.until_end(workers[:1])
        self.assertEqual([m["world"] for m in agent.changes], [3, 2, 1])
        self.assertEqual(len(workers[0].steps()[-1]["samples"]), 8)

    def test_lost_as_it_takes_the_state(self):
        """Who sends it is not held up by one that does not take it any more."""
        agent = Agent(self, steps=400)
        workers = agent.start(1, LIVE_BALLAST="512", LIVE_TIMEOUT="600", LIVE_HOLD="60")
        late, = agent.start(1, rank=1, world=2, spare=True, LIVE_BALLAST="512", LIVE_STOPS="1")
        agent.until(lambda: late.ready and workers[0].steps())
        late.spare = False
        agent.begin(urgent=True)
        agent.go()
        agent.until(lambda: len(agent.changes) == 2)
        while state(late.process.pid) != "T":
            time.sleep(0.01)
        late.process.kill()
        agent.until_end(workers)
        self.assertEqual([m["world"] for m in agent.changes], [1, 2, 1])
        self.same_sums(workers)

    def lost_as_it_receives(self, how, n):
        agent = Agent(self)
        agent.forgets = how == "forget within"
        workers = agent.start(n, LIVE_FAULT=json.dumps({"do": how, "step": 10}), LIVE_TIMEOUT="3600")
        agent.until(lambda: all(any(line.get("enter") == 10 for line in w.lines) for w in workers))
        agent.until(lambda: {"stops": 1} in workers[1].lines)
        while state(workers[1].process.pid) != "T":
            time.sleep(0.01)
        workers[1].process.kill()
        return agent, workers

    def test_lost_as_it_receives(self):
        """gloo forgets the message, and its sender does not wait for that."""
        agent, workers = self.lost_as_it_receives("forget", 3)
        agent.until_end(workers[::2])
        self.assertEqual([m["world"] for m in agent.changes], [3, 2])
        self.same_sums(workers)

    def test_lost_as_it_receives_within(self):
        """The same where nobody can tell the sender, which ends, too."""
        agent, workers = self.lost_as_it_receives("forget within", 2)
        agent.until(lambda: workers[0].gone)
        self.assertEqual(workers[0].wait(), 1)
        self.assertIn("muster.live: rank 0 waits for good", agent.said())

    def test_lost_as_it_connects(self):
        """It has said where it is, and does nothing more: one that waits to hear from it, or that
        has connected to it, is not held up."""
        agent = Agent(self, steps=10**6)
        agent.timeout = 3600
        worker, = agent.start(1)

        def stop(late):
            while not agent.store.check(["muster.live/0//cpu//reconfigure/%d/0/1" % agent.change]):
                time.sleep(0.001)
            os.kill(late.process.pid, signal.SIGSTOP)

        agent.until(lambda: worker.steps())
        agent.alone = stop
        for _ in range(3):  # whose address is higher connects
            late, = agent.start(1, rank=1, world=2, spare=True)
            agent.until(lambda: late.ready)
            late.spare = False
            agent.begin(urgent=True)
            agent.until(lambda: late.member)
            agent.begin(urgent=True, without=[late])
            agent.until(lambda: agent.changes[-1]["world"] == 1)
            step = worker.steps()[-1]["step"]
            agent.until(reached(worker, step + 1))
            late.kill()
        self.assertEqual([m["world"] for m in agent.changes], [1] + [2, 1] * 3)

    def test_the_agent_goes(self):
        agent = Agent(self)
        worker, = agent.start(1)
        agent.until(reached(worker, 5))
        worker.sock.shutdown(socket.SHUT_RDWR)
        agent.until(lambda: worker.lines[-1] == {"end": 30})
        self.assertEqual(worker.wait(), 0)

    def test_over(self):
        """The training has ended for others while this rank still waits for them."""
        agent = Agent(self, steps=10)
        agent.may_begin = lambda: False
        waits, = agent.start(1, rank=0, world=2)
        agent.arguments = (11, *agent.arguments[1:])
        other, = agent.start(1, rank=1, world=2)
        agent.hold = 2
        agent.until(lambda: reached(waits, 9)() and "enter" in other.lines[-1] and other.lines[-1]["enter"] == 10)
        waits.send(type="over")
        other.process.kill()
        agent.until_end([waits])

    def test_others_do_not_come(self):
        agent = Agent(self)
        worker, = agent.start(1, rank=0, world=2, LIVE_TIMEOUT="0.5")
        agent.hold = 2
        agent.until(lambda: worker.gone)
        self.assertEqual(worker.wait(), 1)
        self.assertIn("the other workers have not come to muster.live.join within 0.5 s", agent.said())

    def test_without_muster(self):
        agent = Agent(self, steps=3)
        worker, = agent.start(1, MUSTER_LIVE_SOCKET="", MASTER_PORT="0")
        agent.until(lambda: worker.lines[-1:] == [{"end": 3}])
        self.assertIs(worker.lines[0]["live"], False)
        self.assertEqual(worker.wait(), 0)
        self.assertEqual(agent.said(), "muster.live: this process is not a worker of muster run --live, "
                                       "so the loss of a rank ends this job, or restarts it\n")

    def test_what_cannot_change(self):
        from muster.live import _cannot

        def older(backend=None, init_method=None, timeout=None):
            pass

        import torch
        import torch.distributed as dist

        os.environ["MUSTER_LIVE_SOCKET"] = "/nowhere"
        self.addCleanup(os.environ.pop, "MUSTER_LIVE_SOCKET")
        for *args, why in (
            (types.SimpleNamespace(init_process_group=older), "gloo", f"PyTorch {torch.__version__} cannot change the members of a process group"),
            (dist, None, "live changes work with gloo only, not with the default backend"),
            (dist, "nccl2", "live changes work with gloo only, not with nccl2"),
            (dist, "gloo", ""),
        ):
            self.assertEqual(_cannot(*args), why)


class GroupUUID(unittest.TestCase):
    def test_of_late_rounds(self):
        """A UUID fits, whatever the round is, and no two groups of a job have the same."""
        from muster._livetorch import group_uuid

        rounds = (1, 2046, 2047, 1 << 30)
        found = {group_uuid(((n + 1) << 32) + n, number) for n in rounds for number in range(3)}
        self.assertEqual(len(found), 12)
        self.assertTrue(all(0 <= one < 1 << 63 for one in found))


class Sampler(unittest.TestCase):
    def test_each_sample_once_an_epoch(self):
        from muster.live import Sampler

        random = __import__("random").Random(17)
        for _ in range(200):
            keep = random.choice(("global", "local"))
            world = random.randint(1, 6)
            length, batch = random.randint(1, 60), random.randint(1, 40)
            taken = []
            one = Sampler(length, batch, shuffle=False, keep=keep)
            run = one._run = types.SimpleNamespace(rank=0, world=world)
            while one.epoch == 0:
                shares = []
                for run.rank in range(run.world):
                    shares.append((one.indices(), one.scale))
                n = sum(len(share) for share, scale in shares if scale)
                for share, scale in shares:
                    if not scale:
                        self.assertEqual(len(share), 1)
                        continue
                    self.assertAlmostEqual(scale, len(share) * run.world / n)
                    self.assertLessEqual(len(share), batch + (keep == "local"))
                    taken += share
                one._advance()
                run.world = random.randint(1, 6)
            self.assertEqual(taken, list(range(length)), (keep, length, batch))


if __name__ == "__main__":
    unittest.main()
