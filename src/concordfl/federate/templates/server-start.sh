#!/usr/bin/env bash
# Starts the server, Flower's SuperLink, and registers the clients' keys. Ctrl-C ends it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./environment.sh
@WARNING@
command -v flower-superlink >/dev/null || {
    echo "Flower must be installed: pip install 'concordfl[flower]'" >&2
    exit 1
}
@REGISTRATION@
exec flower-superlink --host "$LISTEN" --port "$PORT" @SAFETY@ \
    --disable-runtime-dependency-installation
