#!/usr/bin/env bash
# wheel.sh [DIR [GOOS/GOARCH...]]: Python wheels with the binaries and the package
# in python/muster, into DIR (default dist), for linux/amd64, linux/arm64 and
# darwin/arm64 unless platforms are named. Their version is that of internal/version.
#
#   BUILT=...  keep the binaries there, in GOOS/GOARCH
set -euo pipefail
cd "$(dirname "$0")/../.."

out=${1:-dist}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- linux/amd64 linux/arm64 darwin/arm64
python=$(command -v "${BASE_PYTHON:-python3}") || { echo "wheel: no ${BASE_PYTHON:-python3}; install Python 3.8 or newer" >&2; exit 1; }
vcs=-buildvcs=auto
git rev-parse --is-inside-work-tree >/dev/null 2>&1 && vcs=-buildvcs=true
built=${BUILT:-$(mktemp -d)}
[ -n "${BUILT:-}" ] || trap 'rm -rf "$built"' EXIT
export GOFLAGS= GOEXPERIMENT= GOAMD64=v1 GOARM64=v8.0 # the same bytes everywhere

# All are built before the first wheel is there, which could count as a change.
for target; do
	CGO_ENABLED=0 GOOS=${target%/*} GOARCH=${target#*/} go build $vcs -trimpath -ldflags '-s -w' -o "$built/$target/" ./cmd/muster ./cmd/muster-quorum
done
for target; do
	"$python" internal/tools/wheel.py --binaries "$built/$target" --out "$out"
done
