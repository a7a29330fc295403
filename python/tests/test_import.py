"""What importing the package costs, and what it offers."""

import ast
import importlib.util
import os
import subprocess
import sys
import unittest

import muster

HERE = os.path.dirname(os.path.abspath(__file__))


def python(code, *options):
    done = subprocess.run([sys.executable, *options, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


class Import(unittest.TestCase):
    def test_loads_nothing_heavy(self):
        home = os.path.dirname(os.path.dirname(os.path.abspath(muster.__file__)))
        # -S leaves out what a .pth file of this environment imports.
        got = python("import sys; sys.path.insert(0, %r); before = set(sys.modules); import muster; "
                     "print(sorted(set(sys.modules) - before - {'__future__'}))" % home, "-I", "-S")
        self.assertEqual(got, "['muster']")

    def test_takes_under_30_ms(self):
        times = [float(python("import time; t = time.process_time(); import muster; print(time.process_time() - t)"))
                 for _ in range(5)]
        self.assertLess(min(times), 0.030)

    def test_a_launch_needs_no_torch(self):
        got = python("import sys, muster\nmuster.elastic_launch, muster.LaunchConfig, muster.heartbeat, muster.timer\n"
                     "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'cloudpickle')])")
        self.assertEqual(got, "[]")


class Circles(unittest.TestCase):
    def test_there_are_none(self):
        """Among modules that import each other when they run, at the top or in a function."""
        home = os.path.dirname(os.path.abspath(muster.__file__))
        modules = [name[:-3] for name in os.listdir(home) if name.endswith(".py") and name != "__init__.py"]
        left = {}
        for module in modules:
            with open(os.path.join(home, module + ".py")) as f:
                nodes = [ast.parse(f.read())]
            left[module] = set()
            while nodes:
                node = nodes.pop()
                if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
                    continue
                if isinstance(node, ast.ImportFrom) and node.level == 1:
                    left[module] |= {node.module} if node.module else {name.name for name in node.names}
                nodes.extend(ast.iter_child_nodes(node))
        self.assertGreater(sum(map(len, left.values())), 20)
        while True:
            leaves = [module for module in left if not left[module] & set(left)]
            if not leaves:
                break
            for module in leaves:
                del left[module]
        self.assertEqual(left, {})


class Names(unittest.TestCase):
    def test_all(self):
        for name in muster.__all__:
            with self.subTest(name):
                self.assertIsNotNone(getattr(muster, name))
                self.assertIn(name, dir(muster))

    def test_unknown(self):
        with self.assertRaisesRegex(AttributeError, "module 'muster' has no attribute 'nothing'"):
            muster.nothing

    def test_star(self):
        self.assertEqual(python("from muster import *; print(elastic_launch.__module__)"), "muster.api")


PAGE = os.path.join(os.environ.get("MUSTER_SOURCE") or os.path.dirname(os.path.dirname(HERE)), "docs", "python.md")


@unittest.skipUnless(os.path.isfile(PAGE), "needs the source tree")
class Reference(unittest.TestCase):
    def test_has_every_name(self):
        """And the public members of the classes that are muster's own."""
        with open(PAGE, encoding="utf-8") as f:
            page = f.read().split("\n## Reference\n")[1].split("\n## ")[0]
        names = set(muster.__all__)
        for name in ("Job", "Report", "Failure"):
            cls = getattr(muster, name)
            names.update(n for n in vars(cls) if not n.startswith("_") and (name == "Job" or callable(getattr(cls, n))))
        for name in sorted(names):
            self.assertRegex(page, r"`(muster|Job|Report|Failure)\.%s\b" % name)


class Types(unittest.TestCase):
    def test_marked_as_typed(self):
        self.assertTrue(os.path.isfile(os.path.join(os.path.dirname(muster.__file__), "py.typed")))

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "needs mypy")
    def test_strict(self):
        done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, os.path.dirname(muster.__file__)],
                              stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stdout.decode())


if __name__ == "__main__":
    unittest.main()
