#!/usr/bin/env bash
# Registers public keys of clients at the server that runs here: ./register.sh keys/NAME.pub ...
# A server that is started again has forgotten them; start.sh registers all that are in keys.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./environment.sh
for key in "$@"; do
    flwr supernode register "$key"
done
