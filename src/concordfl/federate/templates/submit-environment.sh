# Settings of whoever submits. In this folder, `. ./environment.sh` makes plain `flwr` work too.

# The one setting: where the server is.
SERVER=${CONCORDFL_SERVER:-@SERVER@}

# Nothing is sent to Flower's makers, and Flower's files stay in this folder.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$PWD/.flwr"

mkdir -p "$FLWR_HOME"
HERE=${PWD//\\/\\\\} # as it stands in a string of TOML
HERE=${HERE//\"/\\\"}
cat >"$FLWR_HOME/config.toml" <<END
[superlink]
default = "server"

[superlink.server]
address = "$SERVER"
@CONNECTION@
END
