"""A TCPStore client of PyTorch: prints seconds to connect and nanoseconds of each add's round trip, as JSON."""

import json
import sys
import time

from torch.distributed import TCPStore

host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
begin = time.perf_counter_ns()
store = TCPStore(host, port, is_master=False, wait_for_workers=False)
connect = time.perf_counter_ns() - begin
took = []
end = time.perf_counter_ns() + int(seconds * 1e9)
while True:
    t = time.perf_counter_ns()
    if t >= end:
        break
    store.add("python", 1)
    took.append(time.perf_counter_ns() - t)
took.sort()
print(json.dumps({"connect_ns": connect, "median_ns": took[len(took) // 2], "count": len(took)}))
