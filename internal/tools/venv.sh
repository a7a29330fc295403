#!/usr/bin/env bash
# venv.sh [DIR REQUIREMENT...]
#
# Prints the path of a Python interpreter that can import torch, on stdout, and
# makes it first where there is none: a virtual environment in DIR with the
# requirements (default: muster/venv in the user's cache, with torch, numpy and
# py-spy). It is made once and then re-used; a marker file says what is in it, what
# it lacks is added, and callers that arrive together wait for the one that does it.
#
#   PYTHON=…       use this interpreter, which has torch already; nothing is made
#   BASE_PYTHON=…  make the environment with this interpreter (default: python3)
#
# With COLLECT_LESS=1 in its environment, as test.sh sets it, Python in the environment
# has its garbage collector run rarely and not at the end, which is a third of what a
# process costs that imports torch.
set -euo pipefail

say() { printf 'venv: %s\n' "$*" >&2; }
has_torch() { "$1" -c 'import torch, numpy' 2>/dev/null; }

if [ $# -eq 0 ] && [ -n "${PYTHON:-}" ]; then
	python=$(command -v "$PYTHON") || { say "PYTHON=$PYTHON is not a program"; exit 1; }
	has_torch "$python" || { say "PYTHON=$PYTHON cannot import torch and numpy; unset it, or install them there"; exit 1; }
	echo "$python"
	exit
fi

dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/muster/venv}
[ $# -eq 0 ] || shift
optional= quiet=--quiet
[ ! -t 2 ] || quiet= # a person sees how far it is
[ $# -gt 0 ] || { set -- torch numpy py-spy; optional=1; }
python=$dir/bin/python3
marker=$dir/.complete

mkdir -p "$(dirname "$dir")"
if command -v flock >/dev/null; then
	exec 9>"$dir.lock"
	flock -n 9 || { say "waiting for another make that is preparing $dir"; flock 9; }
fi

if [ ! -e "$marker" ]; then
	if [ -x "$python" ] && has_torch "$python"; then
		say "$dir has no marker but imports torch: taken as it is"
		echo "torch numpy" >"$marker"
	else
		base=$(command -v "${BASE_PYTHON:-python3}") || { say "no ${BASE_PYTHON:-python3}; install Python 3, or name an interpreter that has torch: make … PYTHON=/path/to/python"; exit 1; }
		say "installing $* into $dir, once; about 1.5 minutes and 5.5 GB on Linux"
		started=$SECONDS
		rm -rf "$dir"
		if ! "$base" -m venv "$dir" >&2; then
			rm -rf "$dir"
			say "$base cannot make virtual environments; on Debian: apt-get install python3-venv"
			exit 1
		fi
		# Python compiles what is imported; pip would compile all of PyTorch, for half a minute.
		"$python" -m pip install $quiet --disable-pip-version-check --no-input --no-compile "$@" >&2
		"$python" -c 'import torch, numpy' >&2
		"$python" -c 'import torch.distributed.run' 2>/dev/null || : # tests start many at once
		say "done in $((SECONDS - started)) s"
		printf '%s\n' "$*" >"$marker"
	fi
fi

missing=()
for requirement in "$@"; do
	grep -qxF -- "$requirement" <(tr ' ' '\n' <"$marker") || missing+=("$requirement")
done
if [ ${#missing[@]} -gt 0 ]; then
	say "adding ${missing[*]} to $dir"
	if "$python" -m pip install $quiet --disable-pip-version-check --no-input "${missing[@]}" >&2; then
		printf '%s\n' "$(cat "$marker") ${missing[*]}" >"$marker"
	elif [ -n "$optional" ]; then
		say "could not add ${missing[*]}; tests that need it skip"
	else
		exit 1
	fi
fi
less=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/collect_less.pth
if [ ! -e "$less" ] && [ -w "$(dirname "$less")" ]; then
	echo 'import os; os.environ.get("COLLECT_LESS") and exec("import atexit, gc; gc.set_threshold(50000, 20, 100); atexit.register(gc.freeze)")' >"$less.new"
	mv "$less.new" "$less"
fi
echo "$python"
