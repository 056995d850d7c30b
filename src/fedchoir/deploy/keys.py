"""Keys of a federation: a certificate authority, the server's certificate, and a key pair for each site.

Sites make their own pair and hand over only the public half. Private files are readable by their owner alone.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedchoir.utils.errors import UsageError

CA_DAYS = 3650
SERVER_DAYS = 825
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def make_authority(folder: Path) -> tuple[Path, Path]:
    """``ca.key`` and ``ca.crt``: the root that every site trusts. Kept if they are there already."""
    key_path, crt_path = folder / "ca.key", folder / "ca.crt"
    if key_path.exists() and crt_path.exists():
        return key_path, crt_path
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedchoir certificate authority")
    builder = (
        _certificate(name, name, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write(key_path, _pem(key), private=True)
    _write(crt_path, builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))
    return key_path, crt_path


def make_server(folder: Path, hosts: Sequence[str]) -> tuple[Path, Path]:
    """``server.key`` and ``server.crt`` for the names and addresses under which sites reach the server."""
    if not hosts:
        raise UsageError("--host is missing: the name or address under which sites reach the server")
    ca_key_path, ca_path = make_authority(folder)
    key_path, crt_path = folder / "server.key", folder / "server.crt"
    if key_path.exists():
        raise UsageError(f"{key_path} is there already: remove server.key and server.crt to make new ones")
    ca = x509.load_pem_x509_certificate(ca_path.read_bytes())
    ca_key = serialization.load_pem_private_key(ca_key_path.read_bytes(), password=None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    names = [_host(host) for host in dict.fromkeys((*hosts, "localhost", "127.0.0.1"))]
    builder = (
        _certificate(_name(hosts[0]), ca.subject, key.public_key(), SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    _write(key_path, _pem(key), private=True)
    _write(crt_path, builder.sign(ca_key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))
    return key_path, crt_path


def make_site(folder: Path, name: str) -> tuple[Path, Path]:
    """``NAME`` (private) and ``NAME.pub``: a P-384 pair in OpenSSH's format, as SuperNodes want it."""
    if not NAME.fullmatch(name):
        raise UsageError(f"--site {name!r} is not possible: it should be letters, digits, dots and dashes")
    key_path, pub_path = folder / name, folder / f"{name}.pub"
    if key_path.exists() or pub_path.exists():
        raise UsageError(f"{key_path} is there already: remove it to make a new pair, and register that at the server")
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(key_path, private, private=True)
    _write(pub_path, public + b" " + name.encode() + b"\n")
    return key_path, pub_path


def read_public(path: Path) -> bytes:
    """A site's public key as PEM, which is how the SuperLink knows it."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read the key {path}: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(f"{path} is not a public key; fedchoir keys --site NAME makes a pair") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UsageError(f"{path} is not an elliptic-curve key; fedchoir keys --site NAME makes one")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, *, private: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
