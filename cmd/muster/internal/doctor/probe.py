import sys
sys.path[:1] == [""] and sys.path.pop(0)
import json, time
r = {"version": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable}
try:
    import resource
    r["files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
except Exception:
    pass
hook = next((f.find_spec.__globals__ for f in sys.meta_path if hasattr(f, "muster")), {})
r["adopted"] = hook["find_binary"]() if hook else ""
print("MUSTER " + json.dumps(r), flush=True)
t = time.monotonic()
import torch
r = {"torch": torch.__version__, "seconds": time.monotonic() - t, "cuda": torch.version.cuda or "",
     "hip": getattr(torch.version, "hip", None) or ""}
import torch.distributed as d
r["distributed"] = d.is_available()
if d.is_available():
    for name in ("gloo", "nccl", "mpi"):
        r[name] = bool(getattr(d, "is_%s_available" % name)())
r["devices"] = torch.cuda.device_count()
print("MUSTER " + json.dumps(r), flush=True)
