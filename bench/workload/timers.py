"""What a Python worker waits for its timers: prints how many nanoseconds each
acquire + release takes, one a line. The argument heartbeat measures those."""

import sys
import time

import muster.timer

what, count = sys.argv[1], int(sys.argv[2])
client = muster.timer.TimerClient()
far = time.time() + 3600
took = []
for step in range(count + count // 10):
    begin = time.perf_counter_ns()
    if what == "heartbeat":
        muster.heartbeat(step)
    else:
        client.acquire("/home/user/train.py#123", far)
        client.release("/home/user/train.py#123")
    took.append(time.perf_counter_ns() - begin)
    if what == "heartbeat":
        time.sleep(0.0005)  # as a step of work between them
print(*took[count // 10 :], sep="\n")
