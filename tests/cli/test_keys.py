"""fedchoir keys: the fingerprints that it prints are those that others compute."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fedchoir.cli.options import print_plain

PEM = re.compile("-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.S)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_sites_fingerprint_is_that_of_ssh_keygen(fedchoir: Callable[..., tuple[int, str, str]]) -> None:
    """``ssh-keygen -l`` prints the base64 of the SHA-256 of the key in the file, without padding."""
    code, out, _ = fedchoir("keys", "--site", "hospital-a", "--site", "hospital-b")
    assert code == 0
    for name in ("hospital-a", "hospital-b"):
        kind, key, *_ = Path(f"keys/{name}.pub").read_text().split()
        assert kind.startswith("ecdsa-sha2-")
        digest = base64.b64encode(hashlib.sha256(base64.b64decode(key)).digest()).decode().rstrip("=")
        assert f"the server's operator compares its fingerprint with you: SHA256:{digest}\n" in out


def test_the_authoritys_fingerprint_is_that_of_openssl(fedchoir: Callable[..., tuple[int, str, str]]) -> None:
    """``openssl x509 -fingerprint -sha256`` prints the SHA-256 of the certificate in DER, in pairs of digits."""
    code, out, _ = fedchoir("keys", "--host", "fed.example.org")
    assert code == 0
    found = PEM.search(Path("keys/ca.crt").read_text())
    assert found is not None
    digest = hashlib.sha256(base64.b64decode(found[1])).hexdigest().upper()
    assert f"by telephone: {':'.join(re.findall('..', digest))}\n" in out


def test_digits_of_a_fingerprint_are_not_replaced_by_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    print_plain("31:CD:67:AB:0F:V:CL")
    assert capsys.readouterr().out == "31:CD:67:AB:0F:V:CL\n"
