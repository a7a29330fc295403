#!/usr/bin/env bash
# pictures.sh: the status page's pictures in docs/, of a real job of this host: one of
# four workers hangs, the autopsy names it, and the next attempt trains on.
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD
PYTHON_EXEC=${MUSTER_PYTHON:-$(internal/tools/venv.sh)}
export PYTHON_EXEC PYTHONPATH=$top/python OMP_NUM_THREADS=1
dir=$(mktemp -d)
job=
trap '[ -z "$job" ] || { kill "$job"; wait "$job" || :; }; cat "$dir/messages"; rm -rf "$dir"' EXIT
cp internal/tools/pictures/train.py "$dir"
cd "$dir"
"$top/bin/muster" run --nproc-per-node 4 --max-restarts 3 --rdzv-id llama-sft --log-dir logs --redirects 3 --health-addr 0 train.py 2>messages &
job=$!
cd "$top"
until grep -qs '^step 30 ' "$dir"/logs/*/attempt_1/0/stdout.log; do
	kill -0 "$job"
	sleep 1
done
page=$(sed -n "s/.*status page at \(http[^,]*\).*/\1/p" "$dir/messages")
go test -count 1 -run '^TestPictures$' ./health -args -pictures-of "$page" -pictures "$top/docs"
