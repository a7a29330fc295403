#!/usr/bin/env bash
# release.sh [DIR [GOOS/GOARCH...]]: all that a release publishes, into DIR (default dist):
# wheels, sdist, tarballs, the image's context, SBOM, and SHA256SUMS of them all. The same
# commit, Go release and Python release give the same bytes.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=${1:-dist}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- linux/amd64 linux/arm64 darwin/arm64
BUILT=$(mktemp -d)
export BUILT
trap 'rm -rf "$BUILT"' EXIT

[ -z "$(git status --porcelain)" ] || echo "release: there are changes that are not in a commit; do not publish this" >&2
rm -f "$out"/muster_run-*.whl
internal/tools/wheel.sh "$out" "$@"
muster=$BUILT/$(go env GOHOSTOS)/$(go env GOHOSTARCH)/muster
[ -x "$muster" ] || go build -o "$muster" ./cmd/muster
"${BASE_PYTHON:-python3}" internal/tools/release.py --built "$BUILT" --muster "$muster" --out "$out" --epoch "$(git log -1 --format=%ct)" "$@"
