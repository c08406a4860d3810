#!/usr/bin/env bash
# Submits the run, which begins as soon as all clients are there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./environment.sh
@WARNING@
exec flwr run . "$@"
