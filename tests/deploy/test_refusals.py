"""What a server is told when a site refuses: a reason, and no path of the site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from tests.deploy.in_process import InProcessTransport, run_on_sites
from tests.helpers import events

from fedchoir import Experiment
from fedchoir.deploy.agreement import Agreement
from fedchoir.deploy.audit import read_audit
from fedchoir.deploy.config import FederationFile
from fedchoir.deploy.keys import make_site
from fedchoir.deploy.policy import Policy
from fedchoir.engines.headers import InfoHeader
from fedchoir.engines.messages import MessageError
from fedchoir.privacy.secure_aggregation.peer_keys import VerifiedPeers
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError


def test_a_changed_budget(small: Callable[..., Experiment], tmp_path: Path) -> None:
    """The server learns that the site failed; the site's operator learns why."""
    settings = {"dp_noise": 1.0, "local_batch": 16, "local_epochs": 1, "sync": "epoch"}
    experiment = small("fedavg", rounds=2, models=("mlp",), settings=settings)

    def tamper(transport: InProcessTransport) -> None:
        worker = transport.workers[0]
        worker.policy = Policy(trust_server=True, max_epsilon=100.0)
        worker.folder.mkdir(parents=True)
        (worker.folder / "privacy-budget.jsonl").write_text("{}\n")

    _, transport = run_on_sites(experiment, tmp_path / "sites", change=tamper)
    told = {out["why"] for event in events(experiment) for out in event["left_out"]}
    assert told == {"UsageError at this site; its operator finds the reason in its log"}
    folder = transport.workers[0].folder
    assert f"{folder / 'privacy-budget.jsonl'}, line 1: the privacy budget was changed" in str(
        read_audit(folder / "audit.jsonl")
    )


def test_keys_of_other_sites(tmp_path: Path) -> None:
    key, _ = make_site(tmp_path, "a")
    for name in "bc":
        make_site(tmp_path, name)
    edwards = ed25519.Ed25519PrivateKey.generate().public_key()
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    (tmp_path / "d.pub").write_bytes(edwards.public_bytes(*form))
    (tmp_path / "e.pub").write_text("not a key")
    (tmp_path / "f.pub").mkdir()
    peers = VerifiedPeers(key, tmp_path)
    reasons = {
        "b": "the signature of b is wrong", "d": "its d.pub is not an elliptic-curve key",
        "e": "its e.pub is not an elliptic-curve key", "f": "this site cannot read f.pub",
        "g": "this site cannot read g.pub", "../b": "is not the name of a site",
    }  # fmt: skip
    for name, why in reasons.items():
        with pytest.raises(SecureAggregationError, match=why) as refused:
            peers.check(name, b"content", peers.sign(b"content"))
        assert str(tmp_path) not in str(refused.value)


def test_paths_in_the_agreed_settings(tmp_path: Path) -> None:
    file = FederationFile.model_validate(
        {
            "method": "fedavg",
            "sites": [{"name": "a"}, {"name": "b"}],
            "settings": {"tokenizer": str(tmp_path / "t.json")},
        }
    )
    agreement = Agreement.of(file)
    asked = InfoHeader(method="fedavg", settings={**agreement.settings, "tokenizer": "t.json"}, public=None)
    with pytest.raises(MessageError, match=r"tokenizer = 't\.json', and the agreed file has another path") as refused:
        agreement.check_request(asked)
    assert str(tmp_path) not in str(refused.value)
