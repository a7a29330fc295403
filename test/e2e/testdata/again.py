# A new attempt whose last rank is late: it must not meet the addresses that the
# attempt before left in the store.
import os, sys, time

import torch.distributed as dist

attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
if attempt != "0" and rank == "1":
    time.sleep(2)
dist.init_process_group("gloo")
dist.barrier()
if attempt == "0" and rank == "1":
    os._exit(9)
dist.barrier()
dist.destroy_process_group()
