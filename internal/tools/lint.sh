#!/usr/bin/env bash
# lint.sh [all]: what a change must pass before its tests count. Formatting, vet,
# staticcheck, and that it builds for the systems we say it builds for. With all,
# vet for those, too, which compiles the standard library for each.
set -euo pipefail
cd "$(dirname "$0")/../.."
# With build.sh's flags, so that on a new machine each package is compiled once for these, the
# programs, and the tests that have no race detector.
export GOFLAGS='-mod=readonly -trimpath' CGO_ENABLED=0

echo "lint: gofmt"
unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
	printf 'lint: not formatted (run gofmt -w):\n%s\n' "$unformatted" >&2
	exit 1
fi
echo "lint: go vet"
go vet github.com/muster-run/muster/... # also of the other modules in go.work
echo "lint: other systems"
# The other modules are tests, measurements, and a program that build.sh builds.
go run ./internal/tools/crosscheck linux/arm64,darwin/arm64 ./...
if [ "${1:-}" = all ]; then
	for target in linux/arm64 darwin/arm64; do
		echo "lint: go vet for $target"
		GOOS=${target%/*} GOARCH=${target#*/} go vet ./...
	done
fi
echo "lint: staticcheck"
go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./... ./cmd/muster-quorum/...
