"""Keys and certificates of a federation."""

from __future__ import annotations

import ipaddress
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography import x509

from fedchoir.deploy.keys import fingerprint, make_authority, make_server, make_site, read_public
from fedchoir.utils.errors import UsageError


def test_private_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    make_server(tmp_path, ["fed.example.org"])
    make_site(tmp_path, "hospital-a")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert {modes[name] for name in ("ca.key", "server.key", "hospital-a")} == {0o600}
    assert set(modes) == {"ca.key", "ca.crt", "server.key", "server.crt", "hospital-a", "hospital-a.pub"}


def test_existing_keys_are_never_overwritten(tmp_path: Path) -> None:
    _, authority = make_authority(tmp_path)
    server, _ = make_server(tmp_path, ["x"])
    site, _ = make_site(tmp_path, "hospital-a")
    before = {path: path.read_bytes() for path in (authority, server, site)}
    assert make_authority(tmp_path)[1] == authority  # kept: every site has this file
    with pytest.raises(UsageError, match=r"server\.key exists already"):
        make_server(tmp_path, ["x"])
    with pytest.raises(UsageError, match="hospital-a exists already"):
        make_site(tmp_path, "hospital-a")
    assert {path: path.read_bytes() for path in before} == before


def test_the_server_certificate_names_its_hosts_and_is_issued_by_the_authority(tmp_path: Path) -> None:
    _, path = make_server(tmp_path, ["fed.example.org", "10.0.0.1"])
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes()))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert ipaddress.ip_address("10.0.0.1") in names.get_values_for_type(x509.IPAddress)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_server_certificate_needs_a_host(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--host is missing"):
        make_server(tmp_path, [])


@pytest.mark.parametrize("name", ["../evil", "", "a b", ".hidden"])
def test_site_names_are_plain(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="A-Z, a-z, 0-9"):
        make_site(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_public_keys_are_read_as_pem(tmp_path: Path) -> None:
    private, public = make_site(tmp_path, "hospital-a")
    assert read_public(public).startswith(b"-----BEGIN PUBLIC KEY")
    with pytest.raises(UsageError, match="not an elliptic-curve public key"):
        read_public(private)
    with pytest.raises(UsageError, match="cannot read the key"):
        read_public(tmp_path / "missing.pub")


def test_fingerprints_are_those_of_the_usual_tools(tmp_path: Path) -> None:
    make_server(tmp_path, ["fed.example.org"])
    _, public = make_site(tmp_path, "hospital-a")
    certificate = tmp_path / "ca.crt"
    openssl = subprocess.run(
        ["openssl", "x509", "-in", str(certificate), "-noout", "-fingerprint", "-sha256"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert openssl.strip().endswith("=" + fingerprint(certificate))
    ssh = subprocess.run(["ssh-keygen", "-l", "-f", str(public)], capture_output=True, text=True, check=True).stdout
    assert fingerprint(public) in ssh.split()
