#!/usr/bin/env bash
# Starts this client, a SuperNode of Flower's. Ctrl-C ends it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# The one setting: where the server is.
SERVER=${CONCORDFL_SERVER:-@SERVER@}
# Only for processes of this machine; every client that runs on it must have another.
LOCAL_PORT=${CONCORDFL_LOCAL_PORT:-@LOCAL_PORT@}

# Nothing is sent to Flower's makers, and Flower's files stay in this folder.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$PWD/.flwr"
umask 077
@WARNING@
command -v flower-supernode >/dev/null || {
    echo "Flower must be installed: pip install 'concordfl[flower]'" >&2
    exit 1
}
exec flower-supernode --superlink "$SERVER" @SAFETY@ \
    --host 127.0.0.1 --port "$LOCAL_PORT" --node-config node.toml
