#!/usr/bin/env bash
# demo.sh: two workers train a small model; one is killed, and muster says so, starts
# both again, and they go on from their checkpoint.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON_EXEC=$(internal/tools/venv.sh)
export PYTHON_EXEC
set -x
exec bin/muster run --standalone --nproc-per-node 2 --max-restarts 1 examples/train_checkpoint.py --die-at 3
