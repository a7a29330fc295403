#!/usr/bin/env bash
# build.sh: bin/muster, static and stripped, and the same program under
# torchrun's name.
set -euo pipefail
cd "$(dirname "$0")/../.."
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/muster ./cmd/muster
ln -sf muster bin/torchrun
