#!/usr/bin/env bash
# pictures.sh: the pictures in docs/ of real jobs of this host, of whose four workers one
# hangs, which muster says before it starts all again: hang.svg is the console,
# status-page*.png the status page.
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD
PYTHON_EXEC=${MUSTER_PYTHON:-$(internal/tools/venv.sh)}
export PYTHON_EXEC PYTHONPATH=$top/python OMP_NUM_THREADS=1
dir=$(mktemp -d)
job=
trap '[ -z "$job" ] || { kill "$job"; wait "$job" || :; }; cat "$dir/messages"; rm -rf "$dir"' EXIT
cp internal/tools/pictures/train.py "$dir"
cp examples/train_checkpoint.py "$dir/checkpoint.py"
(cd internal/tools && go build -o "$dir" ./recording)
cd "$dir"
PATH=$top/bin:$PATH ./recording -o "$top/docs/hang.svg" \
	muster run --nproc-per-node 4 --max-restarts 1 --hang-timeout 5s --log-dir logs checkpoint.py --hang-at 3
"$top/bin/muster" run --nproc-per-node 4 --max-restarts 3 --rdzv-id llama-sft --log-dir logs --redirects 3 --health-addr 0 train.py 2>messages &
job=$!
cd "$top"
until grep -qs '^step 30 ' "$dir"/logs/*/attempt_1/0/stdout.log; do
	kill -0 "$job"
	sleep 1
done
page=$(sed -n "s/.*status page at \(http[^,]*\).*/\1/p" "$dir/messages")
go test -count 1 -run '^TestPictures$' ./health -args -pictures-of "$page" -pictures "$top/docs"
