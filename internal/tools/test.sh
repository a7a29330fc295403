#!/usr/bin/env bash
# TEST_TIMEOUT=24m test.sh [go test flags and packages]: all tests, with the race
# detector where there is a C compiler (Go needs one for it) and with PyTorch as the
# judge. No package may take longer than that.
set -euo pipefail
cd "$(dirname "$0")/../.."

[ $# -gt 0 ] || {
	# The manifests, in a module of its own: Kubernetes' types are many.
	if (cd test/k8scheck && GOWORK=off go mod download) 2>/dev/null; then
		(cd test/k8scheck && GOWORK=off go test -count 1 ./...)
	else
		echo "test: Kubernetes' types cannot be downloaded, so the manifests are not checked" >&2
	fi
	# Those that take longest begin first, then all, also of the other modules in go.work.
	set -- ./test/e2e ./test/wheeltest ./cmd/muster/internal/cli ./process/warm ./store/tcpstore ./test/doctest ./rendezvous/internal/election ./logs github.com/muster-run/muster/...
}
MUSTER_PYTHON=$(internal/tools/venv.sh)
export MUSTER_PYTHON
race=-race
if ! command -v "$(go env CC)" >/dev/null; then
	echo "test: no C compiler, so without the race detector" >&2
	race=
fi
# The race detector has each process wait a second before it exits, workers, too, in
# case another thread is about to race.
export GORACE="atexit_sleep_ms=0 ${GORACE:-}"
# For PyTorch's processes, see venv.sh.
export COLLECT_LESS=1
# Programs and Python files that tests build and run are not what Go caches by.
# Tests wait more than they compute, so more of them run at once than there are
# CPUs. lint.sh has vetted.
cpus=$(getconf _NPROCESSORS_ONLN)
exec go test $race -vet=off -p $((cpus + 1)) -parallel $((2 * cpus)) -count 1 -timeout "${TEST_TIMEOUT:-24m}" "$@"
