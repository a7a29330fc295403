# A worker's interpreter runs this before its own sitecustomize, as PYTHONPATH begins with its directory.
# It takes that out again, and waits for an import of torch.distributed. From then on a thread answers
# the agent: what PyTorch's flight recorder has kept, and what the threads do. At the worker's end the same goes into
# a file. Needs Python 3.8.
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class Witness:
    """Finds no module. It sees that torch.distributed is looked for."""

    worker = "RANK" in os.environ  # a template of --warm is not one, and leaves out a module whose import asks for RANK

    def find_spec(self, name, path=None, target=None):
        if name != "torch.distributed" or not self.worker or "RANK" not in os.environ:
            return None
        self.begin()
        for finder in sys.meta_path:  # importlib, which goes through this list, would leave one out
            found = getattr(finder, "find_spec", lambda *_: None)(name, path, target)
            if found is not None:
                return found
        return None

    def muster_forked(self):
        """The template of --warm calls it in each worker."""
        self.worker = True
        if "torch.distributed" in sys.modules:
            self.begin()

    def begin(self):
        import _thread
        import atexit

        if self in sys.meta_path:
            sys.meta_path.remove(self)
            _thread.start_new_thread(serve, ())
            atexit.register(leave, os.getpid(), os.environ.get("LOCAL_RANK", ""))


def leave(worker, rank):
    """Leaves in a file what the agent might ask for: it can be too late for that once a worker has failed."""
    try:
        if os.getpid() == worker:  # not a fork of it
            with open(os.path.join(HERE, "end-" + rank), "wb") as file:
                file.write(answer(True, b"null"))
    except Exception:
        pass


def serve():
    """Answers the agent: an s asks how far the groups are, a d for all."""
    try:
        import _signal
        import _socket

        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())  # they are for the main thread
        agent = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        agent.connect(os.path.join(HERE, "agent"))
        ours = os.fstat(agent.fileno())
    except Exception:
        return
    try:
        while True:
            what = agent.recv(1)
            if not what:
                return
            try:
                body = answer(True, stacks()) if what == b"d" else answer(False, b"null")
            except Exception as e:
                body = ("!%s: %s" % (type(e).__name__, e)).encode()
            if not os.path.samestat(os.fstat(agent.fileno()), ours):
                raise OSError  # the program has closed all descriptors, and this one is another's
            agent.sendall(len(body).to_bytes(8, "little") + body)
    except Exception:
        agent.detach()


def answer(entries, threads):
    from binascii import b2a_base64

    c10d = sys.modules.get("torch._C._distributed_c10d")
    parts = []
    for dump in (getattr(c10d, "_dump_nccl_trace", None), getattr(c10d, "_dump_fr_trace", None)):
        if dump is not None:  # a pickle: JSON would take twice as long here, and ten times there
            parts.append(b'"%s"' % b2a_base64(dump(entries, False, False), newline=False))
    return b'{"dumps":[' + b",".join(parts) + b'],"threads":' + threads + b"}"


def stacks():
    import _thread
    import json

    threading = sys.modules.get("threading")
    known = dict(getattr(threading, "_active", {}))
    main = threading.main_thread().ident if threading else 0
    found = []
    for ident, frame in list(sys._current_frames().items())[:64]:
        if ident == _thread.get_ident():
            continue
        frames = []
        while frame is not None and len(frames) < 100:
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)
            frames.append({"function": name, "file": code.co_filename, "line": frame.f_lineno or 0})
            frame = frame.f_back
        name = known[ident].name if ident in known else ""
        found.append({"name": name, "id": hex(ident), "main": ident == main, "frames": frames})
    return json.dumps(found).encode()


def restore():
    """Makes all as it would be without this file."""
    sys.path[:] = [p for p in sys.path if p != HERE]
    sys.path_importer_cache.pop(HERE, None)
    rest = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p != HERE]
    if any(rest):
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.modules.pop("sitecustomize", None)


restore()
sys.meta_path.insert(0, Witness())
import sitecustomize  # noqa: E402,F401  the worker's own; what it raises is for site to say
