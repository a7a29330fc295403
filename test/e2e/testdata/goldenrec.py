# The worker of golden/events/restart_then_fail_record.jsonl: rank 1 raises, on the
# line that the golden traceback has; the others wait to be stopped.
import os, signal, sys
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"]!="1": signal.pause()
    if sys.argv[1]=="raise": raise ValueError("boom\nsecond line é")

main()
