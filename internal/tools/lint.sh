#!/usr/bin/env bash
# lint.sh: what a change must pass before its tests count. Formatting, vet,
# staticcheck, and that it builds for the systems we say it builds for.
set -euo pipefail
cd "$(dirname "$0")/../.."
# With build.sh's flags, so that on a new machine each package is compiled once for these, the
# wheels, and the programs that tests build.
export GOFLAGS='-mod=readonly -trimpath' CGO_ENABLED=0
all=github.com/muster-run/muster/... # also of the other modules in go.work

echo "lint: gofmt"
unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
	printf 'lint: not formatted (run gofmt -w):\n%s\n' "$unformatted" >&2
	exit 1
fi
echo "lint: go vet"
go vet $all
for target in linux/arm64 darwin/arm64; do
	echo "lint: go vet for $target"
	GOOS=${target%/*} GOARCH=${target#*/} go vet $all
done
echo "lint: staticcheck"
go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 $all
