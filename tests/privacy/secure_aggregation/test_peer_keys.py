"""Sites that have each other's public keys accept only keys that their owner signed for this run, and once."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from tests.core.masking_engine import MaskingEngine, SecureSums, key_request, logits

from fedchoir.privacy.secure_aggregation.client import SecureAggregationClient
from fedchoir.privacy.secure_aggregation.peer_keys import UnverifiedPeers, VerifiedPeers
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError
from fedchoir.utils.errors import UsageError

NAMES = ["c0", "c1", "c2"]


def write_key_pair(folder: Path, name: str, key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> None:
    """As `fedchoir keys` writes them: an OpenSSH private key and NAME.pub."""
    encoding, openssh = serialization.Encoding, serialization.PrivateFormat.OpenSSH
    (folder / name).write_bytes(key.private_bytes(encoding.PEM, openssh, serialization.NoEncryption()))
    public = key.public_key().public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        write_key_pair(tmp_path, name, ec.generate_private_key(ec.SECP384R1()))
    return tmp_path


@pytest.fixture
def engine(folder: Path) -> MaskingEngine:
    engine = MaskingEngine(logits(3))
    engine.clients = [
        SecureAggregationClient(k, {}, VerifiedPeers(folder / name, folder), "run") for k, name in enumerate(NAMES)
    ]
    return engine


def test_a_signature_is_valid_for_its_content_and_its_signer(folder: Path) -> None:
    one, two = (VerifiedPeers(folder / name, folder) for name in ("c0", "c1"))
    signature = one.sign(b"content")
    two.check("c0", b"content", signature)
    for name, content, signed in (("c0", b"other", signature), ("c1", b"content", signature), ("c0", b"content", b"")):
        with pytest.raises(SecureAggregationError, match=f"the signature of {name} is wrong"):
            two.check(name, content, signed)


def test_unknown_sites_and_unsuitable_keys_are_refused(folder: Path) -> None:
    peers = VerifiedPeers(folder / "c0", folder)
    with pytest.raises(SecureAggregationError, match=r"cannot be checked: .*c9\.pub"):
        peers.check("c9", b"content", b"")
    signature = VerifiedPeers(folder / "c1", folder).sign(b"content")
    peers.check("c1", b"content", signature)
    for name in ("x/c1", "./c1", "../c1", "/c1"):  # one site under two names would count twice
        with pytest.raises(SecureAggregationError, match="is not the name of a site"):
            peers.check(name, b"content", signature)
    write_key_pair(folder, "edwards", ed25519.Ed25519PrivateKey.generate())
    with pytest.raises(SecureAggregationError, match="not an elliptic-curve key"):
        peers.check("edwards", b"content", b"")
    with pytest.raises(UsageError, match="edwards is not an elliptic-curve key"):
        VerifiedPeers(folder / "edwards", folder).sign(b"content")


def test_without_peers_nothing_is_checked_but_a_site_with_a_key_signs(folder: Path) -> None:
    assert UnverifiedPeers().sign(b"content") == b""
    UnverifiedPeers().check("anyone", b"content", b"wrong")
    VerifiedPeers(folder / "c1", folder).check("c0", b"content", UnverifiedPeers(folder / "c0").sign(b"content"))


def test_sites_with_and_without_peers_work_together(engine: MaskingEngine, folder: Path) -> None:
    engine.clients[2] = SecureAggregationClient(2, {}, UnverifiedPeers(folder / "c2"), "run")
    mean, stats = SecureSums(engine, strict=True)()
    assert (mean["logits"] - engine.mean()).abs().max() < 1e-5
    assert stats.left_out == []


@pytest.mark.parametrize("strict", [False, True])
def test_sums_work_with_verified_peers(engine: MaskingEngine, strict: bool) -> None:
    next_sum = SecureSums(engine, strict)
    for _ in range(2):
        mean, stats = next_sum()
        assert (mean["logits"] - engine.mean()).abs().max() < 1e-5
        assert stats.left_out == []


def test_a_server_cannot_replace_a_sites_keys_by_its_own(engine: MaskingEngine) -> None:
    honest = key_request(engine)
    keys = honest["encryption_keys"]
    forged = SecureAggregationClient(1, {}, run="run").exchange_keys({"kind": "encryption_key"})["encryption_key"]
    for encryption_keys, why in (
        ({**keys, "1": {**keys["1"], "key": forged["key"]}}, "the signature of c1 is wrong"),
        ({**keys, "2": keys["1"]}, "two keys claim to belong to one site"),
        ({**keys, "1": {**keys["1"], "name": "c9"}}, r"the signature of c9 cannot be checked: .*c9\.pub"),
    ):
        with pytest.raises(SecureAggregationError, match=why):
            engine.clients[0].exchange_keys({"kind": "key_shares", "encryption_keys": encryption_keys, "threshold": 3})
    other = {**honest["key_shares"], "1": {**honest["key_shares"]["1"], "mask": forged["key"]}}
    with pytest.raises(SecureAggregationError, match="the signature of c1 is wrong"):
        engine.masked(0, {**honest, "key_shares": other})


def test_keys_of_another_run_or_of_an_earlier_sum_are_refused(engine: MaskingEngine, folder: Path) -> None:
    honest = key_request(engine)
    another_run = SecureAggregationClient(0, {}, VerifiedPeers(folder / "c0", folder), "another run")
    request = {"kind": "key_shares", "encryption_keys": honest["encryption_keys"], "threshold": 3}
    with pytest.raises(SecureAggregationError, match="signature of c0 is wrong"):
        another_run.exchange_keys(request)
    engine.masked(2, honest)
    with pytest.raises(SecureAggregationError, match="were used before"):
        engine.masked(2, honest)
