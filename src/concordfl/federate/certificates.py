"""Certificates and node keys for trying a federation out.

A certificate authority is made for one server certificate and forgotten: its private key is written
nowhere, so nobody can issue another certificate in its name. `cryptography` comes with Flower.
"""

import datetime
import ipaddress
from collections.abc import Iterable
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 90
# A machine whose clock is slow must not refuse a certificate that was made just now.
CLOCK_SKEW = datetime.timedelta(days=1)
LOOPBACK = ("127.0.0.1", "::1", "localhost")
PEM, UNENCRYPTED = serialization.Encoding.PEM, serialization.NoEncryption()

Key = ec.EllipticCurvePrivateKey


class Certificates(NamedTuple):
    """PEM texts."""

    authority: bytes
    server: bytes
    server_key: bytes


class NodeKey(NamedTuple):
    """A SuperNode's key pair, as OpenSSH writes them."""

    private: bytes
    public: bytes


def make_certificates(host: str) -> Certificates:
    """For a server that is reached as `host`, a name or an address, and from its own machine."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _name("concordfl trial authority")
    authority = (
        _builder(issuer, authority_key, issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    server = (
        _builder(_name("concordfl trial server"), key, issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_alternative_names(dict.fromkeys((host, *LOOPBACK))), critical=False)
    )
    return Certificates(
        authority.sign(authority_key, hashes.SHA256()).public_bytes(PEM),
        server.sign(authority_key, hashes.SHA256()).public_bytes(PEM),
        key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, UNENCRYPTED),
    )


def make_node_key() -> NodeKey:
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    private = key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, UNENCRYPTED)
    return NodeKey(private, public + b"\n")


def _builder(
    subject: x509.Name, key: Key, issuer: x509.Name, issuer_key: Key
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    public, issuer_public = key.public_key(), issuer_key.public_key()
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_public)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(issued_by, critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative_names(hosts: Iterable[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([_alternative_name(host) for host in hosts])


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
