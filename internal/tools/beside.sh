#!/usr/bin/env bash
# beside.sh PYTHON DIR REQUIREMENT...
#
# Makes a virtual environment in DIR that has the requirements, and what PYTHON's has:
# torch, for one, which it does not install again.
set -euo pipefail
python=$1 dir=$2
shift 2
"$python" -m venv --without-pip "$dir"
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$(echo "$dir"/lib/python3*/site-packages)/beside.pth"
exec "$python" -m pip --python "$dir/bin/python" install --quiet --disable-pip-version-check --no-input "$@"
