"""Certificates and keys of a federation on loopback, for tests."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()


def certificate(name, key, issuer, issuer_key, *, authority):
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    usage = x509.KeyUsage(True, False, False, False, False, authority, authority, False, False)
    public = issuer_key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .add_extension(usage, critical=True)
        .sign(issuer_key, hashes.SHA256())
    )


def write_certificates(folder):
    """ca.pem, server.pem and server.key of a server on loopback."""
    folder.mkdir()
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name, name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("ca", "server")
    )
    ca = certificate(ca_name, ca_key, ca_name, ca_key, authority=True)
    own = certificate(name, key, ca_name, ca_key, authority=False)
    (folder / "ca.pem").write_bytes(ca.public_bytes(PEM))
    (folder / "server.pem").write_bytes(own.public_bytes(PEM))
    form = serialization.PrivateFormat.PKCS8
    (folder / "server.key").write_bytes(key.private_bytes(PEM, form, PLAIN))


def write_node_key(file):
    """A node's private key, and its public one beside it with the ending .pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    form, kind = serialization.PrivateFormat.OpenSSH, serialization.PublicFormat.OpenSSH
    file.write_bytes(key.private_bytes(PEM, form, PLAIN))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, kind)
    file.with_suffix(".pub").write_bytes(public)
