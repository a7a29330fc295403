"""The script that makes the wheels. MUSTER_SOURCE is the source tree."""

import importlib.util
import os
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

SOURCE = os.environ.get("MUSTER_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(SOURCE, "internal", "tools", "wheel.py")


def load():
    spec = importlib.util.spec_from_file_location("wheel_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def elf(machine, *segments):
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    return head + b"".join(struct.pack("<I", kind) + bytes(52) for kind in segments)


def macho(processor, *commands):
    body = b"".join(commands)
    return struct.pack("<IIIIIIII", 0xFEEDFACF, processor, 0, 2, len(commands), len(body), 0, 0) + body


BUILD_12_0 = struct.pack("<IIIIII", 0x32, 24, 1, 12 << 16, 0, 0)


@unittest.skipUnless(os.path.isfile(SCRIPT), "needs the source tree")
class Wheel(unittest.TestCase):
    def setUp(self):
        self.wheel = load()
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def binaries(self, data, other=None):
        for name in self.wheel.BINARIES:
            with open(os.path.join(self.dir.name, name), "wb") as f:
                f.write(other if other is not None and name != "muster" else data)
        return self.dir.name

    def make(self, data, out="out", other=None):
        return self.wheel.make(self.binaries(data, other), os.path.join(self.dir.name, out))

    def test_tags(self):
        for data, want in (
            (elf(62, 1, 6), "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64"),
            (elf(183, 1), "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64"),
            (macho(0x0100000C, struct.pack("<II", 1, 8), BUILD_12_0), "macosx_12_0_arm64"),
        ):
            with self.subTest(want):
                self.assertEqual(os.path.basename(self.make(data)), "muster_run-%s-py3-none-%s.whl" % (self.wheel.version(), want))

    def test_refused(self):
        for data, why in (
            (elf(62, 1, 3), "linked dynamically"),
            (elf(62, 1, 2), "linked dynamically"),
            (elf(243, 1), "ELF machine 243"),
            (elf(62, 1, 6)[:70], "unpack_from requires"),
            (macho(0x01000007, BUILD_12_0), "another processor"),
            (macho(0x0100000C), "which macOS"),
            (b"#!/bin/sh\n", "neither ELF nor Mach-O"),
            (b"", "neither ELF nor Mach-O"),
        ):
            with self.subTest(why), self.assertRaisesRegex(self.wheel.Unfit, why):
                self.make(data)
        with self.assertRaisesRegex(self.wheel.Unfit, "different platforms"):
            self.make(elf(62, 1), other=elf(183, 1))

    def test_is_the_same_each_time(self):
        with open(self.make(elf(62, 1), out="a"), "rb") as a, open(self.make(elf(62, 1), out="b"), "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_contents(self):
        with zipfile.ZipFile(self.make(elf(62, 1))) as z:
            version = self.wheel.version()
            modes = {i.filename: i.external_attr >> 16 & 0o777 for i in z.infolist()}
            self.assertEqual(modes["muster_run-%s.data/scripts/muster" % version], 0o755)
            self.assertEqual(modes["muster_run-%s.data/scripts/muster-quorum" % version], 0o755)
            self.assertEqual(modes["muster/__init__.py"], 0o644)
            self.assertIn("muster/py.typed", modes)
            self.assertFalse([n for n in modes if "test" in n or "torchrun" in n or n.endswith(".pyc")])
            record = z.read("muster_run-%s.dist-info/RECORD" % version).decode().splitlines()
            self.assertEqual(sorted(line.split(",")[0] for line in record), sorted(modes))
            metadata = z.read("muster_run-%s.dist-info/METADATA" % version).decode()
            self.assertIn("\nName: muster-run\nVersion: %s\n" % version, metadata)
            self.assertIn("\nRequires-Dist: py-spy; sys_platform == \"linux\"\n", metadata)
            self.assertIn("muster_run-%s.dist-info/licenses/LICENSE" % version, modes)
            self.assertNotRegex(metadata, r"\]\((?!https?:|#)")  # a relative link leads nowhere on an index
            self.assertIn("](%s/blob/main/docs/hangs.md#timers)" % self.wheel.HOME, metadata)
            self.assertEqual(z.testzip(), None)

    def test_pip_refuses_another_platform(self):
        if importlib.util.find_spec("pip") is None:
            self.skipTest("needs pip")
        path = self.make(elf(183, 1) if os.uname().machine == "x86_64" else elf(62, 1))
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--dry-run", path],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"is not a supported wheel on this platform", done.stdout)


if __name__ == "__main__":
    unittest.main()
