"""elastic_launch with real workers."""

import dataclasses
import glob
import json
import os
import pickle
import random
import select
import signal
import socket
import stat
import string
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import types
import unittest
import unittest.mock
import warnings

import jobs
import muster
from muster import _flags, errors

METHODS = ("spawn", "fork", "forkserver")

try:
    import cloudpickle
except ImportError:
    cloudpickle = None

warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork")


def launch(entrypoint, *args, nproc=2, **fields):
    return muster.elastic_launch(jobs.config(nproc, **fields), entrypoint)(*args)


class ErrorFile(unittest.TestCase):
    """What a report says that a worker has recorded is read with care."""

    def data(self, write, host=socket.gethostname()):
        from muster import errors

        with tempfile.TemporaryDirectory() as dir:
            path, report = os.path.join(dir, "error.json"), os.path.join(dir, "report.json")
            write(path)
            with open(report, "w") as f:
                json.dump({"failures": [{"rank": 3, "host": host, "error_file": path, "message": "from the report"}]}, f)
            failures, _ = errors.by_rank(muster.read_report(report))
        return failures[3].error_file_data["message"]

    def test_error_file(self):
        def plain(path):
            with open(path, "w") as f:
                json.dump({"message": "from the file"}, f)

        def link(path):
            plain(path + ".other")
            os.symlink(path + ".other", path)

        def large(path):
            with open(path, "w") as f:
                json.dump({"message": "x" * (4 << 20)}, f)

        self.assertEqual(self.data(plain), "from the file")
        self.assertEqual(self.data(plain, "another-host")["message"], "from the report")
        for write in (os.mkfifo, link, large, os.mkdir, lambda path: os.symlink("/dev/zero", path), lambda path: None):
            self.assertEqual(self.data(write)["message"], "from the report")


class Quiet(unittest.TestCase):
    """Tests whose jobs fail: what muster writes to stderr goes to a file."""

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        sys.stderr.flush()
        before, self.stderr = os.dup(2), os.path.join(self.dir.name, "stderr")
        fd = os.open(self.stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, 2)
        os.close(fd)

        def restore():
            os.dup2(before, 2)
            os.close(before)

        self.addCleanup(restore)

    def said(self):
        with open(self.stderr) as f:
            return f.read()

    def failure(self, *args, **fields):
        with self.assertRaises(muster.ChildFailedError) as caught:
            launch(*args, **fields)
        return caught.exception


class Values(Quiet):
    def test_by_rank(self):
        for method in METHODS:
            with self.subTest(method):
                self.assertEqual(launch(jobs.rank_plus, 10, nproc=4, start_method=method), {0: 10, 1: 11, 2: 12, 3: 13})

    def test_objects(self):
        for method in METHODS:
            with self.subTest(method):
                self.assertEqual(launch(jobs.point, start_method=method), {0: jobs.Point(0), 1: jobs.Point(1)})

    def test_large(self):
        self.assertEqual(launch(jobs.big, 30 << 20, nproc=1), {0: b"x" * (30 << 20)})

    def test_object_as_function(self):
        self.assertEqual(launch(jobs.Callable(), nproc=1), {0: "called"})

    def test_left_without_a_value(self):
        for method in METHODS:
            with self.subTest(method):
                self.assertEqual(launch(jobs.leave, 0, start_method=method), {0: None, 1: None})

    def test_arguments_and_macro(self):
        got = launch(jobs.see, "a ${local_rank} $$ ${LOCAL_RANK}", 2.5, {"k": [1]}, nproc=2)
        self.assertEqual(got[1], ("a 1 $ ${LOCAL_RANK}", 2.5, {"k": [1]}))

    def test_of_the_last_attempt(self):
        for method in METHODS:
            with self.subTest(method), tempfile.TemporaryDirectory() as dir:
                self.assertEqual(launch(jobs.fail_first, dir, max_restarts=2, start_method=method), {0: 1, 1: 1})

    def test_environment(self):
        for method in METHODS:
            with self.subTest(method):
                got = launch(jobs.environment, "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "ROLE_NAME", "PET_NNODES",
                             role="r", start_method=method)
                self.assertEqual(got[1], {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test", "ROLE_NAME": "r",
                                          "PET_NNODES": None})

    def test_variables_of_the_command_line_do_not_count(self):
        os.environ["PET_NNODES"] = "7"
        self.addCleanup(os.environ.pop, "PET_NNODES")
        os.environ["MUSTER_CONFIG"] = "/nosuch.yaml"
        self.addCleanup(os.environ.pop, "MUSTER_CONFIG")
        self.assertEqual(launch(jobs.rank_plus, 0, nproc=1), {0: 0})

    def test_in_a_thread(self):
        got = []

        def run():
            got.extend(launch(jobs.rank_plus, 1, start_method=method) for method in METHODS)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        self.assertEqual(got, [{0: 1, 1: 2}] * 3)

    @unittest.skipUnless(sys.platform == "linux", "needs cgroups")
    def test_forks_are_where_muster_put_them(self):
        if "muster-" not in launch(jobs.cgroup, nproc=1)[0]:
            self.skipTest("no right to make cgroups here")
        for method in ("fork", "forkserver"):
            self.assertIn("muster-", launch(jobs.cgroup, nproc=1, start_method=method)[0])

    def test_within_a_worker(self):
        self.assertEqual(launch(jobs.launch_within, nproc=1), {0: {0: 40}})

    def test_current_directory(self):
        """What others have put there is not imported."""
        with tempfile.TemporaryDirectory() as dir, tempfile.TemporaryDirectory() as cwd:
            script = os.path.join(dir, "script.py")
            with open(script, "w") as f:
                f.write("import jobs, muster\nif __name__ == '__main__':\n"
                        "    print(muster.elastic_launch(jobs.config(1, start_method='forkserver'), jobs.rank_plus)(7))\n")
            for name in ("signal", "socket", "threading"):
                with open(os.path.join(cwd, name + ".py"), "w") as f:
                    f.write("raise SystemExit('shadowed')")
            path = os.pathsep.join([os.path.dirname(os.path.abspath(jobs.__file__)), os.path.dirname(os.path.dirname(os.path.abspath(muster.__file__)))])
            done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, env=dict(os.environ, PYTHONPATH=path))
            self.assertEqual((done.stdout, b"shadowed" in done.stderr), (b"{0: 7}\n", False), done.stderr)

    def test_standard_modules_come_first(self):
        """Old backports lie where muster does; and another muster is before it."""
        site, other = os.path.join(self.dir.name, "site"), os.path.join(self.dir.name, "other")
        os.makedirs(os.path.join(other, "muster"))
        for path in (os.path.join(other, "muster", "__init__.py"), os.path.join(site, "dataclasses.py"), os.path.join(site, "typing.py")):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write("raise SystemExit('shadowed')")
        os.symlink(os.path.dirname(os.path.abspath(muster.__file__)), os.path.join(site, "muster"))
        script = os.path.join(self.dir.name, "script.py")
        with open(script, "w") as f:
            f.write("import sys\nif __name__ == '__main__':\n    sys.path.remove(%r)\n    sys.path += [%r, %r]\nimport dataclasses, jobs, muster\nif __name__ == '__main__':\n"
                    "    print(muster.elastic_launch(jobs.config(1, start_method=sys.argv[1]), jobs.paths)())\n" % (
                        other, site, os.path.dirname(os.path.abspath(jobs.__file__))))
        for method in METHODS:
            with self.subTest(method):
                done = subprocess.run([sys.executable, "-S", script, method], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      env=dict(os.environ, PYTHONPATH=other))
                self.assertEqual(done.stdout.decode(), "{0: %r}\n" % ((dataclasses.__file__, os.path.join(site, "muster", "__init__.py")),), done.stderr)

    def test_lambda(self):
        add = 5
        # A fork has it in memory; otherwise it must be sent.
        self.assertEqual(launch(lambda: add + 1, nproc=1, start_method="fork"), {0: 6})
        if cloudpickle is None:
            with self.assertRaisesRegex(muster.ConfigError, "function <lambda> cannot be sent.*cloudpickle"):
                launch(lambda: add + 1, nproc=1)
        else:
            self.assertEqual(launch(lambda: add + 1, nproc=1), {0: 6})


class Programs(Quiet):
    def test_values_are_none(self):
        self.assertEqual(launch("/bin/true", nproc=3), {0: None, 1: None, 2: None})

    def test_arguments(self):
        path = os.path.join(self.dir.name, "seen.")
        launch("/bin/sh", "-c", 'printf "%s " "$RANK" "$@" >"$0$RANK"', path, "a b", "${local_rank}", 3)
        with open(path + "1") as f:
            self.assertEqual(f.read(), "1 a b 1 3 ")

    def test_macros_are_torch_s(self):
        given = ["${rank} ${role_name} ${hostname}", "$${rank} $$${rank} $$$${rank}", "$rank $$rank", "${local_rank}${rank}$", "for rank in a; do echo ${rank}; done"]
        path = os.path.join(self.dir.name, "seen")
        write = "import json, os, sys; json.dump(sys.argv[2:], open(sys.argv[1] + os.environ['RANK'], 'w'))"
        script = os.path.join(self.dir.name, "script.py")
        with open(script, "w") as f:
            f.write(write)
        for program in ([sys.executable, "-c", write], [sys.executable, "-u", script]):
            launch(*program, path, *given)
            with open(path + "1") as f:
                self.assertEqual(json.load(f), [string.Template(arg).safe_substitute(local_rank="1") for arg in given])

    def test_python(self):
        code = "import os; open(%r + os.environ['RANK'], 'w')" % os.path.join(self.dir.name, "py.")
        for flags in ([], ["-u"]):
            launch(sys.executable, *flags, "-c", code)
            self.assertEqual(len(glob.glob(os.path.join(self.dir.name, "py.*"))), 2)

    def test_failure(self):
        e = self.failure("/bin/sh", "-c", "exit 3")
        self.assertEqual(e.name, "/bin/sh")
        self.assertEqual(e.get_first_failure()[1].exitcode, 3)
        script = os.path.join(self.dir.name, "train.py")
        with open(script, "w") as f:
            f.write("raise SystemExit(4)")
        self.assertEqual(self.failure(sys.executable, "-u", script, nproc=1).name, script)

    def test_missing(self):
        with self.assertRaisesRegex(muster.ConfigError, "cannot run /nowhere/program"):
            launch("/nowhere/program")


class Failures(Quiet):
    def test_exception(self):
        for method in METHODS:
            with self.subTest(method):
                e = self.failure(jobs.fail_on, 1, "boom \u00e9", nproc=3, start_method=method)
                self.assertEqual((e.name, list(e.failures), sorted(e.stopped)), ("fail_on", [1], [0, 2]))
                rank, first = e.get_first_failure()
                self.assertEqual((rank, first.rank, first.local_rank, first.exitcode), (1, 1, 1, 1))
                self.assertEqual(first.message["message"], "ValueError: boom \u00e9")
                self.assertEqual(first.error_file_data["message"], first.message)
                self.assertTrue(first.traceback.startswith("Traceback (most recent call last):\n  File "), first.traceback)
                self.assertIn("in fail_on", first.traceback)
                self.assertNotIn("_worker.py", first.traceback)
                self.assertIn("cause     : ValueError: boom \u00e9", str(e))
                self.assertNotIn("muster: rank", self.said())  # the exception says it
                self.assertTrue(os.path.isfile(e.report))

    def test_unreadable_report(self):
        """Another agent of the same log directory has not written its report to the end."""
        logs = os.path.join(self.dir.name, "logs")
        other = os.path.join(logs, "other", "attempt_0")
        for text in ("", "[]"):
            script = 'mkdir -p %s; printf "%s" >%s/report.json; exit 3' % (other, text, other)
            e = self.failure("/bin/sh", "-c", script, nproc=1, logs_specs=muster.DefaultLogsSpecs(log_dir=logs))
            self.assertEqual(e.get_first_failure()[1].exitcode, 3)

    def test_program_that_says_why(self):
        e = self.failure("/bin/sh", "-c", "echo out of cheese >&2; exit 3", nproc=1, logs_specs=muster.DefaultLogsSpecs(redirects=muster.Std.ALL))
        self.assertRegex(str(e), r"(?s)\n  log       : /.*\n  traceback : none, .*\n  stderr    : the last lines\n    out of cheese\n")

    def test_exit_status(self):
        for method in METHODS:
            with self.subTest(method):
                first = self.failure(jobs.leave, 7, start_method=method).get_first_failure()[1]
                self.assertEqual((first.exitcode, first.signal_name()), (7, "<N/A>"))

    def test_signal(self):
        for method in METHODS:
            with self.subTest(method):
                first = self.failure(jobs.die, signal.SIGKILL, nproc=1, start_method=method).get_first_failure()[1]
                self.assertEqual((first.exitcode, first.signal_name()), (-9, "SIGKILL"))
                self.assertIn("SIGKILL", str(first.message))

    def test_value_that_cannot_be_sent(self):
        if cloudpickle is not None:
            self.skipTest("cloudpickle sends it")
        first = self.failure(jobs.unsendable, nproc=1).get_first_failure()[1]
        self.assertIn("the value that unsendable returned, a function, cannot be sent back", first.message["message"])

    def test_no_log_directory(self):
        e = self.failure(jobs.fail_on, 0, "x", logs_specs=muster.DefaultLogsSpecs(log_dir=os.devnull))
        self.assertEqual((e.get_first_failure()[1].error_file, e.report), ("<N/A>", ""))

    def test_survives_pickle(self):
        e = self.failure(jobs.leave, 1)
        again = pickle.loads(pickle.dumps(e))
        self.assertEqual((again.name, again.failures, str(again)), (e.name, e.failures, str(e)))

    def test_restarts_are_used_up(self):
        with tempfile.TemporaryDirectory() as dir:
            e = self.failure(jobs.leave, 2, max_restarts=1, nproc=1, logs_specs=muster.DefaultLogsSpecs(log_dir=dir))
            self.assertEqual(os.path.basename(os.path.dirname(e.report)), "attempt_1")


class LikeTorch(unittest.TestCase):
    def test_signal(self):
        """Where PyTorch is loaded, the exception is also its own."""
        class SignalException(Exception):
            def __init__(self, msg, sigval):  # as torch has it
                super().__init__(msg)
                self.sigval = sigval

        theirs = types.ModuleType(errors.TORCH_API)
        theirs.SignalException = SignalException
        with unittest.mock.patch.dict(sys.modules, {errors.TORCH_API: theirs}):
            e = errors.like_torch(errors.SignalException, errors.TORCH_API)("stopped", signal.SIGTERM)
        self.assertIsInstance(e, SignalException)
        self.assertIsInstance(e, muster.SignalException)
        self.assertEqual((str(e), e.sigval), ("stopped", signal.SIGTERM))


class Refused(Quiet):
    def refused(self, pattern, entrypoint=jobs.rank_plus, *args, **fields):
        with self.assertRaisesRegex(muster.ConfigError, pattern) as caught:
            launch(entrypoint, *args, **fields)
        self.assertIsInstance(caught.exception, ValueError)

    def test_argument(self):
        self.refused("argument 1 of see, a Picky, cannot be sent to the workers.*picky does not travel", jobs.see, 1, jobs.Picky())

    def test_entrypoint(self):
        self.refused("must be a function or the name of a program, got None", None)

    def test_fields(self):
        self.refused("start_method must be one of", start_method="thread")
        self.refused("nproc_per_node must be a whole number, got '2'", nproc="2")
        self.refused("at least one worker is needed, got 0", nproc=0)
        self.refused("max restarts must be >= 0", max_restarts=-1)
        self.refused("'bogus' is not known|\"bogus\" is not known", rdzv_backend="bogus", rdzv_endpoint="localhost:1")
        self.refused("'1,2' cannot be a value of --rdzv-conf", rdzv_configs={"read_timeout": "1,2"})
        self.refused(r"^rdzv_configs\['password'\]: \*\*\* cannot be a value of", rdzv_configs={"password": "S3,cret"})

    def test_rdzv_configs(self):
        line = _flags.flags(jobs.config(rdzv_configs={"is_host": None, "join_timeout": 600.0}), "")
        self.assertIn("--rdzv-conf=join_timeout=600", line)

    def test_password(self):
        line, secret = _flags.split(_flags.flags(jobs.config(rdzv_configs={"user": "u", "password": "S3cret"}), ""))
        self.assertNotIn("S3cret", " ".join(line))
        self.assertEqual(secret, {"PET_RDZV_CONF": "user=u,password=S3cret"})
        line, secret = _flags.split(_flags.flags(jobs.config(rdzv_configs={"Passwd": "S3cret"}), ""))  # which is misspelt
        self.assertNotIn("S3cret", " ".join(line))
        line, secret = _flags.split(_flags.flags(jobs.config(rdzv_configs={"token_file": "/t"}), ""))
        self.assertIn("--rdzv-conf=token_file=/t", line)
        self.assertEqual(secret, {})

    def test_shutdown_timeout(self):
        with self.assertRaisesRegex(ValueError, "must be non-negative, got -1"):
            jobs.config(shutdown_timeout=-1)

    def test_no_binary(self):
        environ = unittest.mock.patch.dict(os.environ, MUSTER_BINARY="/nowhere/muster")
        environ.start()
        self.addCleanup(environ.stop)
        self.refused("MUSTER_BINARY=/nowhere/muster is not a program")
        other = os.path.join(self.dir.name, "muster")
        with open(other, "w") as f:
            f.write("\x7fELF of another machine")
        os.chmod(other, 0o700)
        os.environ["MUSTER_BINARY"] = other
        self.refused("muster: Exec format error; is the wheel one for this platform?")

    def test_defined_in_no_file(self):
        code = "import jobs, muster\ndef f(): return 1\nprint(muster.elastic_launch(jobs.config(1), f)())"
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=os.path.dirname(jobs.__file__))
        if cloudpickle is None:
            self.assertIn(b"f is defined in a session that workers cannot import; define it", done.stderr)
        else:
            self.assertEqual(done.stdout, b"{0: 1}\n")

    def test_launch_without_a_guard(self):
        if cloudpickle is not None:
            self.skipTest("where nothing is imported by name, no guard is needed")
        script = os.path.join(self.dir.name, "noguard.py")
        with open(script, "w") as f:
            f.write("import jobs, muster\ndef f(): return 1\nmuster.elastic_launch(jobs.config(1), f)()\n")
        path = os.pathsep.join([os.path.dirname(jobs.__file__), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run([sys.executable, script], stderr=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=path))
        self.assertIn(b"put it under: if __name__ ==", done.stderr)
        self.assertEqual(done.returncode, 1)


class OwnSpecs(muster.DefaultLogsSpecs):
    """Names the files itself, as torch lets a subclass do."""

    def reify(self, envs):
        raise AssertionError("called")


class Logs(Quiet):
    def test_own_reify(self):
        with self.assertRaisesRegex(muster.ConfigError, "logs_specs: OwnSpecs has a reify of its own, which muster does not call"):
            launch(jobs.say, "a", "b", logs_specs=OwnSpecs())

    def test_files(self):
        for method in METHODS:
            with self.subTest(method), tempfile.TemporaryDirectory() as dir:
                specs = muster.DefaultLogsSpecs(log_dir=dir, redirects={0: muster.Std.OUT, 1: muster.Std.ALL})
                launch(jobs.say, "to stdout", "to stderr", logs_specs=specs, start_method=method)
                got = {}
                for path in glob.glob(os.path.join(dir, "test_*", "attempt_0", "*", "*.log")):
                    with open(path) as f:
                        got[path.split("attempt_0" + os.sep)[1]] = f.read()
                self.assertEqual(got, {"0/stdout.log": "to stdout\n", "1/stdout.log": "to stdout\n", "1/stderr.log": "to stderr\n"})
        self.assertEqual(self.said().count("to stderr\n"), 3)

    def test_std_from_str(self):
        self.assertEqual(muster.Std.from_str("3"), muster.Std.ALL)
        self.assertEqual(muster.Std.from_str("0:3,12:1"), {0: muster.Std.ALL, 12: muster.Std.OUT})
        self.assertEqual(muster.Std.from_str("3\n"), muster.Std.ALL)  # as PyTorch
        for text in ("4", "", "a", "0:", "0:4", "0:1,", "-1:3", " 0:1", "0: 1"):
            with self.assertRaises(ValueError):
                muster.Std.from_str(text)

    def test_nothing_is_left(self):
        with tempfile.TemporaryDirectory() as dir:
            before, tempfile.tempdir = tempfile.tempdir, dir
            try:
                for method in METHODS:
                    launch(jobs.rank_plus, 1, start_method=method)
            finally:
                tempfile.tempdir = before
            self.assertEqual(os.listdir(dir), [])


class Places(Quiet):
    def test_temporary_directory_with_an_odd_or_long_name(self):
        for name in ("a ${local_rank} $x 'q' \u00e9", "long" * 40):
            dir = os.path.join(self.dir.name, name)
            os.mkdir(dir)
            before, tempfile.tempdir = tempfile.tempdir, dir
            try:
                for method in METHODS:
                    with self.subTest(name, method=method):
                        self.assertEqual(launch(jobs.rank_plus, 1, start_method=method), {0: 1, 1: 2})
            finally:
                tempfile.tempdir = before

    def test_run_id_that_is_no_file_name(self):
        e = self.failure(jobs.leave, 3, nproc=1, run_id="team/job 7")
        self.assertEqual(e.get_first_failure()[1].exitcode, 3)

    def test_interpreter_that_needs_pythonhome(self):
        """Here one that has its library elsewhere, and so cannot start without the variable."""
        python = os.path.join(self.dir.name, "python")
        with open(python, "w") as f:
            f.write("#!/bin/sh\ncase \"$PYTHONHOME $*\" in ' '*|*' -I '*) echo 'No module named encodings' >&2; exit 1; esac\nexec '%s' \"$@\"\n" % sys.executable)
        os.chmod(python, 0o700)
        with unittest.mock.patch.object(sys, "executable", python), unittest.mock.patch.dict(os.environ, PYTHONHOME=sys.base_prefix):
            for method in ("spawn", "forkserver"):
                self.assertEqual(launch(jobs.rank_plus, 1, start_method=method), {0: 1, 1: 2})

    def test_main_is_a_module(self):
        package = os.path.join(self.dir.name, "package")
        os.mkdir(package)
        with open(os.path.join(package, "train.py"), "w") as f:
            f.write("import jobs, muster\ndef f(): return __name__\n"
                    "if __name__ == '__main__': print(muster.elastic_launch(jobs.config(1), f)())\n")
        path = os.pathsep.join([os.path.dirname(jobs.__file__), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run([sys.executable, "-m", "package.train"], stdout=subprocess.PIPE, cwd=self.dir.name,
                              env=dict(os.environ, PYTHONPATH=path))
        self.assertEqual(done.stdout, b"{0: '__mp_main__'}\n", self.said())

    def test_interpreter_options_reach_the_workers(self):
        code = ("import sys; sys.path.insert(0, %r); import jobs, muster; "
                "print(muster.elastic_launch(jobs.config(1, start_method=sys.argv[1]), jobs.flags)())" % os.path.dirname(jobs.__file__))
        for method in METHODS:
            done = subprocess.run([sys.executable, "-O", "-X", "utf8", "-W", "ignore", "-c", code, method], stdout=subprocess.PIPE)
            self.assertEqual(done.stdout, b"{0: (1, 1, ['ignore'])}\n", self.said())

    def test_threads_of_a_process_group_come_to_rest(self):
        with tempfile.TemporaryDirectory() as dir:
            path = os.path.join(dir, "slept")
            launch(jobs.leave_a_process_group, path, nproc=1)
            with open(path) as f:
                self.assertEqual(f.read(), "0.1")


class Agents(Quiet):
    """The agent ends for a reason of its own."""

    def test_rendezvous_times_out(self):
        import socket

        with socket.socket() as s:  # nobody listens there
            s.bind(("127.0.0.1", 0))
            endpoint = "127.0.0.1:%d" % s.getsockname()[1]
            with self.assertRaises(muster.LaunchError) as caught:
                launch("/bin/true", rdzv_backend="c10d", rdzv_endpoint=endpoint,
                       rdzv_configs={"read_timeout": 1, "is_host": "false"})
        self.assertEqual(caught.exception.status, 1)
        self.assertIn(endpoint, str(caught.exception))

    def test_killed(self):
        pid = os.path.join(self.dir.name, "pid")
        with self.assertRaisesRegex(muster.LaunchError, "muster ended with status -9"):
            launch(jobs.kill_the_agent, pid, nproc=1)


class Timers(Quiet):
    """Of a worker, wherever it comes from."""

    def test_heartbeat(self):
        for method in METHODS:
            with self.subTest(method):
                self.assertEqual(launch(jobs.beat, 7, start_method=method), {0: True, 1: True})

    def test_expiry(self):
        for method in METHODS:
            with self.subTest(method):
                first = self.failure(jobs.overrun, nproc=1, start_method=method).get_first_failure()[1]
                self.assertEqual(first.exitcode, -9)
                self.assertIn("missed a deadline: timer", first.cause)


class Privacy(Quiet):
    def test_modes(self):
        from muster import _payload

        path = os.path.join(self.dir.name, "payload")
        before = os.umask(0)
        try:
            _payload.write_private(path, b"x")
        finally:
            os.umask(before)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)

    def test_job_directory(self):
        # The function's own directory, as its worker sees it.
        for method in METHODS:
            with self.subTest(method):
                modes = launch(_modes_of_job, nproc=1, start_method=method)[0]
                self.assertEqual(stat.S_IMODE(modes.pop(".")), 0o700)
                for name, mode in modes.items():
                    # Who may connect to a socket is up to its directory.
                    self.assertEqual(0 if stat.S_ISSOCK(mode) else mode & 0o077, 0, name)


def _modes_of_job():
    import inspect

    frame = inspect.currentframe()
    while "job" not in frame.f_locals:
        frame = frame.f_back
    job = frame.f_locals["job"]
    return {name: os.stat(os.path.join(job, name)).st_mode for name in [".", *os.listdir(job)]}


class Ends(Quiet):
    """How a launch ends from outside, in processes of their own."""

    def launching(self, body, **options):
        """Starts a script that launches wait_for_signal on two ranks; returns it and its workers' pids."""
        fifo = os.path.join(self.dir.name, "fifo")
        if not os.path.exists(fifo):
            os.mkfifo(fifo)
        script = os.path.join(self.dir.name, "script.py")
        with open(script, "w") as f:
            f.write(textwrap.dedent(body))
        path = os.pathsep.join([os.path.dirname(jobs.__file__), os.environ.get("PYTHONPATH", "")])
        reader = os.open(fifo, os.O_RDWR)  # so that it never ends
        self.addCleanup(os.close, reader)
        child = subprocess.Popen([sys.executable, script, fifo], stdout=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=path), **options)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        pids, text = [], b""
        while len(pids) < 2:
            self.assertTrue(select.select([reader], [], [], 300)[0], "no worker is ready; stderr: " + self.said())
            text += os.read(reader, 4096)
            pids = text.split(b"\n")[:-1]
        return child, fifo, [int(pid) for pid in pids]

    SCRIPT = """
        import sys, jobs, muster
        if __name__ == "__main__":
            try:
                muster.elastic_launch(jobs.config(start_method=%r), jobs.wait_for_signal)(sys.argv[1])
            except muster.SignalException as e:
                print(e.sigval.name)
        """

    def test_signals_are_passed_on(self):
        for method, number in zip(METHODS, (signal.SIGTERM, signal.SIGINT, signal.SIGTERM)):
            with self.subTest(method):
                child, fifo, _ = self.launching(self.SCRIPT % method)
                child.send_signal(number)
                self.assertEqual(child.communicate(timeout=900)[0].decode().strip(), signal.Signals(number).name)
                for rank in "01":
                    with open(fifo + "." + rank) as f:
                        self.assertEqual(f.read(), signal.Signals(number).name)
                    os.unlink(fifo + "." + rank)

    def test_ctrl_c_reaches_the_workers_once(self):
        import fcntl
        import pty
        import termios

        terminal, side = pty.openpty()
        self.addCleanup(os.close, terminal)

        def control():
            os.setsid()
            fcntl.ioctl(side, termios.TIOCSCTTY, 0)

        for method in METHODS:
            with self.subTest(method):
                child, fifo, _ = self.launching(self.SCRIPT % method, stdin=side, preexec_fn=control)
                os.write(terminal, b"\x03")
                self.assertEqual(child.communicate(timeout=900)[0], b"SIGINT\n")
                for rank in "01":
                    with open(fifo + "." + rank) as f:
                        self.assertEqual(f.read(), "SIGINT")
                    os.unlink(fifo + "." + rank)
        os.close(side)
        self.assertNotIn("second signal", self.said())

    def test_terminal_that_stops_who_writes_from_the_background(self):
        """stty tostop: the agent is not in the terminal's foreground group."""
        import fcntl
        import pty
        import termios

        terminal, side = pty.openpty()
        self.addCleanup(os.close, terminal)
        modes = termios.tcgetattr(side)
        modes[3] |= termios.TOSTOP
        termios.tcsetattr(side, termios.TCSANOW, modes)
        code = ("import os, signal, subprocess, sys; sys.path.insert(0, %r); import muster; "
                "blocked = 'import signal; print(signal.SIGTTOU in signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGTTOU).name)'; "
                "muster.elastic_launch(muster.LaunchConfig(1, 1, 2), sys.executable)('-c', blocked)" % os.path.dirname(os.path.dirname(os.path.abspath(muster.__file__))))

        def control():
            os.setsid()
            fcntl.ioctl(side, termios.TIOCSCTTY, 0)

        child = subprocess.Popen([sys.executable, "-c", code], stdin=side, stdout=side, stderr=side, preexec_fn=control)
        os.close(side)
        said = b""
        while True:
            if not select.select([terminal], [], [], 300)[0]:
                child.kill()
                self.fail("stopped after %r" % said)
            try:
                said += os.read(terminal, 4096)
            except OSError:
                break  # all have closed it
        self.assertEqual(child.wait(), 0, said)
        self.assertIn(b"muster: log files", said)
        self.assertEqual(said.count(b"False SIG_DFL"), 2, said)

    @unittest.skipUnless(sys.platform == "linux", "needs parent-death signals")
    def test_no_worker_and_no_file_outlives_the_launching_process(self):
        temp = os.path.join(self.dir.name, "temp")
        os.mkdir(temp)
        for method in METHODS:
            with self.subTest(method):
                with unittest.mock.patch.dict(os.environ, TMPDIR=temp):
                    child, _, pids = self.launching(self.SCRIPT % method)
                self.assertEqual(len(glob.glob(os.path.join(temp, "muster_*"))), 1)
                watched = [os.pidfd_open(pid) for pid in pids] if hasattr(os, "pidfd_open") else []
                child.kill()
                child.wait()
                for fd in watched:
                    ended = select.select([fd], [], [], 300)[0]
                    os.close(fd)
                    self.assertTrue(ended, "a process lives on")
                while any(os.path.exists("/proc/%d" % pid) for pid in pids):  # without a pidfd
                    time.sleep(0.01)
                until = time.monotonic() + 300  # the agent is the last to end, and need not be a worker's parent
                while glob.glob(os.path.join(temp, "muster_*")) and time.monotonic() < until:
                    time.sleep(0.01)
                self.assertEqual(glob.glob(os.path.join(temp, "muster_*")), [])

    @unittest.skipUnless(sys.platform == "linux", "forks on Linux only")
    def test_server_is_killed(self):
        self.assertEqual(launch(jobs.kill_server, nproc=1, max_restarts=1, start_method="forkserver"), {0: 7})
        failure = self.failure(jobs.kill_server, nproc=1, max_restarts=1, start_method="fork").get_first_failure()[1]
        self.assertEqual(failure.exitcode, 1)

    def test_another_exception(self):
        child, _, pids = self.launching("""
            import signal, sys, jobs, muster
            def alarm(number, frame):
                raise TimeoutError("too long")
            if __name__ == "__main__":
                signal.signal(signal.SIGUSR1, alarm)
                try:
                    muster.elastic_launch(jobs.config(), jobs.wait_for_signal)(sys.argv[1])
                except TimeoutError as e:
                    print(e)
            """)
        child.send_signal(signal.SIGUSR1)
        self.assertEqual(child.communicate(timeout=900)[0], b"too long\n")
        for pid in pids:
            with self.assertRaises(ProcessLookupError):
                os.kill(pid, 0)

    def test_handlers_are_restored(self):
        before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
        launch("/bin/true")
        self.assertEqual([signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)], before)


class Hosts(Quiet):
    """Two agents on this machine."""

    def two(self, entrypoint, *args):
        import socket

        while True:
            port = random.randrange(10000, 30000)  # which the kernel gives to nobody who asks for any
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) != 0:
                    break
        got = []

        def host(nproc):
            config = muster.LaunchConfig(2, 2, nproc, run_id="two", rdzv_backend="c10d", max_restarts=0,
                                         rdzv_endpoint="127.0.0.1:%d" % port, rdzv_configs={"join_timeout": 300})
            try:
                got.append(muster.elastic_launch(config, entrypoint)(*args))
            except Exception as e:
                got.append(e)

        threads = [threading.Thread(target=host, args=(n,)) for n in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return got

    def test_each_has_its_ranks(self):
        for entrypoint, args in ((jobs.rank_plus, (100,)), ("/bin/true", ())):
            got = self.two(entrypoint, *args)
            self.assertEqual(sorted(len(values) for values in got), [1, 2], got)
            merged = {**got[0], **got[1]}
            self.assertEqual(merged, {rank: rank + 100 if args else None for rank in range(3)})

    def test_all_learn_of_the_failure(self):
        got = self.two(jobs.fail_on, 2, "here")
        for e in got:
            self.assertIsInstance(e, muster.ChildFailedError, got)
            self.assertEqual(e.get_first_failure()[0], 2)
            self.assertEqual(e.get_first_failure()[1].message["message"], "ValueError: here")


if __name__ == "__main__":
    unittest.main()
