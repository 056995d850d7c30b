"""Signatures of the server's messages."""

from __future__ import annotations

import datetime
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedchoir.deploy import keys
from fedchoir.deploy.keys import make_server
from fedchoir.deploy.signing import Freshness, SignedMessage, Signer, verify_signature
from fedchoir.engines.messages import MessageError
from fedchoir.utils.errors import UsageError

CONTENT = SignedMessage(run=1, node=2, message_type="train.act", sent=10**18, deadline=60.0, text="{}", blobs=[b"abc"])


def signer(folder: Path) -> Signer:
    make_server(folder, ["127.0.0.1"])
    return Signer.read(folder / "server.crt", folder / "server.key")


def test_a_signature_is_valid_for_one_server_run_node_and_content(tmp_path: Path) -> None:
    ours, foreign = signer(tmp_path / "ours"), signer(tmp_path / "foreign")
    ca = tmp_path / "ours" / "ca.crt"
    good = ours.sign(CONTENT)
    verify_signature(ca, ours.certificate, good, CONTENT)
    for certificate, signature, changes in (
        (ours.certificate, good, {"run": 3}),
        (ours.certificate, good, {"node": 3}),
        (ours.certificate, good, {"text": "[]"}),
        (ours.certificate, good, {"blobs": [b"abd"]}),
        (ours.certificate, good, {"blobs": [b"ab", b"c"]}),
        (ours.certificate, good, {"message_type": "query.info"}),
        (ours.certificate, good, {"sent": CONTENT.sent + 1}),
        (ours.certificate, good, {"deadline": 3600.0}),
        (ours.certificate, b"", {}),
        (foreign.certificate, foreign.sign(CONTENT), {}),
        (b"", good, {}),
    ):
        with pytest.raises(MessageError, match="not signed by this federation's server"):
            verify_signature(ca, certificate, signature, replace(CONTENT, **changes))


def test_a_message_that_is_late_from_the_future_or_was_received_before_is_refused(tmp_path: Path) -> None:
    freshness, now = Freshness(tmp_path / "state" / "newest"), time.time_ns()
    first, second = (replace(CONTENT, sent=now + number) for number in (1, 2))
    freshness.check(first)
    freshness.check(second)
    for old in (first, second):
        with pytest.raises(MessageError, match="this message, or a newer one, was received before"):
            Freshness(tmp_path / "state" / "newest").check(old)  # also after a restart
    seconds = 10**9
    with pytest.raises(MessageError, match="the message is 500 s old, and its deadline was 60 s"):
        freshness.check(replace(CONTENT, sent=now - 500 * seconds))
    with pytest.raises(MessageError, match="clock is wrong"):
        freshness.check(replace(CONTENT, sent=now + 500 * seconds))
    freshness.check(replace(CONTENT, sent=now + 10 * seconds))  # clocks may differ a little


def test_an_expired_certificate_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class LongAgo(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> LongAgo:
            return cls(2001, 1, 1, tzinfo=tz)

    with monkeypatch.context() as patch:
        patch.setattr(keys.datetime, "datetime", LongAgo)
        ours = signer(tmp_path)
    with pytest.raises(MessageError, match="has expired"):
        verify_signature(tmp_path / "ca.crt", ours.certificate, ours.sign(CONTENT), CONTENT)


def test_unusable_key_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*server.key: No such file.*fedchoir keys creates it"):
        Signer.read(tmp_path / "server.crt", tmp_path / "server.key")
    (tmp_path / "server.key").write_text("no key")
    with pytest.raises(UsageError, match="is not an elliptic-curve private key"):
        Signer.read(tmp_path / "server.crt", tmp_path / "server.key")
