# The template of warm starts: a Python process that has imported what workers import, and forks
# them. It runs from memory, as `python FLAGS -c 'exec(…)'`, with its code at descriptor 3 and a
# socket to the agent at 4. It needs Python 3.8 and only the standard library.
#
# Both sides send frames: a length of four bytes, then fields with NUL between. The agent says
# import once, then fork for each worker, which is answered by pid, to which it says go. The
# worker is a fork of a fork: when the process between has ended, the worker is the agent's child.
import _imp
import _signal
import _socket
import builtins
import gc
import os
import sys
import time

SOURCE, AGENT = 3, globals().get("AGENT", 4)
CALL = globals().get("CALL")  # in the server of muster.run's start_method: what a worker does
PR_SET_PDEATHSIG, PR_SET_MM, PR_SET_MM_MAP = 1, 35, 14
LEARN_AT = (10.0, 60.0)  # seconds after the start, and at the end

# What libraries read without Python's knowledge when they are loaded.
READ_BY_C = ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "PYTORCH_", "TORCH_", "LD_", "MALLOC_", "PYTHON", "TZ")

# Modules that may take random bytes at import: reseed replaces them, or they only tell apart what
# is in one process.
MAY_DRAW = ("numpy.random", "multiprocessing.process", "torch.")
# What these set themselves, and no script by a name that cannot be seen.
SET_BY_TORCH = ("TORCH", "PYTORCH_", "TRITON_")

FORK = getattr(os, "fork", None)
socket = _socket.socket(fileno=AGENT)
os.set_inheritable(AGENT, False)  # a worker that becomes a cold one shall not speak for the template
agent = os.getppid()
reads = {}  # name in the environment: the modules whose import has read it
generators = []  # random.Random that imports have made and not seeded


class Broken(Exception):
    """Modules that must not be in the template, with the reason."""


def send(*fields):
    body = b"\0".join(f if isinstance(f, bytes) else f.encode("utf-8", "surrogateescape") for f in fields)
    socket.sendall(len(body).to_bytes(4, "little") + body)


def receive():
    """Returns the fields of a frame, and the descriptors that came with it; None at the end."""
    size = 4
    head, ancillary, _, _ = socket.recvmsg(size, _socket.CMSG_SPACE(4 * 8))
    fds = []
    for level, kind, data in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds = [int.from_bytes(data[i : i + 4], sys.byteorder) for i in range(0, len(data) - 3, 4)]
    head = exactly(head, size)
    body = exactly(b"", int.from_bytes(head, "little"))
    return body.split(b"\0"), fds


def exactly(data, size):
    parts = [data]
    size -= len(data)
    while size > 0:
        part = socket.recv(min(size, 1 << 20))
        if not part:
            os._exit(0)  # the agent is gone, or wants no template any more
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# ---- What is imported, and whether that is safe


def importing():
    """Names the modules that are being imported, innermost first."""
    frame, names = sys._getframe(2), []
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "<module>" and name not in ("__main__", __name__):
            names.append(name)
        frame = frame.f_back
    return names


def record(varying, sets, names):
    """Records what imports read of the environment; returns what ends that, and the modules
    that have read what differs between workers, or what their program sets, or have done what
    each process does for itself."""
    kind, broken, given = type(os.environ), {}, dict(os.environ)
    getitem, iterate = kind.__getitem__, kind.__iter__
    copies = (kind.copy.__code__, type(os.environ.keys()).__iter__.__code__)  # dict() asks for the keys

    def breaks(what, but=()):
        names = importing()
        if names and not names[0].startswith(but):
            for name in names:
                broken.setdefault(name, "%s %s at import" % (names[0], what))

    def get(self, key):
        names = importing()
        if names:
            text = os.fsdecode(key) if isinstance(key, (bytes, str)) else str(key)
            reads.setdefault(text, names[0])
            # What another import has set is right.
            if text in varying or text in sets and self._data.get(self.encodekey(text)) == (self.encodevalue(given[text]) if text in given else None):
                for name in names:
                    broken.setdefault(name, "%s reads %s at import" % (names[0], text))
        return getitem(self, key)

    def every(self):
        # Whoever looks through the environment does not see what is not there. A copy lacks it later.
        if sys._getframe(1).f_code in copies:
            breaks("copies the environment")
        return iterate(self)

    kind.__getitem__, kind.__iter__ = get, every
    undo = [(kind, "__getitem__", getitem), (kind, "__iter__", iterate)]

    def watch(owner, name, note):
        real = getattr(owner, name)

        def watched(*args, **options):
            note(*args, **options)
            return real(*args, **options)

        setattr(owner, name, watched)
        undo.append((owner, name, real))

    def seeded(generator, a=None, *args, **options):
        generators[:] = [g for g in generators if g is not generator] + [generator] * (a is None)

    for name in ("urandom", "getrandom"):
        if hasattr(os, name):
            watch(os, name, lambda *args: breaks("takes random bytes", MAY_DRAW))
    if "uuid" in names:
        import uuid

        watch(uuid, "uuid1", lambda *args, **options: breaks("makes an identifier of its process"))
    if "random" in names:
        import random

        watch(random, "_urandom", lambda *args: breaks("takes random bytes", MAY_DRAW))
        watch(random.Random, "seed", seeded)
    if "tempfile" in names:
        import tempfile

        watch(tempfile, "_get_candidate_names", lambda: breaks("makes a temporary file"))

    def end():
        for owner, name, real in undo:
            setattr(owner, name, real)

    return end, broken


class Finder:
    """Finds no module, but tells the agent of each that is looked for, and which of the list wanted it."""

    def __init__(self):
        self.name, self.wanted, self.pid = "", {}, os.getpid()

    def find_spec(self, name, path=None, target=None):
        if os.getpid() == self.pid:
            self.wanted.setdefault(name, self.name)
            send("step", self.name)


def installed():
    """The directories of modules that do not change while a job runs."""
    return [os.path.dirname(os.__file__)] + [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")]


def is_installed(module, dirs):
    file = getattr(module, "__file__", None)
    return not isinstance(file, str) or not os.path.isabs(file) or any(file.startswith(d + os.sep) for d in dirs)


def file_stamp(path):
    """A file's line in what is learnt. Source: fileStamp in memory.go."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return None if "\n" in path else "%d %d %s" % (found.st_size, found.st_mtime_ns, path)


def stamp(dirs):
    """Changes when pip installs or removes something."""
    found = []
    for d in dirs:
        try:
            found.append(os.stat(d).st_mtime_ns)
        except OSError:
            found.append(0)
    return found


def threads():
    return len(os.listdir("/proc/self/task"))


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass  # the listing's own
    return found


class Survey:
    """What a fork would not survive. check says what has become worse since the last call."""

    def __init__(self):
        self.threads, self.children, self.cuda, self.open = 1, "", False, descriptors()
        self.directory, self.random = os.getcwd(), None
        self.changed()

    def check(self):
        why = self.changed()
        before = (self.threads, self.children, self.cuda, self.open)
        if threads() > self.threads:
            rehearse()
        with open("/proc/self/task/%d/children" % os.getpid()) as f:
            self.children = f.read()
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        self.threads, self.open, self.cuda = threads(), descriptors(), cuda is not None and cuda.is_initialized()
        if self.threads > before[0]:
            return "starts a thread"
        if len(self.children) > len(before[1]):
            return "starts a process"
        if self.cuda > before[2]:
            return "initializes CUDA"
        for fd, what in self.open.items():
            if before[3].get(fd) != what:
                return "leaves %s open" % what
        return why

    def changed(self):
        """What each worker would have to do for itself."""
        import signal

        why = None
        if os.getcwd() != self.directory:
            os.chdir(self.directory)
            why = "changes the working directory"
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, 0)
            why = "sets a timer, which a fork does not have"
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            why = "ignores SIGCHLD, so that nobody can wait for a process"
        if getattr(os, "fork", None) is not FORK:
            os.fork = FORK
            why = "replaces os.fork"
        if "random" in sys.modules:
            before, self.random = self.random, sys.modules["random"].getstate()
            if before not in (None, self.random):
                why = "draws a random number"
        return why


def rehearse():
    """Forks for nothing. Libraries that prepare for a fork (OpenBLAS) end their threads, and start
    them again when they are used."""
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def fork():
    if "warnings" not in sys.modules:
        return os.fork()
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 3.12 counts the threads that a fork has just ended
        return os.fork()


def early(varying, dirs):
    """Says which file that the interpreter runs first has the name of a variable that differs
    between workers; None if none has."""
    import re

    named = re.compile(r"\b(%s)\b" % "|".join(map(re.escape, varying)))
    files = [getattr(sys.modules.get(n), "__file__", None) for n in ("sitecustomize", "usercustomize")]
    if not sys.flags.no_site:
        for d in dirs:
            try:
                files += ["%s/%s" % (d, n) for n in os.listdir(d) if n.endswith(".pth")]
            except OSError:
                pass
    for file in files:
        try:
            with open(file, "rb") as f:
                lines = f.read(1 << 20).decode("utf-8", "replace").splitlines()
        except (OSError, TypeError):
            continue
        for line in lines:
            found = named.search(line) if not file.endswith(".pth") or line.startswith(("import ", "import\t")) else None
            if found:
                return "%s, which the interpreter runs first, has %s" % (file, found.group())
    return None


def load(varying, sets, own, names):
    """Imports the modules in their order. If some break a rule, this template is of no use: the
    agent makes another one without them."""
    import importlib

    dirs = installed()
    survey, before = Survey(), set(sys.modules)
    why = survey.check()
    if why:
        raise Broken({"": "the interpreter, before any import, " + why})
    if not hasattr(os, "fork"):
        raise Broken({"": "this Python cannot fork"})
    if sys.version_info < (3, 9) and sys.flags.dev_mode:
        raise Broken({"": "forks of Python 3.8 crash at their end with -X dev"})
    why = early(varying, dirs)
    if why:
        raise Broken({"": why})
    end, broken = record(varying, sets, names)
    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        for name in names:
            if name in sys.modules:
                continue
            finder.name = name
            send("step", name)
            try:
                importlib.import_module(name)
                why = None
            except BaseException as e:
                why = "cannot be imported: %s: %s" % (type(e).__name__, str(e).replace("\0", " ")[:200])
            if os.getpid() != finder.pid:
                os._exit(0)  # a child that the module has forked
            if why:
                send("failed", name, why)
                continue
            other = next((n for n in own if n in sys.modules), None)
            if other:
                own.discard(other)
                del sys.modules[other]
                broken.setdefault(name, "imports %s, of which the program has its own" % other)
            why = survey.check()
            if why:
                broken.setdefault(name, why)
            if "torch" in broken:
                break
            for again in broken:
                sys.modules.pop(again, None)  # what else imports it shall break the rule, too
    finally:
        end()
        sys.meta_path[:] = [f for f in sys.meta_path if f is not finder]
    for name, module in list(sys.modules.items()):
        if name not in before and not is_installed(module, dirs):
            by = finder.wanted.get(name, name)
            broken.setdefault(by, "is not an installed module" if by == name else "imports %s, which is not an installed module" % name)
    if broken:
        raise Broken(broken)
    return dirs


# ---- One worker


class Request:
    def __init__(self, fields, fds):
        text = [os.fsdecode(f) for f in fields]
        self.path, self.learn, self.subject, self.look, count = text[1], text[2], text[3], text[4], int(text[5])
        self.argv, self.environ = text[6 : 6 + count], text[6 + count :]
        self.fds = fds
        self.flags, self.module, self.script, self.text = 1, None, None, None
        while not self.is_program(self.argv[self.flags]):
            self.flags += 2 if self.argv[self.flags] in ("-X", "-W") else 1

    def is_program(self, arg):
        if arg == "-m":
            self.module, self.args = self.argv[self.flags + 1], self.argv[self.flags + 2 :]
        elif arg == "-c":
            self.text, self.args = self.argv[self.flags + 1], self.argv[self.flags + 2 :]
        elif not arg.startswith("-"):
            self.script, self.args = arg, self.argv[self.flags + 1 :]
        return not arg.startswith("-") or arg in ("-m", "-c")


def serve(varying, sets, dirs, environ, said):
    """Forks workers until the agent closes the socket. Returns in a worker, with its request."""
    before, changed = stamp(dirs), dict(os.environ)
    while True:
        fields, fds = receive()
        request = Request(fields, fds)
        why = None
        if CALL is None:
            why = differs(request, environ, varying) or late(sets, environ, changed) or request.look and moved(request, dirs, before)
        try:
            forked = not why and work()
        except OSError as e:
            why = "a fork fails: %s" % e
        if why:
            send("stale" if why is STALE else "error", why)
        elif forked:
            request.sets = sets
            request.changed = {n: changed.get(n) for n in set(environ) ^ set(changed) | {n for n in environ if changed.get(n) != environ[n]}}
            become(request, said)
            return request
        for fd in fds:
            os.close(fd)


def is_module(directory, name):
    """Says whether an import that searches the directory would take this entry before later directories."""
    suffixes = [".py", ".pyc"] + _imp.extension_suffixes()
    dot = name.find(".")
    if dot >= 0:
        return name[dot:] in suffixes
    return any(os.path.isfile(os.path.join(directory, name, "__init__" + s)) for s in suffixes)


def differs(request, environ, varying):
    """Says why the template is not what the worker would become; None if it is."""
    wanted = dict(e.partition("=")[::2] for e in request.environ)
    for name in sorted(set(wanted) ^ set(environ) | {n for n in wanted if wanted[n] != environ.get(n)}):
        if name not in varying:
            return "%s has another value than when the modules were imported" % name
    return None


def late(sets, environ, changed):
    """Says why the value of a variable that the program sets would come too late."""
    for name in sorted(sets):
        if name.startswith(READ_BY_C) and changed.get(name) == environ.get(name):  # no import has set it
            return "the script sets %s, which libraries read when they are loaded" % name
    return None


STALE = "a package was installed or removed since the modules were imported"


def moved(request, dirs, before):
    """The same for files, once for the workers of a start: a look takes long on a slow file system."""
    if stamp(dirs) != before:
        return STALE
    top = {name.partition(".")[0] for name in sys.modules}
    own = os.path.dirname(os.path.realpath(request.script)) if request.script else os.getcwd()
    top.difference_update(sys.builtin_module_names)
    first = sys.path[: sys.path.index(dirs[0])] if dirs[0] in sys.path else []
    for d in [own] + [p for p in first if p not in dirs]:
        try:
            found = [n.partition(".")[0] for n in os.listdir(d) if n.partition(".")[0] in top and is_module(d, n)]
        except OSError:
            continue
        if found:
            return "%s in %s stands before an installed module" % (sorted(found)[0], d)
    return None


def work():
    """Forks one worker, and returns True in it."""
    hold, release = os.pipe()  # the process between ends when nobody holds release any more
    tell, told = os.pipe()  # its answer
    wait, go = os.pipe()
    try:
        between = fork()
    except OSError:
        for fd in (hold, release, tell, told, wait, go):
            os.close(fd)
        raise
    if between == 0:
        os.close(release)
        os.close(go)
        try:
            worker = fork()
        except OSError:
            os._exit(1)
        if worker == 0:
            os.close(hold)
            os.setsid()  # before anybody knows it, and may signal its group
            os.write(told, b"%d" % os.getpid())
            if os.read(wait, 1) != b"g":
                os._exit(1)
            for fd in (tell, told, wait):
                os.close(fd)
            return True
        os.close(told)
        os.read(hold, 1)
        os._exit(0)
    for fd in (hold, told, wait):
        os.close(fd)
    pid = os.read(tell, 20)
    os.close(tell)
    send("pid", pid or b"0")
    ok = receive()[0][0] == b"go" and pid
    os.close(release)
    os.waitpid(between, 0)
    if ok:
        os.write(go, b"g")
        send("gone")
    os.close(go)
    return False


def become(request, said):
    """Makes of a fork what exec makes of a worker."""
    request.mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGINT])  # to the program's first line
    try:
        import atexit
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
        if os.getppid() != agent:
            os._exit(1)
        for fd, target in zip(request.fds, range(3)):
            os.dup2(fd, target, inheritable=True)
        for fd in request.fds:
            os.close(fd)
        if CALL is not None:
            rename(ctypes, prctl, request)
            socket.close()
            return
        atexit.register(gc.unfreeze)  # runs last: the interpreter's end collects what it does in any process
        set_environ(request)
        rename(ctypes, prctl, request)
        for fd, text in said.items():
            if text:
                os.write(fd, text)  # the imports have said it
        reopen()
        reseed()
        for finder in list(sys.meta_path):
            getattr(finder, "muster_forked", bool)()  # internal/job/witness: its thread is not in a fork
        sys.argv[:] = [request.script or ("-m" if request.module else "-c")] + request.args
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[1:] = request.argv[1:]
        if not sys.flags.isolated and not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, os.path.dirname(os.path.realpath(request.script)) if request.script else os.getcwd() if request.module else "")
        sys.path_importer_cache.clear()
        if not request.module:
            request.code = compiled(request)
        lesson = Lesson(request.learn, dict(os.environ), request.sets) if request.learn else None
        Late(lesson)
        socket.close()
    except BaseException as e:
        cold(request, "%s: %s" % (type(e).__name__, e))


def cold(request, why):
    """Turns the worker into one that is started cold, in the same process."""
    import signal

    try:
        send("cold", str(os.getpid()), why)
    except OSError:
        pass  # nobody reads any more
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and exec keeps that
    _signal.pthread_sigmask(_signal.SIG_SETMASK, request.mask)
    os.execve(request.path, request.argv, dict(e.partition("=")[::2] for e in request.environ))


def set_environ(request):
    os.environ.clear()
    for entry in request.environ:
        name, _, value = entry.partition("=")
        os.environ[name] = value
    for name, value in request.changed.items():  # by a wrapper or an import
        if value is not None:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def rename(ctypes, prctl, request):
    """Shows the worker's arguments and environment in /proc, as exec does."""
    import mmap

    args, env = (b"".join(os.fsencode(t) + b"\0" for t in texts) for texts in (request.argv, request.environ))
    room = mmap.mmap(-1, len(args) + len(env), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.write(args + env)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    request.room = room  # for as long as the process lives
    with open("/proc/self/stat", "rb") as f:
        stat = [0, 0, 0] + f.read().rpartition(b")")[2].split()
    sbrk = ctypes.CDLL(None).sbrk
    sbrk.restype = ctypes.c_void_p
    fields = [int(stat[i]) for i in (26, 27, 45, 46, 47)] + [sbrk(0), int(stat[28])]
    fields += [start, start + len(args), start + len(args), start + len(args) + len(env), 0]
    table = b"".join(n.to_bytes(8, sys.byteorder) for n in fields) + bytes(4) + b"\xff" * 4
    prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.c_char_p(table), ctypes.c_ulong(len(table)), 0)


def reopen():
    """Makes the standard streams anew, as the interpreter does: what they are decides."""
    import io

    buffered = not sys.stdout.write_through  # no -u
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        old = getattr(sys, name)
        stream = open(fd, mode + "b", buffering=-1 if buffered or mode == "r" else 0, closefd=False)
        raw = getattr(stream, "raw", stream)
        raw.name = "<%s>" % name
        line = buffered and (raw.isatty() or fd == 2)
        text = io.TextIOWrapper(
            stream, encoding=old.encoding, errors=old.errors, newline="\n", line_buffering=line, write_through=not buffered)
        text.mode = mode
        setattr(sys, name, text)
        setattr(sys, "__%s__" % name, text)


def reseed():
    """What differs between processes from their beginning. The module random sees to itself."""
    for generator in generators:
        generator.seed()
    legacy = sys.modules.get("numpy.random")
    if legacy is not None:
        legacy.seed()
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.seed()  # torch.seed would have CUDA seeded, too, once it is initialized
    threading = sys.modules.get("threading")
    if threading is not None and hasattr(threading.main_thread(), "_set_native_id"):
        threading.main_thread()._set_native_id()  # Python before 3.12 keeps the parent's
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def compiled(request):
    name = request.script
    if name:
        if name.endswith(".pyc"):
            raise ValueError("a .pyc file")
        with open(name, "rb") as f:
            source = f.read()
        if sys.version_info >= (3, 9) and not os.path.isabs(name):
            name = os.getcwd() + "/" + (name[2:] if name.startswith("./") else name)
        request.script = name
    else:
        source, name = os.fsencode(request.text), "<string>"
    if b"\0" in source:
        raise ValueError("the script is an archive, or has NUL bytes")
    check(source, name)
    if request.subject != request.argv[request.flags] and os.path.isfile(request.subject):  # what the code or the script of muster.run imports then
        with open(request.subject, "rb") as f:
            check(f.read(), request.subject)
    try:
        return compile(source, name, "exec", dont_inherit=True)
    except Exception as e:
        return e


def check(source, name):
    """Refuses a script that sets what libraries have read."""
    if b"environ" in source or b"putenv" in source:
        for variable in assigned(source, name):
            if variable in reads or variable.startswith(READ_BY_C):
                raise ValueError("the script sets %s, which %s" % (
                    variable, "%s has read at import" % reads[variable] if variable in reads else "libraries read when they are loaded"))


def assigned(source, name):
    """The variables that a script sets, as far as that can be seen."""
    import ast

    def constant(node):
        node = getattr(node, "value", node) if type(node).__name__ == "Index" else node
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

    def is_environ(node):
        return getattr(node, "attr", getattr(node, "id", None)) == "environ"

    try:
        tree = ast.parse(source, name)
    except Exception:
        return  # which running it will say
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and is_environ(node.value) and not isinstance(node.ctx, ast.Load):
            found = [constant(node.slice)]
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            if called == "putenv" or called in ("setdefault", "pop") and is_environ(node.func.value):
                found = [constant(a) for a in node.args[:1]]
            elif called == "update" and is_environ(node.func.value):
                found = [constant(k) for a in node.args if isinstance(a, ast.Dict) for k in a.keys] + [k.arg for k in node.keywords]
            else:
                continue
        else:
            continue
        for variable in found:
            if variable:
                yield variable


class Late:
    """Sees the program set a variable, by whatever means, that the template's imports have read
    with another value. In a process of its own they might have come after that."""

    def __init__(self, lesson):
        self.lesson, self.said, self.pid = lesson, set(), os.getpid()
        for name in ("putenv", "unsetenv"):
            self.watch(os, name)
            if hasattr(os.environ, name):  # Python 3.8 looks there
                self.watch(os.environ, name)

    def watch(self, owner, name):
        real = getattr(owner, name)

        def call(key, *value):
            real(key, *value)
            self.note(os.fsdecode(key), os.fsdecode(value[0]) if value else None)

        setattr(owner, name, call)

    def note(self, name, value):
        if name in self.said or name.startswith(SET_BY_TORCH) or os.getpid() != self.pid:
            return
        if name not in reads and not name.startswith(READ_BY_C) or os.environ.get(name) == value:
            return
        by = importing()
        if by and is_installed(sys.modules.get(by[0]), installed()):
            return  # as numpy does around an import
        self.said.add(name)
        os.write(2, os.fsencode("muster: %s is set after %s it, in the template of warm starts: if the program sets it before that import, it has no effect now; start it again\n" % (
            name, "%s has read" % reads[name] if name in reads else "libraries may have read")))
        if self.lesson is not None:
            self.lesson.tell(name)


class Lesson:
    """Keeps what the worker has imported for the next template: at its end, and earlier when the
    garbage collector runs, which takes neither a thread nor a signal."""

    def __init__(self, dir, environ, sets):
        import atexit

        self.dir, self.environ, self.sets, self.pid = dir, environ, set(sets), os.getpid()
        self.begun, self.due = time.monotonic(), list(LEARN_AT)
        self.known = 0
        atexit.register(self.write)
        gc.callbacks.append(self.collected)

    def collected(self, phase, info):
        if time.monotonic() - self.begun < self.due[0]:
            return
        del self.due[0]
        if not self.due:
            gc.callbacks.remove(self.collected)
        self.write()

    def write(self):
        try:
            if os.getpid() != self.pid or len(sys.modules) == self.known:
                return
            self.known, dirs, names, own, paths = len(sys.modules), installed(), [], [], []
            for name, module in list(sys.modules.items()):
                spec = getattr(module, "__spec__", None)
                if spec is None or "\n" in name:
                    continue
                if spec.name == name and name != "__main__":
                    if is_installed(module, dirs):
                        names.append(name)
                    else:
                        own.append(name)
                        paths.append(module.__file__)
            now, sets = os.environ, self.environ
            sets = [n for n in set(now) | set(sets) if now.get(n) != sets.get(n) and not n.startswith(SET_BY_TORCH) and not set(n) & set(",\n")]
            self.keep("sets", sorted(sets))
            self.keep("own", own)
            self.keep("stamps", [s for s in map(file_stamp, dirs + paths) if s])
            self.keep("modules", names)
        except Exception:
            pass  # the next start is as this one

    def tell(self, name):
        """Keeps at once that the program sets a variable: it may be started again before write."""
        self.sets.add(name)
        try:
            self.keep("sets", sorted(n for n in self.sets if not set(n) & set(",\n")))
        except OSError:
            pass  # the next start is as this one

    def keep(self, name, lines):
        path = "%s/%s" % (self.dir, name)
        new = "%s.%d" % (path, self.pid)
        with open(new, "w") as f:
            f.write("\n".join(lines) + "\n")
        os.replace(new, path)


def run(request):
    """Runs the program as the interpreter's main does."""
    if CALL is not None:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, request.mask)
        CALL(dict(e.partition("=")[::2] for e in request.environ), int(request.argv[-1]))
    main = sys.modules["__main__"].__dict__
    try:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, request.mask)
        if request.module:
            import runpy

            runpy._run_module_as_main(request.module)
            return
        if not request.script:
            if isinstance(request.code, BaseException):
                raise request.code.with_traceback(None)
            exec(request.code, main)
            return
        from importlib.machinery import SourceFileLoader

        main["__file__"], main["__cached__"] = request.script, None
        main["__loader__"] = SourceFileLoader("__main__", request.script)
        try:
            if isinstance(request.code, BaseException):
                raise request.code.with_traceback(None)
            exec(request.code, main)
        finally:
            main.pop("__file__", None)
            main.pop("__cached__", None)
    except SystemExit:
        raise
    except BaseException as e:
        report(e)
        if isinstance(e, KeyboardInterrupt):
            sys.excepthook = lambda *args: None
            raise
        sys.exit(1)


def report(e):
    """Prints an exception without this file's frames."""
    tb = e.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename == FILE:
        tb = tb.tb_next
    e.__traceback__ = tb
    sys.last_type, sys.last_value, sys.last_traceback = type(e), e, tb
    if sys.version_info >= (3, 12):
        sys.last_exc = e
    sys.excepthook(type(e), e, tb)


FILE = sys._getframe().f_code.co_filename


def main():
    """Makes the template, and serves. Returns in a worker, with its request."""
    fields, _ = receive()
    if CALL is not None:
        send("ready", "0", str(len(sys.modules)))
        return serve((), (), [], {}, {})
    os.close(SOURCE)
    varying = frozenset(os.fsdecode(fields[1]).split(","))
    sets, own = (set(os.fsdecode(f).split(",")) - {""} for f in fields[2:4])
    count = int(fields[5])
    given = dict(os.fsdecode(e).partition("=")[::2] for e in fields[6 : 6 + count])  # a wrapper may have changed it
    names = [os.fsdecode(f) for f in fields[6 + count :]]
    begun = time.monotonic()
    try:
        if int(fields[4]) != agent:
            raise Broken({"": "another process stands between muster and the interpreter"})
        dirs = load(varying, sets, own, names)
    except Broken as e:
        for name, why in e.args[0].items():
            send("left", name, why)
        os._exit(0)
    said = {}
    for fd in (1, 2):
        getattr(sys, ("stdout", "stderr")[fd - 1]).flush()
        said[fd] = os.pread(fd, 1 << 16, 0)
    import atexit, ctypes, importlib.machinery, io, mmap, signal  # which a worker's beginning needs

    gc.collect()
    gc.freeze()
    send("ready", "%.3f" % (time.monotonic() - begun), str(len(sys.modules)))
    return serve(varying, sets, dirs, given, said)


request = main()
run(request)
