"""muster adopt, with a package that has the shape of PyTorch's launcher."""

import contextlib
import glob
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from muster import _adopt, _binary

TORCH = {
    "torch/__init__.py": "imported = True\n",
    "torch/distributed/__init__.py": "",
    "torch/distributed/launcher/__init__.py": "from torch.distributed.launcher.api import elastic_launch, LaunchConfig\n",
    "torch/distributed/launcher/api.py": """
import dataclasses

@dataclasses.dataclass
class LaunchConfig:
    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: object = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict = dataclasses.field(default_factory=dict)
    max_restarts: int = 3
    start_method: str = "spawn"
    signals_to_handle: str = "SIGTERM"

class elastic_launch:
    def __init__(self, config, entrypoint):
        self.call = config, entrypoint

    def __call__(self, *args):
        return launch_agent(*self.call, list(args))

def launch_agent(config, entrypoint, args):
    print("PyTorch's", config.nproc_per_node, args, flush=True)
    return {0: "theirs"}
""",
    "torch/distributed/run.py": """
import argparse
import sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

def get_args_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc-per-node", type=int, default=1)
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser

def run(args):
    config = LaunchConfig(1, 1, args.nproc_per_node, max_restarts=0, rdzv_backend="c10d", rdzv_endpoint="localhost:0")
    elastic_launch(config, sys.executable)("-u", args.training_script, *args.training_script_args)

def main(args=None):
    run(get_args_parser().parse_args(args))

if __name__ == "__main__":
    main()
""",
}
TORCHRUN = """#!%s
# -*- coding: utf-8 -*-
import re
import sys
from torch.distributed.run import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""
WORKER = "import os, sys; sys.stdout.write(' '.join(['worker', os.environ['WORLD_SIZE'], *sys.argv[1:]]) + '\\n'); sys.stdout.flush(); sys.exit('fail' in sys.argv)\n"
FIRST = "muster (adopted): starts this job"


class Adopt(unittest.TestCase):
    """An environment of its own for each test."""

    def setUp(self):
        dir = tempfile.TemporaryDirectory()
        self.addCleanup(dir.cleanup)
        self.dir = os.path.realpath(dir.name)
        self.venv = os.path.join(self.dir, "venv")
        subprocess.check_call([sys.executable, "-m", "venv", "--without-pip", "--symlinks", self.venv])
        self.python = os.path.join(self.venv, "bin", "python3")
        self.site = glob.glob(os.path.join(self.venv, "lib", "python3*", "site-packages"))[0]
        for name, text in TORCH.items():
            self.write(os.path.join(self.site, name), text)
        self.torchrun = self.write(os.path.join(self.venv, "bin", "torchrun"), TORCHRUN % self.python)
        os.chmod(self.torchrun, 0o755)
        self.worker = self.write("worker.py", WORKER)
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MUSTER_"))}
        self.environ["MUSTER_BINARY"] = _binary.find()
        self.home = os.path.dirname(_adopt.PACKAGE)

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        return path

    def adopt(self, *args, status=0, **environ):
        """What muster adopt says."""
        code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from muster._adopt import main; sys.exit(main(sys.argv[1:]))"
        line = [sys.executable, "-c", code, self.home, *args]
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(self.environ, **environ))
        self.assertEqual(done.returncode, status, done.stdout.decode())
        return done.stdout.decode()

    def start(self, *line, status=0, **environ):
        """What a program says on stdout and stderr."""
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.dir, env=dict(self.environ, **environ))
        self.assertEqual(done.returncode, status, done.stderr.decode())
        return done.stdout.decode(), done.stderr.decode()

    def files(self):
        every = {}
        for dir, _, names in os.walk(self.venv):
            every[dir] = None
            for name in names:
                with open(os.path.join(dir, name), "rb") as f:
                    every[os.path.join(dir, name)] = f.read(), os.lstat(f.name).st_mode
        return every

    def ways(self):
        """Programs that start the launcher."""
        lines = [self.torchrun], [self.python, "-u", self.torchrun], [self.python, "-m", "torch.distributed.run"], [self.python, "-c", (
            "import sys, torch.distributed.run as run\nparser = run.get_args_parser()  # as accelerate and torchtune extend it\n"
            "parser.add_argument('--more', default='x')\nrun.run(parser.parse_args(['--more', 'y', *sys.argv[1:]]))")], [self.python, "-c", (
                "import sys; from torch.distributed.run import main; main()")]
        return [[*line, "--nproc-per-node", "2", self.worker] for line in lines]

    def test_every_way(self):
        theirs = "PyTorch's 2 ['-u', %r, 'a b']\n" % self.worker
        for line in self.ways():
            self.assertEqual(self.start(*line, "a b"), (theirs, ""))
        self.adopt(self.venv)
        for line in self.ways():
            with self.subTest(line):
                out, err = self.start(*line, "a b")
                self.assertEqual(out, "worker 2 a b\n" * 2, err)
                self.assertEqual(err.count(FIRST), 1)
                self.assertTrue(err.startswith(FIRST), err)
                self.assertEqual(self.start(*line, "a b", MUSTER_ADOPT="0"), (theirs, ""))
                self.assertIn("failed", self.start(*line, "fail", status=1)[1].lower())

    def test_a_function_and_the_environment(self):
        program = self.write("program.py", """
import json, os
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

def train(by):
    return int(os.environ["RANK"]) * by

if __name__ == "__main__":
    config, before = LaunchConfig(1, 1, 2, max_restarts=0), dict(os.environ)
    values = elastic_launch(config, train)(21)
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    print(json.dumps([values, bool(config.run_id), changed, sorted(before.keys() - os.environ.keys())]))
""")
        self.adopt(self.venv)
        out, err = self.start(self.python, program)
        self.assertEqual(json.loads(out), [{"0": 0, "1": 21}, True, {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM"}, []], err)

    def test_undo(self):
        before = self.files()
        for args, said in (([self.venv], "is adopted"), ([self.venv], "is adopted"), (["--undo", self.venv], "no longer"), (
                ["--undo", self.venv], "was not adopted"), ([self.python], "is adopted"), (["--undo", self.python], "no longer")):
            self.assertIn(said, self.adopt(*args))
            if "--undo" in args:
                self.assertEqual(self.files(), before)
            else:
                self.start(*self.ways()[0], PYTHONDONTWRITEBYTECODE="1")

    def test_status(self):
        self.assertIn("torch.distributed.run: PyTorch's launcher\n", self.adopt("--status", self.venv, status=1))
        self.adopt(self.venv)
        self.assertIn("torch.distributed.run: %s\n" % _binary.find(), self.adopt("--status", self.venv))
        self.assertIn("MUSTER_ADOPT=0", self.adopt("--status", self.venv, status=1, MUSTER_ADOPT="0"))

    def test_what_muster_refuses_is_theirs(self):
        self.adopt(self.venv)
        code = ("from torch.distributed.launcher.api import LaunchConfig, elastic_launch; "
                "print(elastic_launch(LaunchConfig(1, 1, 3, start_method='other'), 'x')('y'))")
        out, err = self.start(self.python, "-c", code)
        self.assertEqual(out, "PyTorch's 3 ['y']\n{0: 'theirs'}\n")
        self.assertIn("muster (adopted): PyTorch's launcher runs this job: start_method must be", err)
        if sys.version_info < (3, 10):
            return  # there torchrun's process does not become muster
        out, err = self.start(self.torchrun, "--rdzv-backend", "plugin", self.worker, status=2)
        self.assertIn("muster (adopted): PyTorch's launcher gets this command line\nusage: run.py", err)

    def install(self):
        """As pip does it with the wheel."""
        os.symlink(self.environ.pop("MUSTER_BINARY"), os.path.join(self.venv, "bin", "muster"))
        shutil.copytree(_adopt.PACKAGE, os.path.join(self.site, "muster"))

    def test_muster_is_gone(self):
        self.install()
        self.start(self.python, "-m", "muster", "adopt")
        moved = os.path.join(self.dir, "moved")
        os.rename(self.venv, moved)  # as conda-pack does
        program = [os.path.join(moved, "bin", "python3"), "-m", "torch.distributed.run", self.worker]
        self.assertIn(FIRST, self.start(*program)[1])
        os.unlink(os.path.join(moved, "bin", "muster"))
        site = self.site.replace(self.venv, moved)
        self.assertIn("PyTorch's launcher runs this job: the muster binary", self.start(*program, PATH="/nowhere")[1])
        shutil.rmtree(os.path.join(site, "muster"))
        out, err = self.start(*program)
        self.assertEqual(out, "PyTorch's 1 ['-u', %r]\n" % self.worker)
        self.assertRegex(err, r"^muster \(adopted\): PyTorch's launcher runs this job, since the package of muster is gone: .*rm -r ")
        self.assertEqual(err.count("is gone"), 1)
        subprocess.check_call(err.strip().rsplit(": ", 1)[1], shell=True)  # what it says to do
        self.assertFalse(glob.glob(os.path.join(site, "*muster*")))

    def test_an_environment_on_top(self):
        """As one that is made with --system-site-packages."""
        self.install()
        self.start(self.python, "-m", "muster", "adopt")
        top = os.path.join(self.dir, "top")
        subprocess.check_call([sys.executable, "-m", "venv", "--without-pip", "--symlinks", top])
        site = glob.glob(os.path.join(top, "lib", "python3*", "site-packages"))[0]
        self.write(os.path.join(site, "below.pth"), "import site; site.addsitedir(%r)\n" % self.site)
        python = os.path.join(top, "bin", "python3")
        out, err = self.start(python, "-m", "torch.distributed.run", self.worker, PATH="/nowhere")
        self.assertEqual((out, err.count(FIRST)), ("worker 1\n", 1), err)
        self.assertIn("is still adopted by %s" % os.path.join(self.site, "_muster_adopt"), self.start(
            self.python, "-m", "muster", "adopt", "--undo", top)[0])

    def test_for_one_job(self):
        """PYTHONPATH does it, and a sitecustomize that is hidden by it still runs."""
        self.write(os.path.join(self.site, "sitecustomize.py"), "import sys; sys.hidden = True\n")
        path = os.path.dirname(_adopt.HOOK)
        code = "import sys, sitecustomize; print(sys.hidden, sitecustomize.__file__, %r in sys.path)" % path
        out, err = self.start(self.python, "-c", code, PYTHONPATH=path)
        self.assertEqual((out, err), ("True %s/sitecustomize.py False\n" % self.site, ""))
        for line in self.ways():
            self.assertIn(FIRST, self.start(*line, PYTHONPATH=path)[1])
        self.adopt(self.venv)
        self.assertEqual(self.start(*self.ways()[2], PYTHONPATH=path)[1].count(FIRST), 1)

    def refused(self):
        """What muster adopt says that fails here."""
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(_adopt.main([self.venv]), 1)
        return said.getvalue()

    def test_refused(self):
        about = _adopt.probe(self.python)
        for change, error, hint in (
                ({"managed": True}, "PEP 668", "python3 -m venv DIR; to do it"), ({"site": "/nowhere"}, "No such file .*'/nowhere/_muster", "to do it")):
            with mock.patch.object(_adopt, "probe", lambda python, answer=dict(about, **change): answer):
                self.assertRegex(self.refused(), "^error: .*%s.*\nhint: .*%s .*PYTHONPATH=/" % (error, hint))
        denied = mock.patch("os.mkdir", side_effect=PermissionError(13, "Permission denied", "/env"))
        with denied, mock.patch.object(_adopt, "alone"):  # which would keep others waiting until this process ends
            self.assertRegex(self.refused(), "^error: .*denied: '/env'\nhint: run muster adopt as its owner; .*PYTHONPATH=/")
        self.assertIn("bin/python3", self.adopt(self.dir, status=1))
        for args, text in ((["--undo", "--status"], "not allowed with"), (["a", "b"], "b"), (["--undoing"], "--undoing")):
            self.assertRegex(self.adopt(*args, status=2), r"^usage: muster adopt \[--undo \| --status\] \[VENV\]\nmuster adopt: error: .*" + text)
        self.assertIn("except with MUSTER_ADOPT=0, as now", self.adopt(self.venv, MUSTER_ADOPT="0"))
        self.adopt("--undo", self.venv)
        for name in (".pth", "x.pth"):
            self.write(os.path.join(self.site, name), "import nothing_of_that_name\n")
        self.adopt(self.venv)  # a broken line of somebody else's
        self.assertIn(FIRST, self.start(*self.ways()[2])[1])

    def test_costs_little(self):
        """Nothing is imported at the start of Python."""
        self.write(os.path.join(self.site, "other.pth"), "import sys\n")  # some Pythons import more where there is any
        code = "import sys; print(sorted(set(sys.modules) - {'_muster_adopt'}))"
        before = self.start(self.python, "-c", code)
        self.adopt(self.venv, PYTHONDONTWRITEBYTECODE="1")  # as images have it
        self.assertTrue(glob.glob(os.path.join(self.site, "_muster_adopt", "__pycache__", "*.pyc")))
        self.assertEqual(self.start(self.python, "-c", code), before)

    def test_two_at_once(self):
        running = [subprocess.Popen([sys.executable, "-m", "muster", "adopt", *undo, self.venv], stdout=subprocess.DEVNULL,
                                    env=dict(self.environ, PYTHONPATH=self.home))
                   for undo in ([], ["--undo"], [], []) for _ in range(2)]
        self.assertEqual({child.wait() for child in running}, {0})
        self.adopt(self.venv)
        self.assertIn(FIRST, self.start(*self.ways()[2])[1])
        self.adopt("--undo", self.venv)
        self.assertFalse(glob.glob(os.path.join(self.site, "*muster*")))


if __name__ == "__main__":
    unittest.main()
