"""python -m muster, and the binary that it becomes."""

import glob
import os
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import jobs
import muster
from muster import _binary


def run(*args, **environ):
    return subprocess.run([sys.executable, "-m", "muster", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=dict(os.environ, **environ))


class Main(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def write(self, name, text, mode=0o600):
        path = os.path.join(self.dir.name, name)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, mode)
        return path

    def test_is_the_binary(self):
        bare = subprocess.run([_binary.find(), "version"], stdout=subprocess.PIPE)
        self.assertEqual(run("version").stdout, bare.stdout)
        self.assertTrue(bare.stdout.startswith(b"muster "), bare.stdout)

    def test_exit_status_and_streams(self):
        done = run("bogus")
        self.assertEqual((done.returncode, done.stdout), (2, b""))
        self.assertIn(b"unknown command", done.stderr)

    def test_workers_run_in_this_interpreter(self):
        script = self.write("s.py", "import sys; print(sys.prefix, sys.argv[1:])")
        done = run("run", script, "--nnodes", "x")
        self.assertEqual(done.stdout.decode(), "%s ['--nnodes', 'x']\n" % sys.prefix, done.stderr)

    def test_interpreter_is_this_job_s_alone(self):
        script = self.write("s.py", "import os, sys; print(sys.executable, os.environ.get('PYTHON_EXEC'))")
        self.assertEqual(run("run", script).stdout.decode(), "%s None\n" % sys.executable)
        other = self.write("python", "#!/bin/sh\necho other; exec %s \"$@\"\n" % sys.executable, 0o700)
        self.assertEqual(run("run", script, PYTHON_EXEC=other).stdout.decode(), "other\n%s %s\n" % (sys.executable, other))
        with mock.patch.dict(os.environ, {"PYTHON_EXEC": other}):
            for launch in (muster.elastic_launch(jobs.config(1), jobs.environment), lambda *args: muster.run(jobs.environment, args, nproc_per_node=1)):
                self.assertEqual(launch("PYTHON_EXEC", "MUSTER_INTERPRETER"), {0: {"PYTHON_EXEC": other, "MUSTER_INTERPRETER": None}})

    def test_options_are_this_job_s_alone(self):
        config = self.write("job.yaml", "nproc_per_node: 2\nmax_restarts: 2\n")
        inner = self.write("inner.py", "import os; print(os.environ['WORLD_SIZE'], os.environ['TORCHELASTIC_MAX_RESTARTS'])")
        outer = self.write("outer.py", "import os, subprocess, sys\n"
                           "os.environ['RANK'] == '0' and subprocess.check_call([sys.executable, '-m', 'muster', 'run', %r])" % inner)
        done = run("run", outer, MUSTER_CONFIG=config)
        self.assertEqual(done.stdout.decode(), "1 0\n", done.stderr)

    def debugger(self):
        """What pydevd does to the command lines of Python programs; here they say so and are run."""
        tracer = self.write("tracer.py", "import runpy, sys\nmodule = '--module' in sys.argv\ndel sys.argv[:sys.argv.index('--file') + 1]\n"
                            "sys.path.insert(0, '')\nprint('debugged', sys.flags.utf8_mode, flush=True)\n"
                            "(runpy.run_module if module else runpy.run_path)(sys.argv[0], run_name='__main__')\n")
        monkey = types.ModuleType("pydev_monkey")
        monkey.patch_args = lambda line: line[:-1] + [tracer, "--port", "1", "--file", line[-1]]
        return monkey

    def test_debugger_follows_into_workers(self):
        self.debugger()
        self.write("s.py", "import sys; print(sys.argv[1:], flush=True); sys.exit(3)")
        program = self.write("program.py", "import sys\nsys.path += %r\nimport test_main\nmonkey = test_main.Main('debugger')\n"
                             "monkey.setUp()\nsys.modules.update({'pydevd': sys, '_pydev_bundle.pydev_monkey': monkey.debugger()})\n"
                             "import muster.__main__\nmuster.__main__.main()\n" % [os.path.dirname(jobs.__file__)])
        for how, where, said in (([], "s.py", "debugged 1\n"), (["-m"], "s", "debugged 1\n"), (["--run-path"], "s.py", "")):
            with self.subTest(how):
                done = subprocess.run([sys.executable, "-X", "utf8", program, "run", "--exit-code", "worker", *how, where, "a b", "-m"],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.dir.name)
                self.assertEqual((done.returncode, done.stdout.decode()), (3, said + "['a b', '-m']\n"), done.stderr)

    def test_debugger_follows_into_functions(self):
        path = os.path.join(self.dir.name, "said")
        with mock.patch.dict(sys.modules, {"_pydev_bundle.pydev_monkey": self.debugger()}):
            muster.run(jobs.say, ("out", "err"), nproc_per_node=1, log_dir=path, redirects=3)
        with open(glob.glob(os.path.join(path, "*", "attempt_0", "0", "stdout.log"))[0]) as f:
            self.assertEqual(f.read(), "debugged %d\nout\n" % sys.flags.utf8_mode)

    def test_run_path_and_start_method(self):
        script = self.write("s.py", "import os; print(__name__, os.environ['RANK']); raise ValueError('boom')")
        for method in ("spawn", "fork", "forkserver"):
            done = run("run", "--run-path", "--start-method", method, "--log-dir", self.dir.name, script)
            self.assertEqual((done.returncode, done.stdout), (1, b"__main__ 0\n"))
            self.assertRegex(done.stderr, b"\nmuster: rank 0 .*: ValueError: boom\nrun_script_path: failed\n")

    def test_without_binary(self):
        done = run("version", MUSTER_BINARY="/nowhere/muster")
        self.assertEqual((done.returncode, done.stderr), (1, b"muster: error: MUSTER_BINARY=/nowhere/muster is not a program; name the muster binary, or unset it\n"))

    def test_binary_of_another_system(self):
        path = self.write("muster", "\x7fELF, but not really", 0o700)
        done = run("version", MUSTER_BINARY=path)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"Exec format error; is the wheel one for this platform?", done.stderr)


class Wheel(unittest.TestCase):
    """Needs the package as the wheel installs it."""

    def setUp(self):
        if "site-packages" not in muster.__file__:
            self.skipTest("runs from the source tree")

    def test_binary_is_beside_the_interpreter_and_on_the_path(self):
        if os.environ.get("MUSTER_BINARY"):
            self.skipTest("MUSTER_BINARY names another")
        site = os.path.dirname(os.path.dirname(muster.__file__))
        scripts = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(site))), "bin")
        self.assertEqual(_binary.find(), os.path.join(scripts, "muster"))
        self.assertTrue(os.access(os.path.join(scripts, "muster-quorum"), os.X_OK))
        self.assertFalse(os.path.exists(os.path.join(scripts, "torchrun")), "that name is PyTorch's")

    def test_one_version(self):
        from muster import _version

        said = subprocess.run([_binary.find(), "version"], stdout=subprocess.PIPE).stdout.decode().split()[1]
        self.assertEqual(_version.VERSION, said)
        self.assertEqual(muster.__version__, said)
        if sys.version_info >= (3, 8):
            from importlib import metadata

            self.assertEqual(metadata.version("muster-run"), muster.__version__)


if __name__ == "__main__":
    unittest.main()
