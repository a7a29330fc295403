#!/usr/bin/env bash
# mypy.sh: prints the path of mypy, and installs it first where there is none: into
# muster/mypy in the user's cache, once, which takes seconds.
set -euo pipefail

say() { printf 'mypy: %s\n' "$*" >&2; }

if command -v mypy; then
	exit
fi
dir=${XDG_CACHE_HOME:-$HOME/.cache}/muster/mypy
mkdir -p "$(dirname "$dir")"
if command -v flock >/dev/null; then
	exec 9>"$dir.lock"
	flock 9
fi
if ! [ -e "$dir/.complete" ]; then
	base=$(command -v "${BASE_PYTHON:-python3}") || { say "no ${BASE_PYTHON:-python3}"; exit 1; }
	rm -rf "$dir"
	"$base" -m venv "$dir" >&2
	"$dir/bin/python3" -m pip install --quiet --disable-pip-version-check --no-input mypy >&2
	: >"$dir/.complete"
fi
echo "$dir/bin/mypy"
