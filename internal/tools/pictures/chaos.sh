#!/usr/bin/env bash
# chaos.sh DIR PICTURE (as root, from the top, with PYTHON_EXEC and PYTHONPATH): the console of
# muster chaos beside a live training of three hosts, as far as their names go, whose agents are
# started again when they end, as a scheduler does.
set -euo pipefail
dir=$1 picture=$2
export PATH=$PWD/bin:$PATH OMP_NUM_THREADS=1
(cd internal/tools && go build -o "$dir" ./recording)
muster store --host 127.0.0.1 --port 29556 & store=$!
loops=
stop() {
	touch "$dir/over"
	muster stop train --no-wait || :
	wait $loops || :
	kill $store
	wait $store || :
}
trap stop EXIT
for host in 1 2 3; do
	while [ ! -e "$dir/over" ]; do
		unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' sh "host$host" muster run --live --warm --nnodes 2:3 --nproc-per-node 2 --max-restarts 99 \
			--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29556 --rdzv-conf keep_alive_interval=1,keep_alive_max_attempt=3 --rdzv-id train \
			--log-dir "$dir/logs$host" --redirects 3 examples/train_live.py --steps 1000000 --pause 0.01 2>>"$dir/messages-chaos$host" || :
	done &
	loops="$loops $!"
done
until muster top train --once 2>/dev/null | grep -q 'the live group has'; do
	sleep 1
done
sleep 10 # the templates of warm starts are ready
"$dir/recording" -columns 118 -o "$picture" muster chaos train --kill-rank --kill-agent --cut-host --cut-time 6s --every 10s --for 55s --seed 3
