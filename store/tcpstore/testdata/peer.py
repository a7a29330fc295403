"""Real torch TCPStore clients and servers, told what to do by the Go tests.

peer.py ops HOST PORT PORT2    the calls of the recorded vectors; results as JSON
peer.py more HOST PORT         what the vectors do not have; fails by itself
peer.py group HOST PORT SIZE   a gloo process group over our store; a result per rank
peer.py join HOST PORT SIZE    all but one of the clients that count among SIZE workers
peer.py rounds HOST PORT       clients of a relay, at what they do when it has another store
peer.py serve LIBUV            servers for our client, one for each line of stdin
"""

import json
import multiprocessing
import sys
import threading
import time
from datetime import timedelta

if sys.argv[1] == "group":
    import torch.distributed as dist
    from torch.distributed import PrefixStore, TCPStore
else:
    from torchstore import PrefixStore, TCPStore


def has(name):
    return hasattr(TCPStore, name)


# Processes that are forked have torch already, which takes its time to load.
fork = multiprocessing.get_context("fork")


def start(f, *args):
    p = fork.Process(target=f, args=args, daemon=True)  # ends with this one
    p.start()
    return p


def ended(processes):
    for p in processes:
        p.join()
    assert [p.exitcode for p in processes] == [0] * len(processes)


def connect(host, port, timeout=300, **kwargs):
    return TCPStore(host, int(port), is_master=False, wait_for_workers=False,
                    timeout=timedelta(seconds=timeout), **kwargs)


def ms(n):
    return timedelta(milliseconds=n)


def ops(host, port, port2):
    results = {}

    def call(name, f):
        try:
            value = f()
            results[name] = {"result": value.decode() if isinstance(value, bytes) else value}
        except RuntimeError as e:
            results[name] = {"error": "%s: %s" % (type(e).__name__, str(e).split("\n")[0])}

    def later(f):
        """Has another client do something once the call that follows waits."""
        other = connect(host, port)
        t = threading.Thread(target=lambda: (time.sleep(0.15), f(other)))
        t.start()
        return t

    s = connect(host, port)
    joined = TCPStore(host, int(port), 1, is_master=False, wait_for_workers=True)
    call("num_keys", s.num_keys)
    call("set", lambda: s.set("key", "value"))
    call("set_empty_value", lambda: s.set("empty", ""))
    call("set_utf8_key", lambda: s.set("cl\u00e9", "v"))
    call("set_bytes_value", lambda: s.set("bin", b"\x00\xff\x01"))
    call("get", lambda: s.get("key"))
    call("get_empty_value", lambda: s.get("empty"))
    s.set_timeout(ms(300))
    call("get_missing_timeout", lambda: s.get("missing"))
    s.set_timeout(timedelta(seconds=300))
    call("add_new", lambda: s.add("ctr", 5))
    call("add_existing", lambda: s.add("ctr", 2))
    call("add_negative", lambda: s.add("ctr", -10))
    call("get_counter", lambda: s.get("ctr"))
    call("check_hit", lambda: s.check(["key"]))
    call("check_miss", lambda: s.check(["key", "missing"]))
    call("check_empty_list", lambda: s.check([]))
    call("wait_present", lambda: s.wait(["key"]))
    call("wait_two_present", lambda: s.wait(["key", "empty"]))
    call("wait_timeout", lambda: s.wait(["nope"], ms(200)))
    t = later(lambda o: o.set("late", "x"))
    call("wait_then_set_by_other", lambda: s.wait(["key", "late"]))
    t.join()
    call("compare_set_new", lambda: s.compare_set("cas", "", "one"))
    call("compare_set_match", lambda: s.compare_set("cas", "one", "two"))
    call("compare_set_mismatch", lambda: s.compare_set("cas", "zzz", "three"))
    call("compare_set_missing_key_nonempty_expected", lambda: s.compare_set("cas2", "exp", "new"))
    call("compare_set_existing_empty_expected", lambda: s.compare_set("cas", "", "three"))
    call("delete_existing", lambda: s.delete_key("bin"))
    call("delete_missing", lambda: s.delete_key("bin"))
    if has("append"):
        call("append_existing", lambda: s.append("key", "++"))
        call("append_new", lambda: s.append("appended", "first"))
    if has("multi_set"):
        call("multi_set", lambda: s.multi_set(["m1", "m2"], ["v1", "v22"]))
        call("multi_get", lambda: [v.decode() for v in s.multi_get(["m1", "m2"])])
        call("multi_get_empty_list", lambda: s.multi_get([]))
    if has("queue_push"):
        call("queue_push", lambda: s.queue_push("q", "e1"))
        call("queue_push_second", lambda: s.queue_push("q", "e2"))
        call("queue_len", lambda: s.queue_len("q"))
        call("queue_pop_blocking_available", lambda: s.queue_pop("q"))
        call("queue_pop_nonblocking", lambda: s.queue_pop("q", False))
        call("queue_pop_nonblocking_empty", lambda: s.queue_pop("q", False))
        call("queue_len_empty", lambda: s.queue_len("q"))
        t = later(lambda o: o.queue_push("q", "late"))
        call("queue_pop_blocking_then_push_by_other", lambda: s.queue_pop("q"))
        t.join()
        call("queue_len_never_used", lambda: s.queue_len("never"))
    if has("barrier"):
        call("barrier_world_1", lambda: s.barrier("bar1", 1))
        t = later(lambda o: o.barrier("bar2", 2))
        call("barrier_world_2", lambda: s.barrier("bar2", 2))
        t.join()
        call("barrier_timeout", lambda: s.barrier("bar3", 2, ms(200)))
        call("get_barrier_key", lambda: s.get("bar2"))
    call("set_3000_bytes", lambda: s.set("big", "x" * 3000))
    if has("append") and has("multi_set") and has("barrier"):
        call("num_keys_end", s.num_keys)

    s2 = connect(host, port2)
    if has("list_keys"):
        call("list_keys_empty", lambda: s2.list_keys())
    s2.set("solo", "")
    if has("list_keys"):
        call("list_keys", lambda: s2.list_keys())
    p = PrefixStore("pfx", s2)
    call("prefix_set", lambda: p.set("k", "v"))
    if has("list_keys"):
        call("prefix_list_keys", lambda: p.list_keys())
    call("prefix_num_keys", p.num_keys)
    if has("barrier"):
        call("prefix_barrier", lambda: p.barrier("pb", 1))
    if has("clone"):
        s2.clone().set("by_clone", "x")
        assert s2.get("by_clone") == b"x"
        call("clone", lambda: None)
    s2.set("notnum", "abc")
    call("add_non_numeric", lambda: s2.add("notnum", 1))
    del joined
    print(json.dumps(results))


def more(host, port):
    crowd = 4
    workers = [start(worker, host, port, i, crowd) for i in range(crowd)]
    s = connect(host, port)

    # Values up to the limit, of any bytes.
    for size in (0, 1, 1439, 1440, 1441, 4095, 4096, 65536, 1 << 20, 8 << 20):
        value = bytes(i * 7 & 255 for i in range(min(size, 1000)))
        value = (value * (size // 1000 + 1))[:size]
        s.set("big", value)
        assert s.get("big") == value, size
        if has("multi_set") and size < 1 << 20:
            s.multi_set(["m%d" % i for i in range(20)], [value] * 20)
            assert s.multi_get(["m%d" % i for i in range(20)]) == [value] * 20, size
    for key in ("", "/", "a/b", "cl\u00e9", "k" * 8191):
        s.set(key, "v")
        assert s.get(key) == b"v", key
    # Prefixes nest outside-in.
    PrefixStore("a", PrefixStore("b", s)).set("k", "nested")
    assert s.get("b/a/k") == b"nested"
    PrefixStore("", s).set("k", "none")
    assert s.get("/k") == b"none"
    # A number is read as C++ reads it.
    s.set("n", " 12abc")
    assert s.add("n", 1) == 13 and s.get("n") == b"13"
    # A timed-out wait leaves the connection in order.
    for i in range(20):
        try:
            s.wait(["nothing"], ms(1 + i % 3))
            raise AssertionError("wait for nothing returned")
        except RuntimeError as e:
            assert "imeout" in str(e) or "timed out" in str(e), e
        assert s.add("after_timeout", 1) == i + 1
    # A crowd of keys.
    keys = ["crowd%d" % i for i in range(5000)]
    for k in keys:
        s.set(k, k)
    s.wait(keys)
    assert s.check(keys)
    if has("multi_get"):
        assert s.multi_get(keys) == [k.encode() for k in keys]

    # Processes that meet.
    s.wait(["ready%d" % i for i in range(crowd)])
    s.set("go", "now")
    ended(workers)
    assert s.add("sum", 0) == crowd * 200
    if has("queue_push"):
        assert s.queue_len("work") == 0
    print(json.dumps("ok"))


def worker(host, port, rank, size):
    s = connect(host, port)
    s.set("ready%d" % rank, "")
    assert s.get("go") == b"now"
    seen = 0
    for _ in range(200):
        n = s.add("sum", 1)
        assert n > seen
        seen = n
    # Each passes a token to the next.
    if rank == 0:
        s.set("token0", "1")
    assert s.get("token%d" % rank) == b"1"
    s.set("token%d" % (rank + 1), "1")
    s.wait(["token%d" % size])
    if has("queue_push"):
        for i in range(20):
            s.queue_push("work", "%d.%d" % (rank, i))
        for _ in range(20):
            while True:
                try:
                    s.queue_pop("work")
                    break
                except RuntimeError as e:  # somebody else was faster
                    assert "empty" in str(e), e
    if has("barrier"):
        s.barrier("end", size)
    PrefixStore("p", s).add("x", 1)


def group(host, port, size):
    results = fork.SimpleQueue()
    ranks = [start(member, host, port, rank, int(size), results) for rank in range(int(size))]
    ended(ranks)
    print(json.dumps([results.get() for _ in ranks]))


def member(host, port, rank, size, results):
    import torch

    s = connect(host, port)
    dist.init_process_group("gloo", store=s, rank=rank, world_size=size)
    t = torch.ones(3) * (rank + 1)
    dist.all_reduce(t)
    dist.barrier()
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    dist.destroy_process_group()
    results.put({"sum": t.tolist(), "gathered": gathered})


def join(host, port, size):
    ended([start(join_one, host, port, int(size)) for _ in range(int(size) - 1)])
    print(json.dumps("joined"))


def join_one(host, port, size):
    TCPStore(host, int(port), size, is_master=False, wait_for_workers=True)


def rounds(host, port):
    stores = [connect(host, port) for _ in range(5)]

    def call(f):
        try:
            return repr(f())
        except Exception as e:
            return type(e).__name__ + ": " + str(e).split("\n")[0]

    def blocked():
        results = {}
        calls = {"get": lambda: stores[0].get("never"), "wait": lambda: stores[1].wait(["a", "b"]),
                 "pop": lambda: stores[2].queue_pop("q"), "barrier": lambda: stores[3].barrier("bar", 2, ms(600_000))}
        threads = [threading.Thread(target=lambda n=n, f=f: results.__setitem__(n, call(f))) for n, f in calls.items()]
        for t in threads:
            t.start()
        print("blocked", flush=True)
        sys.stdin.readline()  # the store is another one, or lost
        for t in threads:
            t.join()
        return results

    stores[4].set("old", "1")
    first = blocked()
    for i, s in enumerate(stores):
        first["add%d" % i] = call(lambda: s.add("n", 1))
        first["old%d" % i] = call(lambda: s.check(["old"]))
        s.set("k%d" % i, "v")
        first["get%d" % i] = call(lambda: s.get("k%d" % i))
        first["timeout%d" % i] = call(lambda: s.wait(["never"], ms(20)))
    lost = blocked()
    s = stores[4]
    for name, f in {"get": lambda: s.get("n"), "check": lambda: s.check(["n"]), "multi_get": lambda: s.multi_get(["n", "n"]),
                    "compare_set": lambda: s.compare_set("c", "", "x"), "pop": lambda: s.queue_pop("q", False),
                    "wait": lambda: s.wait(["n"], ms(60_000))}.items():
        lost["then " + name] = call(f)
    s.set("later", "x")
    held = threading.Thread(target=lambda: lost.__setitem__("then add", call(lambda: s.add("n", 1))))
    held.start()
    print("held", flush=True)
    held.join()
    lost["later"] = call(lambda: stores[0].get("later"))
    print(json.dumps([first, lost]), flush=True)


def mirror(host, port, key):
    s = connect(host, port)
    seen = [s.get(key)]
    seen.append(s.compare_set(key, "not that", "x"))
    seen.append(s.compare_set(key, seen[0].decode(), "swapped"))
    seen.append(s.get(key))
    s.set(key, "7")
    seen.append(str(s.add(key, 5)).encode())
    seen.append(s.get(key))
    assert s.delete_key(key)
    seen.append(s.get(key))
    seen.append(str(s.check([key])).encode())
    assert s.num_keys() == 1, s.num_keys()
    s.set(key, "last")
    seen.append(s.get(key))
    print(json.dumps([v.decode() for v in seen]))


def order(host, port, n):
    """How often what one client has set is not there for another one that comes after it, or stays
    although that one has set it since: in this server, and in PyTorch's."""
    master = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    late = []
    for a, b in [(connect(host, port), connect(host, port)), (connect("127.0.0.1", master.port), connect("127.0.0.1", master.port))]:
        late.append(0)
        for i in range(int(n)):
            for first, then in ((a, b), (b, a)):
                first.set("k", f"old {i}")
                then.set("k", f"new {i}")
                late[-1] += a.get("k") != f"new {i}".encode()
                first.set("k", f"set {i}")
                late[-1] += then.get("k") != f"set {i}".encode()
    print(json.dumps(late))


def serve(libuv):
    kwargs = {"use_libuv": libuv == "1"}
    print(json.dumps({n: has(n) for n in ("append", "multi_get", "queue_push", "list_keys", "barrier")}), flush=True)
    stores = []
    for _ in sys.stdin:
        stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, **kwargs))
        print(stores[-1].port, flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
