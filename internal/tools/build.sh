#!/usr/bin/env bash
# build.sh: bin/muster, static and stripped, the same program under torchrun's
# name, and bin/muster-quorum, which muster starts for --rdzv-backend etcd and
# quorum.
set -euo pipefail
cd "$(dirname "$0")/../.."
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ ./cmd/muster ./cmd/muster-quorum
ln -sf muster bin/torchrun
