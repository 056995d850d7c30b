"""Create the keys of a federation: a certificate authority, the server's certificate, and a key pair for each site.

Each site creates its own pair and sends only the public half. Private files are readable by their owner only.
"""

import base64
import datetime
import hashlib
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import private_write

CA_DAYS = 3650
SERVER_DAYS = 825
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # of a site


def make_authority(folder: Path) -> tuple[Path, Path]:
    """Create ``ca.key`` and ``ca.crt``, the root that every site trusts. Existing files are kept."""
    key_path, crt_path = folder / "ca.key", folder / "ca.crt"
    if key_path.exists() and crt_path.exists():
        return key_path, crt_path
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedchoir certificate authority")
    builder = _certificate(name, name, key.public_key(), CA_DAYS, ca=True).add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return _write_certificate(folder, "ca", key, builder.sign(key, hashes.SHA384()))


def make_server(folder: Path, hosts: Sequence[str]) -> tuple[Path, Path]:
    """Create ``server.key`` and ``server.crt`` for the names and addresses under which sites reach the server."""
    if not hosts:
        raise UsageError("--host is missing: the name or address under which sites reach the server")
    ca_key_path, ca_path = make_authority(folder)
    if (folder / "server.key").exists():
        raise UsageError(f"{folder / 'server.key'} exists already: remove server.key and server.crt to create new ones")
    ca = x509.load_pem_x509_certificate(ca_path.read_bytes())
    ca_key = serialization.load_pem_private_key(ca_key_path.read_bytes(), password=None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    names = [_host(host) for host in dict.fromkeys((*hosts, "localhost", "127.0.0.1"))]
    builder = (
        _certificate(_name(hosts[0]), ca.subject, key.public_key(), SERVER_DAYS, ca=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    return _write_certificate(folder, "server", key, builder.sign(ca_key, hashes.SHA384()))


def make_site(folder: Path, name: str) -> tuple[Path, Path]:
    """Create ``NAME`` (private) and ``NAME.pub``: a P-384 pair in OpenSSH's format, which SuperNodes require."""
    if not re.fullmatch(NAME, name):
        raise UsageError(f"--site {name!r} is not possible: it should be A-Z, a-z, 0-9, dots, dashes and underscores")
    key_path, pub_path = folder / name, folder / f"{name}.pub"
    if key_path.exists() or pub_path.exists():
        raise UsageError(f"{key_path} exists already: remove it to create a new pair, and register that at the server")
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    private_write(key_path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    private_write(pub_path, public + b" " + name.encode() + b"\n", mode=0o644)
    return key_path, pub_path


def read_public(path: Path) -> bytes:
    """Read a site's public key and return it as PEM, the format that the SuperLink registers."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("another kind of key")
    except OSError as error:
        raise UsageError(f"cannot read the key {path}: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm, NotImplementedError):
        raise UsageError(f"{path} is not an elliptic-curve public key; fedchoir keys --site NAME creates one") from None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def fingerprint(path: Path) -> str:
    """The SHA-256 of a public key or certificate, as ``ssh-keygen -l`` and ``openssl x509 -fingerprint`` print it."""
    raw = path.read_bytes()
    if path.suffix == ".crt":
        return x509.load_pem_x509_certificate(raw).fingerprint(hashes.SHA256()).hex(":").upper()
    digest = hashlib.sha256(base64.b64decode(raw.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, *, ca: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
              "decipher_only")  # fmt: skip
    usage = x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, **dict.fromkeys(unused, False))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
    )


def _write_certificate(
    folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
) -> tuple[Path, Path]:
    key_path, crt_path = folder / f"{name}.key", folder / f"{name}.crt"
    private_write(key_path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    private_write(crt_path, certificate.public_bytes(Encoding.PEM), mode=0o644)
    return key_path, crt_path


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])
