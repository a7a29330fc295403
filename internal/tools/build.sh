#!/usr/bin/env bash
# build.sh [PACKAGE...]: bin/muster, static and stripped, the same program under torchrun's
# name, and bin/muster-quorum, which muster starts for --rdzv-backend etcd and
# quorum; or only the programs that are named.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- ./cmd/muster ./cmd/muster-quorum
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ "$@"
ln -sf muster bin/torchrun
