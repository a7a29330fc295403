#!/usr/bin/env bash
# demo.sh: two workers train a small model; one is killed, and muster says so, starts
# both again, and they go on from their checkpoint.
set -euo pipefail
cd "$(dirname "$0")/../.."
say() { printf 'demo: %s\n' "$*" >&2; }

say "builds bin/muster, prepares PyTorch once if PYTHON=... names none, and trains; one worker is killed meanwhile"
internal/tools/build.sh ./cmd/muster
PYTHON_EXEC=$(internal/tools/venv.sh)
export PYTHON_EXEC
command=(bin/muster run --standalone --nproc-per-node 2 --max-restarts 1 examples/train_checkpoint.py --die-at 3)
printf '+ %s\n' "${command[*]}" >&2
"${command[@]}"
say "the training went on. Now try: bin/muster report DIR (the log directory above); docs/quickstart.md for your own script"
