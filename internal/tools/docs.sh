#!/usr/bin/env bash
# docs.sh [DIR]: writes the documentation site to DIR (dist/site): README.md, docs/ and the files that
# they link to. Zensical builds it, in the versions of pages/requirements.txt, from a virtual
# environment of its own in muster/docs in the user's cache, which is made once. A dead link
# is an error, and so is a page that would load something from another host.
#
# The status is 3 if the environment cannot be made.
#
#   BASE_PYTHON=…  make the environment with this interpreter (default: python3)
set -euo pipefail
cd "$(dirname "$0")/../.."

site=${1:-dist/site}

say() { printf 'docs: %s\n' "$*" >&2; }

wanted=internal/tools/pages/requirements.txt
dir=${XDG_CACHE_HOME:-$HOME/.cache}/muster/docs
mkdir -p "$(dirname "$dir")"
if command -v flock >/dev/null; then
	exec 9>"$dir.lock"
	flock 9
fi
if ! cmp -s "$wanted" "$dir/requirements.txt"; then
	base=$(command -v "${BASE_PYTHON:-python3}") || { say "no ${BASE_PYTHON:-python3}; install Python 3.10 or later"; exit 3; }
	say "installing Zensical into $dir, once"
	rm -rf "$dir"
	if ! "$base" -m venv "$dir" >&2 || ! "$dir/bin/python3" -m pip install --quiet --disable-pip-version-check --no-input --requirement "$wanted" >&2; then
		say "$base cannot install Zensical"
		exit 3
	fi
	cp "$wanted" "$dir/requirements.txt"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/pages"
cp internal/tools/pages/zensical.toml "$work"
{ printf -- '---\ntitle: Distributed PyTorch jobs\n---\n' && cat README.md; } >"$work/pages/index.md"
tar cf - CHANGELOG.md CONTRIBUTING.md STYLE.md SECURITY.md LICENSE docs examples bench/doc.go | tar xf - -C "$work/pages"
(cd "$work" && "$dir/bin/zensical" build --strict)
if grep -rE '<(script|link|img)[^>]* (src|href)="?https?:' --include='*.html' "$work/site" >&2; then
	say "the site loads something from the network"
	exit 1
fi
mkdir -p "$(dirname "$site")"
rm -rf "$site"
mv "$work/site" "$site"
say "look at it with python3 -m http.server -d $site"
