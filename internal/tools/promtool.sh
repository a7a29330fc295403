#!/usr/bin/env bash
# promtool.sh: prints the path of Prometheus' promtool on stdout. Where there is none it takes
# the one out of Debian's package, into the cache, without installing anything; callers that
# arrive together wait for the one that does. Without it, it says in one line why, on stderr,
# and exits 1.
set -euo pipefail

say() { printf 'promtool: %s\n' "$*" >&2; }

if command -v promtool; then exit 0; fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/muster/promtool
if [ -x "$cache/promtool" ]; then
	echo "$cache/promtool"
	exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
	say "there is none, and getting the package takes apt-get and dpkg-deb"
	exit 1
fi
mkdir -p "$cache"
exec 9>"$cache.lock"
flock 9
if [ ! -x "$cache/promtool" ]; then
	work=$(mktemp -d "$cache/new.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	cd "$work"
	if ! apt-get download -q prometheus >log 2>&1 9>&- && ! { apt-get update -q >log 2>&1 9>&- && apt-get download -q prometheus >log 2>&1 9>&-; }; then
		say "apt-get could not download the package: $(tail -n 1 log)"
		exit 1
	fi
	dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xf - ./usr/bin/promtool
	mv usr/bin/promtool "$cache/promtool"
fi
echo "$cache/promtool"
