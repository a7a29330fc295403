#!/usr/bin/env bash
# chromium.sh: prints the path of a Chromium browser on stdout. Where there is
# none it installs Debian's package, if we may (root and apt-get); callers that
# arrive together wait for the one that installs. Without a browser it says in
# one line why, on stderr, and exits 1.
#
#   CHROMIUM=…  use this browser; nothing is installed
set -euo pipefail

say() { printf 'chromium: %s\n' "$*" >&2; }

find() {
	local name
	for name in ${CHROMIUM:-chromium chromium-browser google-chrome}; do
		if command -v "$name"; then return 0; fi
	done
	return 1
}

if find; then exit 0; fi
if [ -n "${CHROMIUM:-}" ]; then
	say "CHROMIUM=$CHROMIUM is not a program"
	exit 1
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	say "there is none, and installing the package takes root and apt-get"
	exit 1
fi

exec 9>"${TMPDIR:-/tmp}/muster-chromium.lock"
flock 9
if find; then exit 0; fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=120 chromium fonts-dejavu-core >"$log" 2>&1 9>&-; }
update() { apt-get update -q >"$log" 2>&1 9>&-; }
if ! install && ! { update && install; }; then
	say "apt-get could not install it: $(tail -n 1 "$log")"
	exit 1
fi
find
