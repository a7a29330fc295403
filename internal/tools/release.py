"""Makes what a release publishes beside the wheels: for each platform a tarball, the sdist,
the image's context, the list of what is in the programs (SBOM), and the checksums.

Standard library only. The same input gives the same bytes: entries are sorted, their
owners and modes are fixed, and their time is that of the commit.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import time
import uuid

import wheel

COMPLETIONS = {
    "bash": "share/bash-completion/completions/muster",
    "zsh": "share/zsh/site-functions/_muster",
    "tcsh": "share/muster/completion.tcsh",
}


def read(*path):
    with open(os.path.join(*path), "rb") as f:
        return f.read()


class Release:
    def __init__(self, out, epoch):
        self.out, self.epoch = out, epoch
        self.version = wheel.version()
        self.made = []

    def write(self, name, data):
        """Writes one file of the release."""
        os.makedirs(self.out, exist_ok=True)
        path = os.path.join(self.out, name)
        with open(path + ".part", "wb") as f:
            f.write(data)
        os.replace(path + ".part", path)
        self.made.append(path)
        print(path)

    def archive(self, name, files):
        """Writes a tarball of files: a dict of path to content, or to a link's target as str."""
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(files):
                entry, content = tarfile.TarInfo(path), files[path]
                entry.mtime = self.epoch
                if isinstance(content, str):
                    entry.type, entry.linkname = tarfile.SYMTYPE, content
                    tar.addfile(entry)
                    continue
                program = content[:2] == b"#!" or content[:4] in (b"\x7fELF", b"\xcf\xfa\xed\xfe")
                entry.mode, entry.size = 0o755 if program else 0o644, len(content)
                tar.addfile(entry, io.BytesIO(content))
        packed = io.BytesIO()
        with gzip.GzipFile("", "wb", 6, packed, mtime=self.epoch) as z:
            z.write(raw.getvalue())
        self.write(name, packed.getvalue())

    def shared(self, muster):
        """What a tarball has for every platform; muster is a program that runs here."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.epoch))
        page = read(wheel.ROOT, "docs/reference/muster.1").replace(b'.TH MUSTER 1 ""', b'.TH MUSTER 1 "%s"' % day.encode(), 1)
        readme = wheel.absolute(read(wheel.ROOT, "README.md").decode(), "")
        files = {
            "share/man/man1/muster.1": page,
            "share/doc/muster/README.md": readme.encode(),
            "share/doc/muster/CHANGELOG.md": wheel.absolute(read(wheel.ROOT, "CHANGELOG.md").decode(), "").encode(),
            "share/doc/muster/LICENSE": read(wheel.ROOT, "LICENSE"),
        }
        for shell, path in COMPLETIONS.items():
            files[path] = subprocess.run([muster, "completion", shell], check=True, stdout=subprocess.PIPE).stdout
        return files

    def sbom(self, programs):
        """CycloneDX: what is in the programs, by the build information in them."""
        def component(kind, path, version):
            purl = "pkg:golang/%s@%s" % (path, version)
            return {"bom-ref": purl, "type": kind, "name": path, "version": version, "purl": purl}

        top = component("application", wheel.MODULE, "v" + self.version)
        components, depends = {}, {top["bom-ref"]: set()}
        for name, modules in programs.items():
            program = component("application", wheel.MODULE + "/cmd/" + name, "v" + self.version)
            components[program["bom-ref"]] = program
            depends[top["bom-ref"]].add(program["bom-ref"])
            for path, version, checksum in modules:
                library = component("library", path, version)
                if checksum:
                    library["properties"] = [{"name": "go.sum", "value": checksum}]
                components[library["bom-ref"]] = library
                depends.setdefault(program["bom-ref"], set()).add(library["bom-ref"])
        body = {
            "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {
                "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.epoch)),
                "component": dict(top, licenses=[{"license": {"id": "BSD-3-Clause"}}]),
            },
            "components": [components[ref] for ref in sorted(components)],
            "dependencies": [{"ref": ref, "dependsOn": sorted(depends[ref])} for ref in sorted(depends)],
        }
        body["serialNumber"] = "urn:uuid:%s" % uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
        self.write("muster-%s.cdx.json" % self.version, json.dumps(body, indent=1, sort_keys=True).encode() + b"\n")

    def sdist(self):
        top = "muster_run-%s/" % self.version
        files = {top + "PKG-INFO": wheel.metadata(self.version, ["LICENSE"]).encode()}
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                cwd=wheel.ROOT, check=True, stdout=subprocess.PIPE).stdout.decode()
        for name in listed.rstrip("\0").split("\0"):
            path = os.path.join(wheel.ROOT, name)
            if os.path.islink(path):
                files[top + name] = os.readlink(path)
            elif os.path.exists(path):  # or it is deleted, but not yet in a commit
                files[top + name] = read(path)
        self.archive("muster_run-%s.tar.gz" % self.version, files)


def main():
    parser = argparse.ArgumentParser(description="make what a release publishes beside the wheels")
    parser.add_argument("--built", required=True, help="directory with GOOS/GOARCH/ and the programs in them")
    parser.add_argument("--muster", required=True, help="one of them, which runs here")
    parser.add_argument("--out", required=True)
    parser.add_argument("--epoch", required=True, type=int, help="the time of all files, in seconds")
    parser.add_argument("platforms", nargs="+", metavar="GOOS/GOARCH")
    args = parser.parse_args()

    r = Release(args.out, args.epoch)
    shared, image, programs = r.shared(args.muster), {}, {}
    for platform in args.platforms:
        binaries = os.path.join(args.built, platform)
        modules = wheel.modules(binaries)
        for name in modules:
            programs.setdefault(name, set()).update(modules[name])
        files = dict(shared)
        files["share/doc/muster/" + wheel.THIRD_PARTY] = wheel.third_party(modules)
        for name in wheel.BINARIES:
            files["bin/" + name] = read(binaries, name)
        system, machine = platform.split("/")
        name = "muster-%s-%s-%s" % (r.version, system, machine)
        r.archive(name + ".tar.gz", {name + "/" + path: files[path] for path in files})
        if system == "linux":
            image.update({machine + "/" + path: files[path] for path in files})
            image[machine + "/bin/torchrun"] = "muster"
    image["Dockerfile"] = read(wheel.ROOT, "internal/tools/Dockerfile").replace(b"VERSION", r.version.encode())
    r.archive("muster-%s-image.tar.gz" % r.version, image)
    r.sdist()
    r.sbom(programs)

    prefix = "muster_run-%s-" % r.version
    wheels = [os.path.join(args.out, name) for name in os.listdir(args.out) if name.startswith(prefix) and name.endswith(".whl")]
    sums = {os.path.basename(path): hashlib.sha256(read(path)).hexdigest() for path in r.made + wheels}
    r.write("SHA256SUMS", "".join("%s  %s\n" % (sums[name], name) for name in sorted(sums)).encode())


if __name__ == "__main__":
    main()
