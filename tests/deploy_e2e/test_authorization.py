"""Which nodes a real SuperLink admits, and which servers a site obeys."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import Any

import pytest
from tests.deploy_e2e.conftest import Federation

from fedchoir.deploy.config import read_federation
from fedchoir.deploy.records import SITE_INFO
from fedchoir.deploy.server import site_info_request
from fedchoir.deploy.signing import SignedMessage, Signer
from fedchoir.deploy.superlink import SuperLinkProcess
from fedchoir.deploy.transport import GridTransport
from fedchoir.engines.messages import Envelope

pytestmark = pytest.mark.e2e

REFUSED = {  # and the error in the SuperNode's log
    "no key": "All SuperNodes must be registered",
    "unregistered key": "Failed to activate SuperNode",
    "insecure against TLS": "Giving up reconnection",
    "wrong CA": "CERTIFICATE_VERIFY_FAILED",
    "TLS against insecure": "WRONG_VERSION_NUMBER",
    "revoked key": "Failed to activate SuperNode",
}


def test_only_registered_keys_are_admitted_and_only_the_federations_server_is_obeyed(federation: Federation) -> None:
    path = federation.write("run")
    file = read_federation(path)
    federation.fedchoir("keys", "--folder", "foreign", "--host", "127.0.0.1", "--site", "red")
    address, insecure_address = (f"127.0.0.1:{port}" for port in (federation.port, federation.free_port()))
    insecure = read_federation(federation.write("no-tls", insecure=True, address=insecure_address))
    with (
        SuperLinkProcess.running(file, federation.folder / "superlink") as link,
        SuperLinkProcess.running(insecure, federation.folder / "insecure") as open_link,
    ):
        options = {
            "no key": ["--root-certificates", "keys/ca.crt"],
            "unregistered key": ["--root-certificates", "keys/ca.crt", "--auth-supernode-private-key", "foreign/red"],
            "insecure against TLS": ["--insecure"],
            "wrong CA": ["--root-certificates", "foreign/ca.crt", "--auth-supernode-private-key", "keys/red"],
        }
        keys = ["--root-certificates", "keys/ca.crt", "--auth-supernode-private-key", "keys/red"]
        strangers = {name: supernode(federation, name, address, *given) for name, given in options.items()}
        strangers["TLS against insecure"] = supernode(federation, "TLS against insecure", insecure_address, *keys)
        (green,) = federation.join_with_policy(path, names=["green"])
        grid = link.start_run()
        online = federation.until(lambda: list(grid.get_node_ids()))
        assert [link.nodes[node] for node in online] == ["green"]
        for name, process in strangers.items():
            assert_refused(federation, name, process)
        assert [link.nodes[node] for node in grid.get_node_ids()] == ["green"]
        assert open_link.registered_nodes() == []

        # a foreign run on this SuperLink gets nothing from a site, and neither does a message of another run
        request = site_info_request(file.plan())
        honest = Signer.read(file.certificate, file.key)
        imposter = Signer.read(federation.folder / "foreign/server.crt", federation.folder / "foreign/server.key")
        (node,) = online

        def ask(signer: Any) -> Envelope | str:
            transport = GridTransport(grid, link.nodes, ("green",), request, 60, file.limit, signer)
            ((_, reply),) = transport._exchange({node: Envelope(dict(request))}, SITE_INFO, 60)
            return reply

        for signer in (None, imposter, SignerOfAnotherRun(honest)):
            assert "not signed by this federation's server" in str(ask(signer))
        reply = ask(honest)
        assert isinstance(reply, Envelope)
        assert reply.header["name"] == "green"
        assert reply.header["train"] == 48

        # a revoked key is refused
        link.revoke("green")
        federation.until(lambda: list(grid.get_node_ids()) == [])
        again = ["--root-certificates", "keys/ca.crt", "--auth-supernode-private-key", "keys/green"]
        assert_refused(federation, "revoked key", supernode(federation, "revoked key", address, *again))
        assert list(grid.get_node_ids()) == []
        assert green.poll() is None or green.returncode == 2


def assert_refused(federation: Federation, name: str, process: subprocess.Popen[bytes]) -> None:
    federation.until(lambda: process.poll() is not None)
    assert process.returncode != 0, name
    assert REFUSED[name] in federation.log(f"{name}.log")


def supernode(federation: Federation, name: str, address: str, *options: str) -> subprocess.Popen[bytes]:
    """Flower's own SuperNode, without `fedchoir node`."""
    return federation.program(
        f"{name}.log", "flower-supernode", "--superlink", address, "--max-retries", "2",
        "--port", str(federation.free_port()), "--isolation", "process", *options,
    )  # fmt: skip


class SignerOfAnotherRun:
    """Signs with the right key, but for another run."""

    def __init__(self, signer: Signer) -> None:
        self.certificate, self._signer = signer.certificate, signer

    def sign(self, message: SignedMessage) -> bytes:
        return self._signer.sign(replace(message, run=message.run + 1))
