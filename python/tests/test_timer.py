"""muster.timer against the real server.

The Go test TestSocketPython starts this with a server, whose path is in
MUSTER_TIMER_SOCKET and whose state it tells over the descriptors that
TIMER_TEST_CONTROL names. Without those only the tests that need none run.
"""

import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

import muster
from muster import _socket, timer
from muster.timer import ENV_SOCKET, TimerClient, TimerError, expires

PATH = os.environ.get(ENV_SOCKET, "")
SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(muster.__file__)))

try:
    import importlib.util

    TORCH = importlib.util.find_spec("torch") is not None
except ImportError:
    TORCH = False

if "TIMER_TEST_CONTROL" in os.environ:
    _read, _write = map(int, os.environ["TIMER_TEST_CONTROL"].split(","))
    _answers = os.fdopen(_read)
else:
    _answers = None


def ask(command):
    os.write(_write, command.encode() + b"\n")
    return json.loads(_answers.readline())


def live(pid=None):
    """The scopes that a process holds, by default this one."""
    return sorted(scope for p, scope, _, _ in ask("live") if p == (pid or os.getpid()))


def run(code, **env):
    """Runs a program, which may use a timer, to its end; (exit status, output)."""
    full = {**os.environ, "PYTHONPATH": SOURCE, **env}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=full, stdout=subprocess.PIPE, timeout=300, text=True
    )
    return done.returncode, done.stdout


class WithoutMuster(unittest.TestCase):
    """MUSTER_TIMER_SOCKET is not set."""

    def setUp(self):
        os.environ.pop(ENV_SOCKET, None)
        self.addCleanup(lambda: PATH and os.environ.update({ENV_SOCKET: PATH}))

    def test_nothing_happens(self):
        client = TimerClient()
        self.assertIsNone(client.acquire("a", time.time()))
        self.assertIsNone(client.release("a"))
        self.assertFalse(client.heartbeat(1))
        self.assertFalse(muster.heartbeat())
        self.assertFalse(muster.heartbeat(step=3))
        with expires(after=0):
            pass
        with self.assertRaises(KeyError):
            with expires(after=0, scope="x"):
                raise KeyError

    def test_import_is_light(self):
        status, out = run(
            """
            import sys
            before = set(sys.modules)
            import muster.timer
            muster.heartbeat(1)
            with muster.timer.expires(3): pass
            print(*sorted(set(sys.modules) - before))
            """,
            MUSTER_TIMER_SOCKET="",
        )
        self.assertEqual(status, 0)
        loaded = set(out.split())
        self.assertLessEqual({"muster.timer", "muster._socket"}, loaded)
        self.assertEqual(loaded & {"socket", "torch", "asyncio", "logging", "typing_extensions"}, set())

    def test_bad_arguments(self):
        for fields in ({"signal": 65}, {"timeout": 0}, {"timeout": float("nan")}, {"timeout": 1e-9}):
            with self.assertRaises(ValueError, msg=fields):
                TimerClient("/nowhere", **fields)
        client = TimerClient("/nowhere")
        with self.assertRaises(ValueError):
            client.acquire("x" * 4097, 1.0)
        for step in (-1, -2, 1 << 63):
            with self.assertRaises(ValueError, msg=step):
                client.heartbeat(step)

    def test_nobody_listens(self):
        for path in ("/nowhere/socket", "/dev/null", "/nowhere/" + "d" * 200 + "/socket"):
            client = TimerClient(path)
            with self.assertRaises(TimerError) as caught:
                client.acquire("a", 1.0)
            self.assertIn("no timer server at " + path, str(caught.exception))
            client.release("a")
            self.assertFalse(client.heartbeat(1))
            with self.assertRaises(TimerError):
                with expires(after=1, client=client):
                    self.fail("the block ran without its timer")


class Recorder:
    """A client that has the timers in a list."""

    def __init__(self):
        self.held, self.left = [], []

    def acquire(self, scope, until):
        self.held.append((scope, until))

    def release(self, scope):
        self.left.append(scope)


class Deadline(unittest.TestCase):
    def test_times(self):
        for after, want in ((60, 60), (0.5, 0.5), ("500ms", 0.5), ("60s", 60), ("10m", 600), ("1h30m", 5400), ("1.5s", 1.5)):
            client, begin = Recorder(), time.time()
            with muster.deadline(after, client):
                pass
            (scope, until), = client.held
            self.assertTrue(begin + want <= until <= time.time() + want, (after, until - begin))
            self.assertEqual(client.left, [scope])
            self.assertRegex(scope, r"test_timer\.py#\d+$")
        for after in (0, -1, float("nan"), "", "60", "1h 30m", "5 s", "-5s", "x"):
            with self.assertRaisesRegex(ValueError, "neither a number of seconds nor a time"):
                muster.deadline(after)

    def test_each_call_has_its_own(self):
        client = Recorder()

        @muster.deadline("1m", client)
        def count(n):
            """Counts."""
            if n == 0:
                raise KeyError(n)
            return count(n - 1)

        with self.assertRaises(KeyError):
            count(1)
        scopes = [scope for scope, _ in client.held]
        self.assertEqual(len(set(scopes)), 2)
        self.assertEqual(client.left, scopes[::-1])
        self.assertIn("#%d" % count.__wrapped__.__code__.co_firstlineno, scopes[0])
        self.assertEqual((count.__name__, count.__doc__), ("count", "Counts."))

    def test_no_coroutines(self):
        async def step():
            pass

        with self.assertRaisesRegex(TypeError, "step is a coroutine or a generator"):
            muster.deadline(1)(step)

    def test_says_once_that_it_does_nothing(self):
        status, out = run(
            """
            import logging, sys
            logging.basicConfig(stream=sys.stdout, format="%(message)s")
            import muster
            step = muster.deadline(1)(lambda: None)
            step()
            step()
            """,
            MUSTER_TIMER_SOCKET="",
        )
        self.assertEqual((status, out), (0, "muster.deadline has no effect: this process is not a worker of muster run\n"))


class Fake:
    """A server that says what it is told to; None hangs up, "" says nothing."""

    def __init__(self, *answers):
        self.dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.dir.name, "s")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        self.frames = []
        self.answers = list(answers)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while self.answers:
            conn, _ = self.listener.accept()
            with conn:
                while self.answers:
                    answer = self.answers[0]
                    if isinstance(answer, str) and answer == "reject":
                        self.answers.pop(0)
                        conn.send(reply(3, "no room"))
                        break
                    frame = conn.recv(10000)
                    if not frame:
                        break
                    self.frames.append(frame)
                    self.answers.pop(0)
                    if answer is None:
                        break
                    if answer:
                        conn.send(answer)
        self.listener.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.thread.join()
        self.dir.cleanup()


def reply(status, text=""):
    return struct.pack("!BBH", 1, status, len(text)) + text.encode()


class Frames(unittest.TestCase):
    """What is sent, byte for byte: docs/internals/timers.md."""

    def test_requests(self):
        with Fake(reply(0), reply(0), "", reply(0)) as fake:
            client = TimerClient(fake.path, signal=15)
            client.acquire("scöpe", 1700000000.5)
            client.release("scöpe")
            self.assertTrue(client.heartbeat(258))
            client.release("")
            client.close()
        self.assertEqual(
            [f.hex() for f in fake.frames],
            [
                "01010f00" "00000000" "41d954fc40200000" "0006" "7363c3b67065",
                "01020000" "00000000" "0000000000000000" "0006" "7363c3b67065",
                "01030000" "00000000" "0000000000000102" "0000",
                "01020000" "00000000" "0000000000000000" "0000",
            ],
        )

    def test_answers(self):
        for answer, want in (
            (reply(1, "malformed"), "malformed"),
            (reply(2, "not yours"), "not yours"),
            (reply(9), "status 9"),
            (b"\1\0", "cut short"),
            (b"\2\0\0\0", "version 2"),
        ):
            with Fake(answer) as fake:
                client = TimerClient(fake.path)
                with self.assertRaises(TimerError) as caught:
                    client.acquire("a", 1.0)
                self.assertIn(want, str(caught.exception))

    def test_a_new_server_at_the_same_path(self):
        with Fake(reply(0), None, reply(0)) as fake:
            client = TimerClient(fake.path)
            client.acquire("a", 1.0)
            client.acquire("a", 2.0)  # hung up at, so sent again
            client.close()
        self.assertEqual(len(fake.frames), 3)
        self.assertEqual(fake.frames[1], fake.frames[2])

    def test_rejected(self):
        with Fake("reject") as fake:
            client = TimerClient(fake.path)
            with self.assertRaises(TimerError):
                client.acquire("a", 1.0)

    def test_hangs_up(self):
        with Fake(None) as fake:
            with self.assertRaises(TimerError):
                TimerClient(fake.path).acquire("a", 1.0)

    def test_silence(self):
        with Fake("", "", reply(0)) as fake:
            client = TimerClient(fake.path, timeout=3)  # which the last answer may take
            with self.assertLogs("muster", "WARNING") as logged:
                timer._said.clear()
                client.acquire("a", 1.0)
            self.assertIn("the agent does not answer timer requests", logged.output[0])
            client.release("b")
            client.close()
        self.assertEqual([f[1] for f in fake.frames], [_socket.ACQUIRE, _socket.RELEASE, _socket.RELEASE])
        self.assertEqual(fake.frames[1][18:], b"a")

    def test_a_stopped_agent_ends_no_work(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "s")
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(path)
                listener.listen(1)
                client = TimerClient(path, timeout=0.01)
                with self.assertLogs("muster", "WARNING") as logged:
                    timer._said.clear()
                    for _ in range(5):  # more than wait for the listener
                        with muster.deadline(60, client):
                            pass
                        client.acquire("a", 1.0)  # as torch's expires calls them
                        client.release("a")
        self.assertEqual(len(logged.output), 1)

    def test_a_heartbeat_does_not_wait(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "s")
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(path)
                listener.listen()
                client = TimerClient(path, timeout=1000)
                sent = 0
                while client.heartbeat(sent):
                    sent += 1
                self.assertGreater(sent, 10)
                self.assertFalse(client.heartbeat(sent))

    def test_sigpipe(self):
        status, _ = run(
            """
            import os, signal, socket, sys, tempfile
            from muster.timer import TimerClient
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            path = os.path.join(tempfile.mkdtemp(), "s")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(path)
            listener.listen()
            client = TimerClient(path)
            client.heartbeat(1)
            listener.accept()[0].close()
            listener.close()
            os.remove(path)
            os.rmdir(os.path.dirname(path))
            sys.exit(3 if client.heartbeat(2) else 4)
            """
        )
        self.assertEqual(status, 4)

    def test_pickle(self):
        self.assertEqual(TimerClient("/nowhere", signal=-1)._signal, 0)  # as PyTorch's: report only
        client = pickle.loads(pickle.dumps(TimerClient("/nowhere", signal=15, timeout=2.5)))
        self.assertEqual((client.path, client._signal, client._timeout), ("/nowhere", 15, 2.5))


@unittest.skipIf(_answers is None, "needs the server of TestSocketPython")
class Server(unittest.TestCase):
    def setUp(self):
        self.client = TimerClient()
        self.addCleanup(self.client.close)
        self.assertEqual(live(), [])

    def test_acquire_and_release(self):
        self.client.acquire("a", 4e9)
        self.assertEqual(ask("live"), [[os.getpid(), "a", 4e9, 9]])
        self.client.acquire("a", float("inf"))
        self.client.acquire("b", float("nan"))
        self.assertEqual(live(), ["a", "b"])
        self.client.release("a")
        self.client.release("b")
        self.client.release("b")
        self.assertEqual(live(), [])

    def test_scopes(self):
        for scope in ("", "ünï\n\0", "x" * 4096, "\ud800"):
            self.client.acquire(scope, 4e9)
            self.assertEqual(live(), [scope.encode("utf-8", "replace").decode()])
            self.client.release(scope)

    def test_reaped_at_the_deadline(self):
        status, out = run(
            """
            import time, muster
            from muster.timer import expires
            with expires(after=60):
                pass
            print("begin", flush=True)
            with expires(after=0.2):
                time.sleep(600)
            """
        )
        self.assertEqual((status, out), (-signal.SIGKILL, "begin\n"))

    def test_signal(self):
        status, out = run(
            """
            import sys, signal, time
            from muster.timer import TimerClient, expires
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
            with expires(0.1, "mine", client=TimerClient(signal=signal.SIGTERM)):
                while True:  # a signal just before a long sleep would not interrupt it
                    time.sleep(0.05)
            """
        )
        self.assertEqual((status, out), (5, ""))

    def test_default_scope(self):
        with expires(after=1000):
            line = sys._getframe().f_lineno - 1
            self.assertEqual(live(), ["%s#%d" % (__file__, line)])
            with expires(after=1000):
                self.assertEqual(live(), ["%s#%d" % (__file__, line), "%s#%d" % (__file__, line + 3)])
        self.assertEqual(live(), [])

    def test_recursion(self):
        def walk(depth):
            with expires(after=1000):
                return walk(depth - 1) if depth else live()

        stem = "%s#%d" % (__file__, walk.__code__.co_firstlineno + 1)
        for _ in range(2):
            self.assertEqual(walk(2), [stem, stem + "~2", stem + "~3"])
            self.assertEqual(live(), [])

    def test_explicit_scope(self):
        with expires(1000, "mine"):
            self.assertEqual(live(), ["mine"])
        self.assertEqual(live(), [])

    def test_error_in_the_block(self):
        with self.assertRaises(KeyError):
            with expires(1000):
                raise KeyError
        self.assertEqual(live(), [])

    def test_one_object_many_times(self):
        guard = expires(1000, "again")
        for _ in range(3):
            with guard:
                self.assertEqual(live(), ["again"])
            self.assertEqual(live(), [])

    def test_one_object_in_two_threads(self):
        guard, inside, leave = expires(1000), threading.Event(), threading.Event()
        self.addCleanup(leave.set)

        def other():
            with guard:
                inside.set()
                leave.wait()

        thread = threading.Thread(target=other)
        with guard:
            first = live()
            thread.start()
            inside.wait()
        self.assertEqual(len(live()), 1)
        self.assertNotEqual(live(), first)
        leave.set()
        thread.join()
        self.assertEqual(live(), [])

    def test_threads(self):
        errors = []

        def work(n):
            try:
                for i in range(50):
                    with expires(1000):
                        with expires(1000, "%d/%d" % (n, i)):
                            muster.heartbeat(i)
                    self.client.acquire("kept by %d" % n, 4e9)
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(errors, [])
        self.assertEqual(live(), ["kept by %d" % n for n in range(8)])
        for n in range(8):
            self.client.release("kept by %d" % n)

    def test_fork(self):
        self.client.acquire("the parent's", 4e9)
        with expires(1000):
            mine = live()
            done, go = os.pipe(), os.pipe()
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    self.client.acquire("the child's", 4e9)
                    self.client.release("the parent's")  # it has none of that name
                    os.write(done[1], b"x")
                    os.read(go[0], 1)
                    status = 0
                finally:
                    os._exit(status)
            self.assertEqual(os.read(done[0], 1), b"x")
            self.assertEqual(live(pid), ["the child's"])
            self.assertEqual(live(), mine)
            os.write(go[1], b"x")
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            for fd in (*done, *go):
                os.close(fd)
        self.client.release("the parent's")

    def test_another_process(self):
        """A frame that names a process that does not descend from this one."""
        conn = _socket.Connection(PATH, 5)
        self.addCleanup(conn.close)
        frame = _socket.REQUEST_TIME.pack(1, _socket.ACQUIRE, 9, os.getppid(), 4e9, 1) + b"a"
        with self.assertRaises(TimerError) as caught:
            conn.request(frame)
        self.assertIn("may time itself and its descendants, and %d is none" % os.getppid(), str(caught.exception))
        self.assertEqual(live(os.getppid()), [])

    def test_heartbeat(self):
        for step, want in ((0, 0), (12, 12), (None, -1), ((1 << 63) - 1, (1 << 63) - 1)):
            self.assertTrue(muster.heartbeat(step))
            self.client.release("what is answered after it")
            if len(muster.timer._client._idle.conns) == 1:
                muster.timer._client.release("on its own connection")
            self.assertEqual(ask("beat %d" % os.getpid()), want)
        self.assertTrue(muster.heartbeat(step=7))

    def test_signal_handler_in_a_request(self):
        """A handler that uses the client while the main thread does."""
        seen = []
        signal.signal(signal.SIGALRM, lambda *_: (self.client.acquire("handler", 4e9), seen.append(1)))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            while len(seen) < 20:
                self.client.acquire("main", 4e9)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self.assertEqual(live(), ["handler", "main"])
        self.client.release("handler")
        self.client.release("main")

    def test_interrupted(self):
        """An exception out of a handler leaves no answer for the next request."""

        class Stop(Exception):
            pass

        def stop(*_):
            raise Stop

        signal.signal(signal.SIGALRM, stop)
        stopped = 0
        try:
            while stopped < 20:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0005)
                    while True:
                        with self.assertRaises(TimerError):
                            self.client._exchange(
                                _socket.REQUEST_TIME.pack(1, _socket.ACQUIRE, 9, 1, 4e9, 1) + b"a",
                                _socket.Connection.request,
                            )
                except Stop:
                    stopped += 1
                self.client.acquire("fine", 4e9)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self.client.release("fine")

    def test_restarted_server(self):
        self.client.acquire("a", 4e9)
        self.assertTrue(ask("restart"))
        self.client.acquire("b", 4e9)
        self.assertEqual(live(), ["b"])
        self.client.release("b")

    @unittest.skipUnless(TORCH, "needs PyTorch")
    def test_torch_nested(self):
        """PyTorch gives all of these the same name, contextlib's line."""
        from torch.distributed.elastic import timer

        timer.configure(self.client)
        with timer.expires(after=1000):
            outer = sys._getframe().f_lineno - 1
            with self.assertRaises(KeyError):
                with timer.expires(after=1000):
                    self.assertEqual(live(), ["%s#%d" % (__file__, line) for line in (outer, outer + 3)])
                    raise KeyError
            self.assertEqual(live(), ["%s#%d" % (__file__, outer)])
            with timer.expires(after=1000, scope="named"):
                self.assertEqual(live(), ["%s#%d" % (__file__, outer), "named"])
        self.assertEqual(live(), [])
        with self.assertRaises(TimerError):
            with timer.expires(after=1000, client=TimerClient("/nowhere")):
                self.fail("the block ran without its timer")
        with timer.expires(after=1000):
            self.assertEqual(live(), ["%s#%d" % (__file__, sys._getframe().f_lineno - 1)])

    @unittest.skipUnless(TORCH, "needs PyTorch")
    def test_torch(self):
        status, out = run(
            """
            import time
            from torch.distributed.elastic import timer
            import muster
            client = muster.timer.TimerClient()
            assert isinstance(client, timer.TimerClient)
            timer.configure(client)
            with timer.expires(after=60):
                pass
            with timer.expires(after=60, scope="x"):
                pass
            print("begin", flush=True)
            with timer.expires(after=0.3):
                time.sleep(600)
            """
        )
        self.assertEqual((status, out), (-signal.SIGKILL, "begin\n"))


if __name__ == "__main__":
    unittest.main()
