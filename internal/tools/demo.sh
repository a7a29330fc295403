#!/usr/bin/env bash
# demo.sh: two workers train a small model with DistributedDataParallel.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON_EXEC=$(internal/tools/venv.sh)
export PYTHON_EXEC
set -x
exec bin/muster run --standalone --nproc-per-node 2 examples/train_ddp.py
