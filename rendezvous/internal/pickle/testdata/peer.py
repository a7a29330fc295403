"""PyTorch's classes as the judge of our pickles.

stdin: a JSON list of {"id", "ours", "theirs"}, two pickles in base64; "theirs"
may be "". stdout, last line: a JSON list, for each of them, of
  error   of loading ours or theirs, or how they differ; "" is well
  state   what ours says
  back    what Python makes of ours, in base64, with protocols 2 to 5
"""

import base64
import json
import pickle
import sys
from datetime import datetime, timezone

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

KINDS = {
    "round": int, "complete": bool, "deadline": (datetime, type(None)), "closed": bool,
    "participants": dict, "wait_list": set, "redundancy_list": set, "last_heartbeats": dict,
}


def check(s):
    assert type(s) is _RendezvousState, type(s)
    for name, kind in KINDS.items():
        value = getattr(s, name)
        assert isinstance(value, kind), (name, value)
    for nodes in s.participants, s.wait_list, s.redundancy_list, s.last_heartbeats:
        for n in nodes:
            assert type(n) is _NodeDesc and type(n.addr) is str, n
            assert type(n.pid) is int and type(n.local_id) is int, n
    for at in [s.deadline, *s.last_heartbeats.values()]:
        assert at is None or at.tzinfo is timezone.utc, at
        at is None or at < datetime.now(timezone.utc)  # must not raise


def node(n):
    return {"addr": n.addr, "pid": n.pid, "local_id": n.local_id}


def dump(s):
    return {
        "round": s.round, "complete": s.complete, "closed": s.closed,
        "deadline": s.deadline and s.deadline.isoformat(),
        "participants": [{"node": node(n), "rank": r} for n, r in s.participants.items()],
        "wait_list": [node(n) for n in s.wait_list],
        "redundancy_list": [node(n) for n in s.redundancy_list],
        "last_heartbeats": [{"node": node(n), "time": t.isoformat()} for n, t in s.last_heartbeats.items()],
    }


def judge(case):
    ours = pickle.loads(base64.b64decode(case["ours"]))
    check(ours)
    error = ""
    if case["theirs"]:
        theirs = pickle.loads(base64.b64decode(case["theirs"]))
        check(theirs)
        for name in KINDS:
            a, b = getattr(ours, name), getattr(theirs, name)
            if a != b:
                error = f"{name}: ours {a!r}, theirs {b!r}"
    back = [base64.b64encode(pickle.dumps(ours, p)).decode() for p in (2, 3, 4, 5)]
    return {"error": error, "state": dump(ours), "back": back}


results = []
for case in json.load(sys.stdin):
    try:
        results.append(judge(case))
    except Exception as e:
        results.append({"error": f"{type(e).__name__}: {e}"})
print(json.dumps(results))
