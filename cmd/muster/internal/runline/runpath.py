import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import atexit, faulthandler, os, runpy, time
atexit.register(lambda: "torch" in sys.modules and time.sleep(0.1))
sys.argv = sys.argv[1:]
try:
    faulthandler.enable(all_threads=True)
except Exception:
    pass
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except Exception as e:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        import json, traceback
        try:
            with open(path, "w") as f:
                json.dump({"message": {"message": "%s: %s" % (type(e).__name__, e), "extraInfo": {
                    "py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}}}, f)
        except Exception as other:
            print("error file %s: %s" % (path, other), file=sys.stderr)
    raise
