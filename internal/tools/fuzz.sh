#!/usr/bin/env bash
# fuzz.sh: every fuzz target of the module, one after the other, each for
# FUZZTIME (default 60s).
set -euo pipefail
cd "$(dirname "$0")/../.."
for package in $(go list github.com/muster-run/muster/...); do
	for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		echo "fuzz: $package $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-60s}" -fuzzminimizetime 5s "$package"
	done
done
