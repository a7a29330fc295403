#!/usr/bin/env bash
# compat.sh [RELEASE...]: the tests that have PyTorch as their peer, with older
# releases of it (default: 2.3 2.6 2.10 1.13), one after the other. Each gets a
# virtual environment that is removed before the next is made; that is a download
# of 1 to 3 GB and up to 7 GB of disk, and about five minutes for each.
#
#   BASE_PYTHON=…        makes the environments; 2.3 needs Python 3.12 or older
#   MUSTER_PYTHON_113=…  has PyTorch 1.13; without it Debian's python3-torch is
#                        installed, where we may (root and apt-get)
set -euo pipefail
cd "$(dirname "$0")/../.."

[ $# -gt 0 ] || set -- 2.3 2.6 2.10 1.13
work=$(mktemp -d "${TMPDIR:-/tmp}/muster-compat-XXXXXX")
trap 'rm -rf "$work"' EXIT
export PIP_NO_CACHE_DIR=1
results=()
failed=0

note() { # RELEASE STATUS
	results+=("$1 $2")
	[ "$2" = passed ] || [ "$2" = skipped ] || failed=1
}

for release in "$@"; do
	echo "compat: PyTorch $release"
	case $release in
	1.*)
		python=${MUSTER_PYTHON_113:-/usr/bin/python3}
		if ! "$python" -c 'import torch' 2>/dev/null && [ -z "${MUSTER_PYTHON_113:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
			apt-get install -y -q python3-torch >/dev/null || true
		fi
		version=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null || true)
		case $version in
		1.*) ;;
		*)
			echo "compat: no PyTorch 1.x to be had ($python has ${version:-none})"
			note "$release" skipped
			continue
			;;
		esac
		echo "compat: $python has $version, which speaks another dialect and must be refused"
		if MUSTER_PYTHON_113=$python go test -count=1 -run 'TestPeerOld' -v ./store/tcpstore; then
			note "$release" passed
		else
			note "$release" failed
		fi
		continue
		;;
	2.[0-3]) requirements=("torch==$release.*" "numpy<2") ;;
	*) requirements=("torch==$release.*" numpy) ;;
	esac
	dir=$work/$release
	if ! python=$(internal/tools/venv.sh "$dir" "${requirements[@]}"); then
		note "$release" "not installed"
		continue
	fi
	"$python" -c 'import sys, torch; print("compat: torch", torch.__version__, "on Python", sys.version.split()[0])'
	status=passed
	MUSTER_PYTHON=$python go test -count=1 -run 'TestPeer' ./store/tcpstore || status=failed
	MUSTER_PYTHON=$python go test -count=1 -run 'TestLossesEqualTorchrun|TestCheckpointResume|TestRestartMeetsAgain|TestErrorFileIsPropagated' ./test/e2e || status=failed
	note "$release" "$status"
	rm -rf "$dir" "$dir.lock"
done

echo
printf 'compat: PyTorch %s\n' "${results[@]}"
exit $failed
