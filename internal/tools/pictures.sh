#!/usr/bin/env bash
# pictures.sh (as root): the pictures in docs/ of real jobs of this host, of whose workers one
# hangs, which muster says before it starts all again: hang.svg is the console of four workers,
# status-page*.png the status page of eight on four hosts. restart.svg is where the time of a
# restart goes, cold and warm, live.svg what ranks do in a live change.
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD
PYTHON_EXEC=${MUSTER_PYTHON:-$(internal/tools/venv.sh)}
export PYTHON_EXEC PYTHONPATH=$top/python OMP_NUM_THREADS=1
dir=$(mktemp -d)
jobs=
trap '[ -z "$jobs" ] || { kill $jobs || :; wait $jobs || :; }; cat "$dir"/messages*; rm -rf "$dir"' EXIT
cp internal/tools/pictures/train.py "$dir"
cp examples/train_checkpoint.py "$dir/checkpoint.py"
(cd internal/tools && go build -o "$dir" ./recording)
MUSTER_PYTHON=$PYTHON_EXEC go run ./bench -restart docs/restart.svg
MUSTER_PYTHON=$PYTHON_EXEC go run ./bench -change docs/live.svg
cd "$dir"
PATH=$top/bin:$PATH ./recording -o "$top/docs/hang.svg" \
	muster run --nproc-per-node 4 --max-restarts 1 --hang-timeout 5s --log-dir logs checkpoint.py --hang-at 3
# Four hosts, as far as their names go; the first one shows the page.
for host in 0 1 2 3; do
	page=
	[ $host != 0 ] || page='--health-addr 0'
	unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' sh "host$host" "$top/bin/muster" run --nnodes 4 --nproc-per-node 2 --max-restarts 3 \
		--rdzv-backend c10d --rdzv-endpoint localhost:29555 --rdzv-id llama-sft --log-dir "logs$host" --redirects 3 $page train.py 2>"messages$host" &
	jobs="$jobs $!"
done
cd "$top"
until grep -qs '^step 30 ' "$dir"/logs0/*/attempt_1/0/stdout.log; do
	kill -0 $jobs
	sleep 1
done
page=$(sed -n "s/.*status page at \(http[^,]*\).*/\1/p" "$dir/messages0")
go test -count 1 -run '^TestPictures$' ./health -args -pictures-of "$page" -pictures "$top/docs"
kill $jobs
wait $jobs || :
jobs=
