"""PyTorch's FileTimerClient acquires timers as fast as it can. Arguments: the FIFO's path, seconds. Prints how many times it did, and failed because the FIFO was full."""

import json
import sys
import time

from torch.distributed.elastic.timer import FileTimerClient

client = FileTimerClient(sys.argv[1])
far = time.time() + 3600
end = time.monotonic() + float(sys.argv[2])
sent = full = 0
while time.monotonic() < end:
    try:
        client.acquire("flood", far)
        sent += 1
    except BlockingIOError:
        full += 1
print(json.dumps({"sent": sent, "full": full}))
