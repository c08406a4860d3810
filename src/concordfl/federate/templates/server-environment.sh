# The server's settings, for start.sh and register.sh.

# Where it listens: 127.0.0.1 for this machine alone, 0.0.0.0 for all networks of this machine.
LISTEN=${CONCORDFL_LISTEN:-@LISTEN@}
PORT=${CONCORDFL_PORT:-@PORT@}

# Nothing is sent to Flower's makers, and Flower's files stay in this folder.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$PWD/.flwr"

umask 077
mkdir -p "$FLWR_HOME"
HERE=${PWD//\\/\\\\} # as it stands in a string of TOML
HERE=${HERE//\"/\\\"}
cat >"$FLWR_HOME/config.toml" <<END
[superlink]
default = "own"

[superlink.own]
address = "127.0.0.1:$PORT"
@CONNECTION@
END
