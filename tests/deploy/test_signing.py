"""Signatures of the server's messages."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from fedchoir.deploy import keys
from fedchoir.deploy.keys import make_server
from fedchoir.deploy.signing import Signer, verify_signature
from fedchoir.engines.messages import MessageError
from fedchoir.utils.errors import UsageError

CONTENT = ("train.act", "{}", [b"abc"])


def signer(folder: Path) -> Signer:
    make_server(folder, ["127.0.0.1"])
    return Signer.read(folder / "server.crt", folder / "server.key")


def test_a_signature_is_valid_for_one_server_run_node_and_content(tmp_path: Path) -> None:
    ours, foreign = signer(tmp_path / "ours"), signer(tmp_path / "foreign")
    ca = tmp_path / "ours" / "ca.crt"
    good = ours.sign(1, 2, *CONTENT)
    verify_signature(ca, ours.certificate, good, 1, 2, *CONTENT)
    for certificate, signature, message in (
        (ours.certificate, good, (3, 2, *CONTENT)),  # another run
        (ours.certificate, good, (1, 3, *CONTENT)),  # another node
        (ours.certificate, good, (1, 2, "train.act", "[]", [b"abc"])),
        (ours.certificate, good, (1, 2, "train.act", "{}", [b"abd"])),
        (ours.certificate, good, (1, 2, "train.act", "{}", [b"ab", b"c"])),
        (ours.certificate, good, (1, 2, "query.info", "{}", [b"abc"])),  # another type
        (ours.certificate, b"", (1, 2, *CONTENT)),
        (foreign.certificate, foreign.sign(1, 2, *CONTENT), (1, 2, *CONTENT)),
        (b"", good, (1, 2, *CONTENT)),
    ):
        with pytest.raises(MessageError, match="not signed by this federation's server"):
            verify_signature(ca, certificate, signature, *message)


def test_an_expired_certificate_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class LongAgo(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> LongAgo:
            return cls(2001, 1, 1, tzinfo=tz)

    with monkeypatch.context() as patch:
        patch.setattr(keys.datetime, "datetime", LongAgo)
        ours = signer(tmp_path)
    with pytest.raises(MessageError, match="has expired"):
        verify_signature(tmp_path / "ca.crt", ours.certificate, ours.sign(1, 2, *CONTENT), 1, 2, *CONTENT)


def test_unusable_key_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*server.key: No such file.*fedchoir keys creates it"):
        Signer.read(tmp_path / "server.crt", tmp_path / "server.key")
    (tmp_path / "server.key").write_text("no key")
    with pytest.raises(UsageError, match="is not an elliptic-curve private key"):
        Signer.read(tmp_path / "server.crt", tmp_path / "server.key")
