"""Certificates and keys of a federation on loopback, as files."""

from concordfl.federate.certificates import make_certificates, make_node_key


def write_certificates(folder):
    """ca.pem, server.pem and server.key of a server on loopback."""
    folder.mkdir()
    made = make_certificates("127.0.0.1")
    (folder / "ca.pem").write_bytes(made.authority)
    (folder / "server.pem").write_bytes(made.server)
    (folder / "server.key").write_bytes(made.server_key)


def write_node_key(file):
    """A node's private key, and its public one beside it with the ending .pub."""
    key = make_node_key()
    file.write_bytes(key.private)
    file.with_suffix(".pub").write_bytes(key.public)
