"""Beside PyTorch: the same program under its launcher and under ours."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = (
    "torch.distributed.launcher.api",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.multiprocessing.errors",
)


@unittest.skipUnless(importlib.util.find_spec("torch"), "needs PyTorch")
class Torch(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def script(self, name, text):
        path = os.path.join(self.dir.name, name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def start(self, path, **environ):
        return subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=dict(os.environ, OMP_NUM_THREADS="1", **environ))

    def test_drop_in(self):
        with open(os.path.join(HERE, "dropin.py")) as f:
            text = f.read()
        changed = text
        for module in MODULES:
            self.assertIn("\nfrom %s import " % module, text)
            changed = changed.replace("\nfrom %s import " % module, "\nfrom muster import ")
        from muster import _adopt

        path = os.pathsep.join([os.path.dirname(_adopt.HOOK), os.environ.get("PYTHONPATH", "")])
        # All at once: most of the time goes into importing torch.
        running = [self.start(self.script("theirs.py", text)), self.start(self.script("ours.py", changed)),
                   self.start(self.script("adopted.py", text), PYTHONPATH=path)]
        theirs, ours, adopted = [self.lines(child) for child in running]
        self.assertEqual(self.said.count("muster (adopted): starts"), 12)  # what the last of them said
        self.assertEqual((list(ours), list(adopted)), (list(theirs), list(theirs)))
        for what in theirs:
            with self.subTest(what):
                self.assertEqual(ours[what], theirs[what])
                self.assertEqual(adopted[what], theirs[what])

    def test_fields(self):
        """In torch's order, with torch's defaults."""
        import dataclasses

        from torch.distributed.launcher.api import LaunchConfig

        import muster

        def fields(config):
            return [(f.name, f.default, f.default_factory is not dataclasses.MISSING) for f in dataclasses.fields(config)]

        self.assertEqual(fields(muster.LaunchConfig), fields(LaunchConfig))

    def test_their_logs_and_numa_options(self):
        from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std
        from torch.numa.binding import AffinityMode, NumaOptions

        import muster
        from muster import _flags

        specs = DefaultLogsSpecs(log_dir=self.dir.name, redirects=Std.ALL, tee={1: Std.OUT}, local_ranks_filter={1, 0})
        config = muster.LaunchConfig(1, 1, 2, logs_specs=specs, numa_options=NumaOptions(affinity_mode=AffinityMode.CORE_COMPLEX))
        line = _flags.flags(config, _flags.log_dir(specs))
        for word in ("--log-dir=" + self.dir.name, "--redirects=3", "--tee=1:1", "--local-ranks-filter=0,1", "--numa-binding=core-complex"):
            self.assertIn(word, line)

    def lines(self, child):
        out, err = child.communicate(timeout=900)
        self.said = err.decode()
        self.assertEqual(child.returncode, 0, self.said)
        got = {}
        for line in out.decode().splitlines():
            got.update(json.loads(line))
        return got

    def test_run(self):
        """Tensors, as arguments and as results, of functions that meet by torch.distributed."""
        path = self.script("run.py", """
import torch, torch.distributed as dist, muster

def reduce(tensor):
    dist.init_process_group("gloo")
    tensor += dist.get_rank()
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor

if __name__ == "__main__":
    with muster.start(reduce, (torch.tensor([1., 2.]),), nproc_per_node=2) as job:
        values = job.wait()
    print({rank: tensor.tolist() for rank, tensor in values.items()})
""")
        out, err = self.start(path).communicate(timeout=900)
        self.assertEqual(out.decode(), "{0: [3.0, 5.0], 1: [3.0, 5.0]}\n", err.decode())

    def test_record_passes_the_failure_on(self):
        """A launch within a program under PyTorch's @record, whose error file gets the worker's exception."""
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        path = self.script("recorded.py", """
import pickle, sys
sys.path.insert(0, %r)
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
import jobs, muster

@record
def main():
    muster.elastic_launch(jobs.config(1, start_method="fork"), jobs.fail_on)(0, "from the worker")

if __name__ == "__main__":
    try:
        main()
    except ChildFailedError as e:  # PyTorch's
        again = pickle.loads(pickle.dumps(e))
        print(isinstance(e, muster.ChildFailedError), isinstance(again, ChildFailedError), type(e).__module__, e.get_first_failure()[0])
""" % HERE)
        error = os.path.join(self.dir.name, "error.json")
        child = self.start(path, TORCHELASTIC_ERROR_FILE=error)
        out, err = child.communicate(timeout=900)
        self.assertEqual(out.decode(), "True True %s 0\n" % ChildFailedError.__module__, err.decode())
        with open(error) as f:
            self.assertEqual(json.load(f)["message"]["message"], "ValueError: from the worker")


if __name__ == "__main__":
    unittest.main()
