#!/usr/bin/env bash
# test.sh [go test flags and packages]: the tests, with PyTorch as the judge. Without arguments all,
# and lint.sh beside them.
#
#   TEST_TIMEOUT=24m   no package may take longer
#   MUSTER_E2E_LONG=1  the programs that tests start have the race detector, and the table of hosts
#                      is played as a whole; `make stress` and `make judge` set it
#   MUSTER_SEQUENCE=N  the first random sequence (default: by the commit), to play some again
set -euo pipefail
cd "$(dirname "$0")/../.."

# What runs beside this script: each has a process group of its own, which is interrupted with it.
running=
trap 'for pid in $running; do kill -INT -- "-$pid" 2>/dev/null || :; done' EXIT
if [ $# -eq 0 ]; then # while PyTorch is downloaded, too
	set -m
	(said=$(internal/tools/lint.sh 2>&1) && failed=0 || failed=1; printf '%s\n' "$said"; exit $failed) &
	set +m
	running=$! lint=$!
fi
MUSTER_PYTHON=$(internal/tools/venv.sh)
# A python3 of pyenv's is a script that asks others for the interpreter at each start.
python=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null || :)
case $python in "$(command -v python3 || :)") ;; /*) PATH=$(dirname "$python"):$PATH ;; esac
# Go caches results by the environment that tests read, which does not show what is installed.
MUSTER_PYTHON_STATE="$(uname -sr) $(stat -Lc '%Y %s' "$MUSTER_PYTHON" "$(dirname "$MUSTER_PYTHON")/../.complete" 2>/dev/null | tr '\n' ' ' || :)"
export MUSTER_PYTHON MUSTER_PYTHON_STATE
race=-race
if ! command -v "$(go env CC)" >/dev/null; then
	echo "test: no C compiler, so without the race detector" >&2 # Go needs one for it
	race=
fi
# The race detector has each process wait a second before it exits, workers, too, in
# case another thread is about to race.
export GORACE="atexit_sleep_ms=0 ${GORACE:-}"
# For PyTorch's processes, see venv.sh.
export COLLECT_LESS=1
if [ -z "${MUSTER_SEQUENCE:-}" ]; then
	MUSTER_SEQUENCE=$((16#$(git rev-parse --short=7 HEAD 2>/dev/null | cut -c -7 || echo 0)))
fi
export MUSTER_SEQUENCE
echo "test: the random sequences are those from MUSTER_SEQUENCE=$MUSTER_SEQUENCE on" >&2

# The programs that tests start: those of build.sh, and one of the tests.
plain=(-trimpath -ldflags '-s -w')
export MUSTER_BINARIES=$PWD/bin
if [ -n "${MUSTER_E2E_LONG:-}" ] && [ -n "$race" ]; then
	MUSTER_BINARIES+=/race
	go build -race "${plain[@]}" -o bin/race/ ./cmd/muster ./cmd/muster-quorum
else
	internal/tools/build.sh
fi
CGO_ENABLED=0 go build "${plain[@]}" -o "$MUSTER_BINARIES/" ./cmd/muster-quorum/internal/testetcd

# Tests wait more than they compute, so more of them run at once than there are
# CPUs. lint.sh vets.
cpus=$(getconf _NPROCESSORS_ONLN)
flags=(-vet=off -timeout "${TEST_TIMEOUT:-24m}")
[ $# -eq 0 ] || exec go test $race "${flags[@]}" -parallel $((2 * cpus)) -p $((cpus + 1)) -count 1 "$@"

all=github.com/muster-run/muster/... # also of the other modules in go.work
# These run a muster of its own, or look at pages and scripts: the race detector would see the
# tests alone, so it is left out, and they are compiled with what build.sh has compiled already.
# But the site's test starts nothing of muster, and notes what it looks at.
apart=$(go list ./test/... ./internal/tools/... ./bench/... ./internal/test/... | grep -v -e '/test/e2e$' -e '/internal/test/site$')
# These have the product in them, and start programs beside it, which is not what Go caches by. One
# after the other: they are under a load already.
starting=(./process/warm ./rendezvous/internal/election ./cmd/muster/internal/doctor)
# Go serves the results of the others if nothing has changed that they are made of or read.
rest=$(go list $all | grep -vxFf <(echo "$apart"; go list ./test/e2e "${starting[@]}"))

# All begin at once: much of what they do is to wait. The longest of each kind is named first.
set -m
CGO_ENABLED=0 go test -trimpath "${flags[@]}" -parallel $((4 * cpus)) -count 1 ./test/e2e &
running+=" $!"
# shellcheck disable=SC2086 # one word a package
CGO_ENABLED=0 go test -trimpath "${flags[@]}" -p "$cpus" -parallel $((3 * cpus)) -count 1 ./test/wheeltest ./test/doctest $apart &
running+=" $!"
go test $race "${flags[@]}" -parallel $((2 * cpus)) -p 1 -count 1 "${starting[@]}" &
running+=" $!"
# shellcheck disable=SC2086 # one word a package
go test $race "${flags[@]}" -parallel $((2 * cpus)) -p $((cpus + 1)) ./store/tcpstore ./rendezvous/internal/node ./process \
	./cmd/muster/internal/jobs ./internal/test/site ./agent ./health ./failure ./timer ./internal/job/... $rest &
running+=" $!"
set +m

failed=
# The manifests, in a module of its own: Kubernetes' types are many.
if (cd test/k8scheck && GOWORK=off go mod download) 2>/dev/null; then
	(cd test/k8scheck && GOWORK=off CGO_ENABLED=0 go test -trimpath -count 1 ./...) || failed=manifests
else
	echo "test: Kubernetes' types cannot be downloaded, so the manifests are not checked" >&2
fi
for pid in $running; do # lint.sh is the first
	wait "$pid" || failed+=" $pid"
	running=${running#"$pid"}
	running=${running# }
done
case " $failed " in *" $lint "*) echo "test: lint.sh has failed; what it said is above" >&2 ;; esac
[ -z "$failed" ]
