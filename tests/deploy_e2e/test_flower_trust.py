"""Who may take part, and whom a site obeys: the authorisation matrix against a real SuperLink."""

from __future__ import annotations

import subprocess

import pytest
from tests.e2e.conftest import Server

from fedchoir.deploy.config import read_federation
from fedchoir.deploy.server import question
from fedchoir.deploy.signing import Signer
from fedchoir.deploy.superlink import SuperLinkProcess
from fedchoir.deploy.transport import GridTransport
from fedchoir.engines.messages import Envelope

pytestmark = pytest.mark.e2e

REFUSED = {  # and what the SuperNode says about it
    "no key": "All SuperNodes must be registered",
    "unregistered key": "Failed to activate SuperNode",
    "insecure against TLS": "Giving up reconnection",
    "wrong CA": "CERTIFICATE_VERIFY_FAILED",
    "TLS against insecure": "WRONG_VERSION_NUMBER",
    "revoked key": "Failed to activate SuperNode",
}


def test_only_registered_keys_come_in_and_only_the_federations_server_is_obeyed(federation: Server) -> None:
    file = read_federation(federation.write("run"))
    federation.fedchoir("keys", "--folder", "foreign", "--host", "127.0.0.1", "--site", "red")
    address, unsafe = (f"127.0.0.1:{port}" for port in (federation.port, federation.free_port()))
    rehearsal = read_federation(federation.write("rehearsal", insecure=True, address=unsafe))
    with (
        SuperLinkProcess(file, federation.folder / "link") as link,
        SuperLinkProcess(rehearsal, federation.folder / "unsafe") as open_link,
    ):
        raw = {
            "no key": ["--root-certificates", "keys/ca.crt"],
            "unregistered key": ["--root-certificates", "keys/ca.crt", "--auth-supernode-private-key", "foreign/red"],
            "insecure against TLS": ["--insecure"],
            "wrong CA": ["--root-certificates", "foreign/ca.crt", "--auth-supernode-private-key", "keys/red"],
        }
        safe = ["--root-certificates", "keys/ca.crt", "--auth-supernode-private-key", "keys/red"]
        strangers = {name: supernode(federation, name, address, *options) for name, options in raw.items()}
        strangers["TLS against insecure"] = supernode(federation, "TLS against insecure", unsafe, *safe)
        green = federation.node("green")
        grid = link.open()
        online = federation.until(lambda: list(grid.get_node_ids()))
        assert [link.nodes[node] for node in online] == ["green"]
        for name, process in strangers.items():
            assert_refused(federation, name, process)
        assert [link.nodes[node] for node in grid.get_node_ids()] == ["green"]
        assert open_link.known() == []

        # a run that anyone could start on this SuperLink gets nothing out of a site, and neither does a replay
        asked = question(file.plan())
        honest = Signer.read(file.certificate, file.key)
        imposter = Signer.read(federation.folder / "foreign/server.crt", federation.folder / "foreign/server.key")
        (node,) = online

        def answer(sealer: Signer | None) -> Envelope | str:
            post = GridTransport(grid, link, ("green",), asked, deadline=60, limit=file.limit, sealer=sealer)
            ((_, came),) = post._exchange({node: Envelope(dict(asked))}, "query.card", 60)
            return came

        for sealer in (None, imposter, ReplayedFrom(honest, run=7)):
            assert "not sealed by this federation's server" in str(answer(sealer))
        told = answer(honest)
        assert isinstance(told, Envelope)
        assert told.header["name"] == "green"
        assert told.header["train"] == 48

        # a key that is revoked is out
        link.revoke("green")
        federation.until(lambda: list(grid.get_node_ids()) == [])
        again = ["--root-certificates", "keys/ca.crt", "--auth-supernode-private-key", "keys/green"]
        assert_refused(federation, "revoked key", supernode(federation, "revoked key", address, *again))
        assert list(grid.get_node_ids()) == []
        assert green.poll() is None or green.returncode == 2


def assert_refused(federation: Server, name: str, process: subprocess.Popen[bytes]) -> None:
    federation.until(lambda: process.poll() is not None)
    assert process.returncode != 0, name
    assert REFUSED[name] in federation.log(f"{name}.log")


def supernode(federation: Server, name: str, address: str, *options: str) -> subprocess.Popen[bytes]:
    """Flower's own SuperNode, without ours around it: it says what it likes."""
    return federation.program(
        f"{name}.log", "flower-supernode", "--superlink", address, "--max-retries", "2",
        "--port", str(federation.free_port()), "--isolation", "process", *options,
    )  # fmt: skip


class ReplayedFrom:
    """A seal of the right server, but for another run."""

    def __init__(self, sealer: Signer, run: int) -> None:
        self.certificate, self._sealer, self._run = sealer.certificate, sealer, run

    def seal(self, run: int, node: int, text: str, blobs: list[bytes]) -> bytes:
        return self._sealer.seal(self._run, node, text, blobs)
