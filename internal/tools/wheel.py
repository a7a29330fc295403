"""Makes one wheel of muster-run: the binaries of a directory and python/muster.

Standard library only. The same input gives the same bytes: entries are sorted,
their times and modes are fixed. Which platform the wheel is for is read from the
binaries themselves, and what its tags promise is checked there:

- A manylinux_2_17 wheel promises to run wherever glibc is 2.17 or newer, a
  musllinux_1_1 wheel wherever musl is 1.1 or newer. Both hold for a program that
  names no interpreter and no libraries: it asks the kernel only, and Go needs
  Linux 3.2 where the oldest system of manylinux_2_17 has 3.10. (2_12's has 2.6.32,
  so older tags would be wrong.)
- A macosx wheel's version is the one for which the binary says it was built.
"""

import argparse
import base64
import hashlib
import json
import os
import posixpath
import re
import shutil
import struct
import subprocess
import sys
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "python", "muster")
BINARIES = ("muster", "muster-quorum")
REQUIRES_PYTHON = ">=3.8"
MODULE = "github.com/muster-run/muster"
HOME = "https://" + MODULE
THIRD_PARTY = "THIRD-PARTY-LICENSES"


class Unfit(Exception):
    """A binary that cannot be in a wheel."""


def version():
    """The version in internal/version, as PEP 440 writes it: 0.2.0-dev is 0.2.0.dev0."""
    with open(os.path.join(ROOT, "internal", "version", "version.go"), encoding="utf-8") as f:
        m = re.search(r'^const Version = "(\d+\.\d+\.\d+)(-dev)?"$', f.read(), re.MULTILINE)
    if not m:
        raise Unfit("internal/version/version.go: want a version such as 0.1.0 or 0.2.0-dev")
    return m[1] + (".dev0" if m[2] else "")


def elf_tags(data):
    """The tags of a static ELF program."""
    if data[4:6] != b"\x02\x01":
        raise Unfit("not a little-endian 64-bit ELF file")
    machine = struct.unpack_from("<H", data, 18)[0]
    arch = {62: "x86_64", 183: "aarch64"}.get(machine)
    if arch is None:
        raise Unfit("ELF machine %d has no wheel" % machine)
    offset, = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for i in range(count):
        kind, = struct.unpack_from("<I", data, offset + i * size)
        if kind in (2, 3):  # PT_DYNAMIC, PT_INTERP
            raise Unfit("it is linked dynamically; build with CGO_ENABLED=0, or the manylinux tag would not be true")
    return ["manylinux_2_17_" + arch, "manylinux2014_" + arch, "musllinux_1_1_" + arch]


def macho_tags(data):
    """The tag of a Mach-O program."""
    if struct.unpack_from("<I", data, 4)[0] != 0x0100000C:
        raise Unfit("Mach-O for another processor than arm64")
    commands, = struct.unpack_from("<I", data, 16)
    at = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", data, at)
        if command == 0x32:  # LC_BUILD_VERSION
            least, = struct.unpack_from("<I", data, at + 12)
            return ["macosx_%d_%d_arm64" % (least >> 16, least >> 8 & 255)]
        at += size
    raise Unfit("it does not say which macOS it needs")


def tags_of(path):
    with open(path, "rb") as f:
        data = f.read(1 << 16)
    try:
        if data[:4] == b"\x7fELF":
            return elf_tags(data)
        if data[:4] == b"\xcf\xfa\xed\xfe":
            return macho_tags(data)
        raise Unfit("neither ELF nor Mach-O")
    except (Unfit, struct.error) as e:
        raise Unfit("%s: %s" % (path, e)) from None


def modules(binaries):
    """What is in each program: the modules of others, and Go's own packages, as (path,
    version, checksum)."""
    found = {}
    for name in BINARIES:
        said = subprocess.run(["go", "version", "-m", "-json", os.path.join(binaries, name)], check=True, stdout=subprocess.PIPE)
        built = json.loads(said.stdout)
        found[name] = {("std", built["GoVersion"].replace("go", "v", 1), "")}
        for m in built["Deps"]:
            if not m["Path"].startswith(MODULE):
                found[name].add((m["Path"], m["Version"], m["Sum"]))
    return found


def third_party(found):
    """The licences of what is in the programs, each text once."""
    every = sorted({(path, version) for m in found.values() for path, version, _ in m if path != "std"})
    said = subprocess.run(["go", "mod", "download", "-json"] + ["%s@%s" % m for m in every],
                          check=True, stdout=subprocess.PIPE, env=dict(os.environ, GOWORK="off"), cwd=ROOT).stdout.decode()
    root = subprocess.run(["go", "env", "GOROOT"], check=True, stdout=subprocess.PIPE).stdout.decode().strip()
    dirs, decoder = [("Go", root)], json.JSONDecoder()
    while said.strip():
        module, end = decoder.raw_decode(said.lstrip())
        said = said.lstrip()[end:]
        dirs.append((module["Path"] + " " + module["Version"], module["Dir"]))
    texts = {}
    for name, dir in dirs:
        files = [f for f in sorted(os.listdir(dir)) if re.match(r"(?i)(licen[cs]e|copying|notice|patents)", f)]
        if not any(re.match("(?i)[lc]", f) for f in files):
            raise Unfit("%s has no licence" % name)
        for f in files:
            with open(os.path.join(dir, f), "rb") as licence:
                texts.setdefault(licence.read().strip(), []).append("%s (%s)" % (name, f))
    page = b"The programs muster and muster-quorum contain the following, under the licences below.\n"
    for text, names in texts.items():
        page += b"\n" + b"-" * 79 + b"\n" + "\n".join(names).encode() + b"\n\n" + text + b"\n"
    return page


def absolute(page, base="docs"):
    """A page whose links also work elsewhere; base is its directory."""
    def link(m):
        path = posixpath.normpath(posixpath.join(base, m[1]))
        return "](%s/blob/main/%s)" % (HOME, path)

    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", link, page)


def metadata(version, licences):
    with open(os.path.join(ROOT, "docs", "python.md"), encoding="utf-8") as f:
        description = absolute(f.read())
    return (
        "Metadata-Version: 2.4\n"
        "Name: muster-run\n"
        "Version: %s\n"
        "Summary: torchrun as one static binary: starts a distributed PyTorch job and keeps it alive\n"
        "Author: The muster authors\n"
        "License-Expression: BSD-3-Clause\n"
        "%s"
        "Project-URL: Source, %s\n"
        "Project-URL: Issues, %s/issues\n"
        "Project-URL: Changes, %s/blob/main/CHANGELOG.md\n"
        "Keywords: pytorch,torchrun,elastic,distributed\n"
        "Classifier: Operating System :: POSIX :: Linux\n"
        "Classifier: Operating System :: MacOS\n"
        "Classifier: Programming Language :: Python :: 3\n"
        "Classifier: Typing :: Typed\n"
        "Requires-Python: %s\n"
        "Requires-Dist: py-spy; sys_platform == \"linux\"\n"
        "Provides-Extra: functions\n"
        "Requires-Dist: cloudpickle; extra == \"functions\"\n"
        "Description-Content-Type: text/markdown\n"
        "\n%s" % (version, "".join("License-File: %s\n" % name for name in licences), HOME, HOME, HOME, REQUIRES_PYTHON, description)
    )


def sources():
    """The package's files, as (name, content)."""
    for dir, _, names in sorted(os.walk(PACKAGE)):
        for name in sorted(names):
            if name.endswith(".py") or name == "py.typed":
                path = os.path.join(dir, name)
                with open(path, "rb") as f:
                    yield "muster/" + os.path.relpath(path, PACKAGE).replace(os.sep, "/"), f.read()


def entry(name, mode):
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # Unix, wherever this runs
    info.external_attr = (0o100000 | mode) << 16
    return info


def make(binaries, out, licences=None):
    """Writes the wheel and returns its path. licences are those of what the programs contain."""
    found = {tuple(tags_of(os.path.join(binaries, name))) for name in BINARIES}
    if len(found) != 1:
        raise Unfit("the binaries are for different platforms: %s" % sorted(found))
    tags = found.pop()
    number = version()
    info = "muster_run-%s.dist-info" % number
    scripts = "muster_run-%s.data/scripts/" % number

    files = [(name, data, 0o644) for name, data in sources()]
    files.append(("muster/_version.py", (
        '"""Written by internal/tools/wheel.py: the version of the wheel."""\n\n'
        "VERSION = %r\n" % number).encode(), 0o644))
    for name in BINARIES:
        with open(os.path.join(binaries, name), "rb") as f:
            files.append((scripts + name, f.read(), 0o755))
    with open(os.path.join(ROOT, "LICENSE"), "rb") as f:
        texts = {"LICENSE": f.read()}
    if licences:
        texts[THIRD_PARTY] = licences
    files.append((info + "/METADATA", metadata(number, sorted(texts)).encode(), 0o644))
    files += [(info + "/licenses/" + name, texts[name], 0o644) for name in texts]
    files.append((info + "/WHEEL", (
        "Wheel-Version: 1.0\nGenerator: muster wheel.py\nRoot-Is-Purelib: false\n"
        + "".join("Tag: py3-none-%s\n" % tag for tag in tags)).encode(), 0o644))
    files.sort(key=lambda f: (f[0].startswith(info), f[0]))  # metadata last, as PEP 427 recommends

    record = ""
    for name, data, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += "%s,sha256=%s,%d\n" % (name, digest, len(data))
    files.append((info + "/RECORD", (record + info + "/RECORD,,\n").encode(), 0o644))

    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, "muster_run-%s-py3-none-%s.whl" % (number, ".".join(tags)))
    with zipfile.ZipFile(path + ".part", "w") as wheel:
        for name, data, mode in files:
            wheel.writestr(entry(name, mode), data)
    os.replace(path + ".part", path)
    return path


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """What pip calls to install from the source (PEP 517)."""
    if not shutil.which("go"):
        sys.exit("error: there is no Go, which builds muster\n"
                 "hint: install Go 1.26 or newer (https://go.dev/dl), or a wheel, which needs no Go: there are wheels for "
                 "Linux on x86-64 and aarch64 and for macOS on arm64")
    platform = subprocess.run(["go", "env", "GOOS", "GOARCH"], check=True, stdout=subprocess.PIPE).stdout.decode().split()
    made = subprocess.run([os.path.join(ROOT, "internal", "tools", "wheel.sh"), os.path.abspath(wheel_directory), "/".join(platform)],
                          check=True, stdout=subprocess.PIPE, env=dict(os.environ, BASE_PYTHON=sys.executable)).stdout
    return os.path.basename(made.decode().strip())


def main():
    parser = argparse.ArgumentParser(description="make a wheel of muster")
    parser.add_argument("--binaries", required=True, help="directory with " + " and ".join(BINARIES))
    parser.add_argument("--out", required=True, help="directory for the wheel")
    args = parser.parse_args()
    try:
        print(make(args.binaries, args.out, third_party(modules(args.binaries))))
    except (Unfit, OSError, subprocess.CalledProcessError) as e:
        sys.exit("wheel: %s" % e)


if __name__ == "__main__":
    main()
