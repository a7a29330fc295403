"""run, start and read_report: jobs as a Python program has them."""

import fcntl
import functools
import glob
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

import jobs
import muster
from muster import _agent, _options, api, job, report
from test_launch import METHODS, Quiet, launch

SOURCE = os.environ.get("MUSTER_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Run(Quiet):
    def test_values_by_rank(self):
        for method in METHODS:
            with self.subTest(method):
                self.assertEqual(muster.run(jobs.rank_plus, (5,), nproc_per_node=2, start_method=method), {0: 5, 1: 6})

    @unittest.skipUnless(sys.platform == "linux", "warm starts are Linux's")
    def test_warm(self):
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": self.dir.name}):
            for method, known in (("spawn", False), ("spawn", True), ("forkserver", True)):
                with self.subTest(method, known=known):
                    got = muster.run(jobs.how_warm, nproc_per_node=2, start_method=method, warm=True)
                    self.assertEqual(got, dict.fromkeys((0, 1), (True, known)))
            with self.assertRaisesRegex(muster.ConfigError, "leave warm out"):
                muster.run(jobs.how_warm, start_method="fork", warm=True)
            for method in ("fork", "forkserver"):  # where warm comes from the environment
                with self.subTest(method), mock.patch.dict(os.environ, {"MUSTER_WARM": "1"}):
                    got = muster.run(jobs.how_warm, nproc_per_node=1, start_method=method)
                    self.assertEqual(got, {0: (True, mock.ANY)})  # a fork, of a server
        self.assertEqual(len(os.listdir(os.path.join(self.dir.name, "muster", "warm"))), 1)  # of one function

    def test_files_of_a_job_are_locked(self):  # against systemd-tmpfiles
        launch = api.Launch(jobs.rank_plus, (), "", False)
        dir = os.open(launch.job, os.O_RDONLY)
        self.addCleanup(os.close, dir)
        with self.assertRaises(BlockingIOError):
            fcntl.flock(dir, fcntl.LOCK_EX | fcntl.LOCK_NB)
        launch.close()
        fcntl.flock(dir, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_keyword_arguments(self):
        self.assertEqual(muster.run(functools.partial(jobs.rank_plus, number=5), nproc_per_node=1), {0: 5})
        self.assertEqual(muster.elastic_launch(jobs.config(1), jobs.rank_plus)(number=5), {0: 5})

    def test_one_worker_for_each_device(self):
        self.assertEqual(muster.run(jobs.leave, (0,), devices=2), {0: None, 1: None})

    def test_variables(self):
        file = os.path.join(self.dir.name, "env")
        with open(file, "w") as f:
            f.write("QB=of the file\nQC=3\n")
        none = dict.fromkeys(("QA", "QB", "QC"))
        with mock.patch.dict(os.environ, {"QC": "here"}):
            for options, want in (
                ({"env": {"QA": 1, "QB": "x,y=z"}}, {"QA": "1", "QB": "x,y=z", "QC": "here"}),
                ({"env": ["QA=1", "QB=a,b"], "env_file": file}, {"QA": "1", "QB": "a,b", "QC": "3"}),
                ({"env": ("QA=1",), "env_file": [pathlib.Path(file)]}, {"QA": "1", "QB": "of the file", "QC": "3"}),
                ({"env": "QA=1,QB=2"}, {"QA": "1,QB=2", "QC": "here"}),
                ({"env": {"QC": None}}, {"QC": "here"}),
            ):
                with self.subTest(options):
                    got = muster.run(jobs.environment, tuple(none), nproc_per_node=1, **options)
                    self.assertEqual(got[0], {**none, **want})

    def test_streams_by_rank(self):
        for value in ({0: 3}, {0: muster.Std.ALL}, "0:3"):
            with self.subTest(value), tempfile.TemporaryDirectory() as dir:
                muster.run(jobs.say, ("out", "err"), nproc_per_node=2, redirects=value, tee={1: 1}, log_dir=dir)
                found = glob.glob(os.path.join(dir, "*", "attempt_0", "*", "*.log"))
                self.assertEqual(sorted(path.split("attempt_0" + os.sep)[1] for path in found), ["0/stderr.log", "0/stdout.log", "1/stdout.log"])
        with self.assertRaisesRegex(muster.ConfigError, "tee is neither a Std nor a dict of them by local rank: {0: 'x'}"):
            muster.run(jobs.say, ("out", "err"), nproc_per_node=2, tee={0: "x"})

    def test_part_of_a_second(self):
        self.assertEqual(muster.run(jobs.rank_plus, (5,), nproc_per_node=1, shutdown_timeout=2.5), {0: 5})

    def test_false_overrides(self):
        config = os.path.join(self.dir.name, "job.yaml")
        with open(config, "w") as f:
            f.write("virtual_local_rank: true\nwarm: true\nverbose: true\n")
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": self.dir.name}):
            for given in (True, False):
                options = {"warm": given, "virtual_local_rank": given, "verbose": given}
                got = muster.run(jobs.environment, ("LOCAL_RANK", "MUSTER_VERBOSE"), nproc_per_node=2, config=config, **options)
                self.assertEqual(got[1], {"LOCAL_RANK": "0" if given else "1", "MUSTER_VERBOSE": None})
                self.assertEqual(os.path.isdir(os.path.join(self.dir.name, "muster", "warm")), given)
                self.assertEqual("worker ended" in self.said(), given, self.said())
                os.truncate(self.stderr, 0)
                shutil.rmtree(os.path.join(self.dir.name, "muster"), ignore_errors=True)

    def test_script(self):
        script = os.path.join(self.dir.name, "s.py")
        with open(script, "w") as f:
            f.write("import os, sys; sys.exit(sys.argv[1:] != ['--lr', '0.1'])")
        self.assertEqual(muster.run(script, ["--lr", 0.1], nproc_per_node=2), {})

    def test_failure_says_its_cause_and_nothing_else(self):
        with self.assertRaises(muster.ChildFailedError) as caught:
            muster.run(jobs.fail_on, (1, "boom"), nproc_per_node=2, log_dir=self.dir.name)
        found = muster.read_report(self.dir.name)
        first, hint = str(caught.exception).splitlines()
        self.assertEqual(first, "fail_on failed: " + found.cause)
        self.assertIn("rank 1", found.cause)
        self.assertIn("ValueError: boom", found.cause)
        self.assertEqual(muster.read_report(hint[len("hint: muster report "):]), found)
        self.assertEqual([(f.rank, f.kind, f.root, f.exit_code) for f in found.failures],
                         [(1, "failed", True, 1), (0, "stopped", False, -15)])
        self.assertEqual(found.failures[0].message, "ValueError: boom")

    def test_deadline(self):
        with self.assertRaises(muster.ChildFailedError):
            muster.run(jobs.too_slow, nproc_per_node=1, log_dir=self.dir.name)
        self.assertIn("jobs.py#", muster.read_report(self.dir.name).failures[0].timer)

    def test_refused(self):
        for kind, text, options in (
            (TypeError, "run.. has no option 'hang_timout'; did you mean 'hang_timeout'?", {"hang_timout": 3}),
            (muster.ConfigError, "max.restarts.*'x'", {"max_restarts": "x"}),
            (muster.ConfigError, "start_method must be one of", {"start_method": "x"}),
            (muster.ConfigError, "module is for a script", {"module": True}),
            (muster.ConfigError, r"rdzv_conf\['a'\]: 'b,c' cannot be a value", {"rdzv_conf": {"a": "b,c"}}),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                muster.run(jobs.see, nproc_per_node=1, **options)
        with self.assertRaisesRegex(TypeError, "got the string 'abc'"):
            muster.run("script.py", "abc")

    def test_words(self):
        for value, want in ((2, "2"), (0.5, "0.5"), ("1h", "1h"), (muster.Std.ALL, "3"), (["a,b", "c"], "a,,b,c"), ((0, 1), "0,1")):
            self.assertEqual(job._word(value), want)


class Reaped(Quiet):
    """Somebody else in the program takes the status of the agent's process."""

    def check(self):
        self.assertEqual(muster.run(jobs.rank_plus, (5,), nproc_per_node=2), {0: 5, 1: 6})
        with self.assertRaisesRegex(muster.ChildFailedError, "exit code 3"):
            muster.run(jobs.leave, (3,), nproc_per_node=1)
        self.assertEqual(launch(jobs.rank_plus, 5), {0: 5, 1: 6})
        self.assertEqual(self.failure("/bin/sh", "-c", "exit 4").get_first_failure()[1].exitcode, 4)
        with self.assertRaisesRegex(muster.LaunchError, "max.restarts"):
            muster.run(jobs.leave, (0,), nproc_per_node=1, max_restarts="x")
        for status, state in ((0, "succeeded"), (3, "failed")):
            started = muster.start(jobs.leave, (status,), nproc_per_node=1)
            started._ended.wait()
            self.assertEqual(started.state, state)

    def test_by_the_system(self):
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGCHLD, before)
        self.check()

    def test_by_another_thread(self):
        ended = _agent._until_zombie

        def and_reaped(child):
            ended(child)
            try:
                os.waitpid(child.pid, 0)
            except ChildProcessError:
                pass  # when called the first time

        with mock.patch.object(_agent, "_until_zombie", and_reaped):
            self.check()


class Start(Quiet):
    def start(self, **options):
        """A job whose worker waits for a signal, once it is ready."""
        fifo = os.path.join(self.dir.name, "fifo")
        os.mkfifo(fifo)
        started = muster.start(jobs.wait_for_signal, (fifo,), nproc_per_node=1, **options)
        self.addCleanup(started.stop)
        with open(fifo) as f:
            self.assertTrue(f.readline())
        return started

    def test_wait(self):
        started = muster.start(jobs.rank_plus, (5,), nproc_per_node=2)
        self.assertEqual((started.wait(), started.state), ({0: 5, 1: 6}, "succeeded"))
        started.stop()
        self.assertEqual((started.wait(), started.state), ({0: 5, 1: 6}, "succeeded"))

    def test_stop(self):
        started = self.start(rdzv_id="mine")
        self.assertEqual((started.state, started.run_id), ("running", "mine"))
        os.kill(started.pid, 0)
        with self.assertRaisesRegex(TimeoutError, "the job still runs after 0 s"):
            started.wait(0)
        started.stop()
        self.assertEqual((started.state, started.run_id), ("stopped", "mine"))
        with self.assertRaises(muster.SignalException):
            started.wait()
        with open(os.path.join(self.dir.name, "fifo.0")) as f:
            self.assertEqual(f.read(), "SIGTERM")

    def test_block_stops_it(self):
        with self.start() as started:
            pass
        self.assertEqual(started.state, "stopped")

    def test_stopped_by_another(self):
        started = self.start()
        os.kill(started.pid, signal.SIGINT)
        with self.assertRaises(muster.LaunchError):
            started.wait()
        self.assertEqual(started.state, "stopped")

    def test_failure(self):
        started = muster.start(jobs.leave, (3,), nproc_per_node=1, log_dir=self.dir.name)
        with self.assertRaisesRegex(muster.ChildFailedError, "exit code 3"):
            started.wait()
        self.assertEqual((started.state, started.log_dir), ("failed", self.dir.name))

    def test_outlives_the_thread_that_started_it(self):
        for method in METHODS:
            fifo, got = os.path.join(self.dir.name, method), []
            os.mkfifo(fifo)
            thread = threading.Thread(
                target=lambda: got.append(muster.start(jobs.read, (fifo,), nproc_per_node=1, start_method=method)))
            thread.start()
            thread.join()
            with open(fifo, "w") as f:
                f.write("go on")
            self.assertEqual(got[0].wait(), {0: "go on"}, method)

    def test_ends_with_the_program(self):
        fifo = os.path.join(self.dir.name, "end")
        code = ("import os, sys; sys.path.insert(0, %r); import jobs, muster; os.mkfifo(%r); "
                "muster.start(jobs.wait_for_signal, (%r,), nproc_per_node=1); open(%r).readline()"
                % (os.path.dirname(jobs.__file__), fifo, fifo, fifo))
        self.assertEqual(subprocess.run([sys.executable, "-c", code], timeout=900).returncode, 0, self.said())
        self.assertTrue(os.path.exists(fifo + ".0"), "its worker got no signal")

    def test_argument_that_cannot_be_sent(self):
        with self.assertRaisesRegex(muster.ConfigError, "argument 0 of see"):
            muster.start(jobs.see, (jobs.Picky(),), nproc_per_node=1)


class Reports(unittest.TestCase):
    def test_unusable(self):
        with tempfile.TemporaryDirectory() as dir:
            with self.assertRaisesRegex(FileNotFoundError, "no report.json in .*: its job has not failed, or"):
                muster.read_report(dir)
            for text, why in (
                ("{", "is not a report: "), ("[]", "want an object, got .]"), ('{"version": 2}', "is of version 2.*update muster-run"),
                ('{"failures": 1}', "failures: want a list, got 1"), ('{"failures": [{"rank": "x"}]}', "failures: rank: want int, got 'x'"),
            ):
                with open(os.path.join(dir, "report.json"), "w") as f:
                    f.write(text)
                with self.assertRaisesRegex(ValueError, why):
                    muster.read_report(dir)

    @unittest.skipUnless(os.path.isdir(os.path.join(SOURCE, "docs")), "needs the source tree")
    def test_fields_are_those_of_the_page(self):
        import dataclasses

        with open(os.path.join(SOURCE, "docs", "formats.md"), encoding="utf-8") as f:
            page = f.read()
        for cls, heading in ((report.Report, "## report.json"), (report.Failure, "### Of each failure"),
                             (report.Preemption, "### Of a preempted job"), (report.PreemptedWorker, "### Of each preempted worker")):
            section = page.split("\n%s\n" % heading)[1].split("\n#")[0]
            names = [n for row in re.findall(r"^\| (`[^|]*) \|", section, re.M) for n in re.findall("`(\\w+)`", row)]
            self.assertEqual(sorted(f.name for f in dataclasses.fields(cls)), sorted(names), heading)


class Callbacks(unittest.TestCase):
    """Stubs of the trainers call the hooks as the real ones do."""

    def heartbeat(self, name, package, base):
        """The class for a framework that consists of its class Callback, and the steps that it sends."""
        from unittest import mock

        steps = []
        parts = package.split(".")
        stubs = {".".join(parts[:n + 1]): types.ModuleType(part) for n, part in enumerate(parts)}
        setattr(stubs[package], base, type(base, (), {}))
        with mock.patch.dict(sys.modules, stubs), mock.patch("muster.timer.heartbeat", steps.append):
            sys.modules.pop(name, None)
            callback = importlib.import_module(name).Heartbeat()
            sys.modules.pop(name)
        return callback, steps

    def test_lightning(self):
        for package in ("lightning.pytorch", "pytorch_lightning"):
            callback, steps = self.heartbeat("muster.lightning", package, "Callback")
            trainer = types.SimpleNamespace(global_step=0)
            for step in (1, 2):
                trainer.global_step = step
                callback.on_train_batch_end(trainer, None, {}, [], step - 1)
            callback.on_validation_batch_end(trainer, None, {}, [], 0, dataloader_idx=0)
            self.assertEqual(steps, [1, 2, 2], package)

    def test_transformers(self):
        callback, steps = self.heartbeat("muster.transformers", "transformers", "TrainerCallback")
        state = types.SimpleNamespace(global_step=0)
        callback.on_substep_end(None, state, None, model=None)
        state.global_step = 1
        callback.on_step_end(None, state, None, model=None)
        callback.on_prediction_step(None, state, None)
        self.assertEqual(steps, [0, 1, 1])


if __name__ == "__main__":
    unittest.main()
