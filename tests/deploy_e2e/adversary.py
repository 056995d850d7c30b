"""A dishonest server and a dishonest site. What they send goes through the same code as between real processes.

`DishonestServer` has the federation's real key: it signs what it sends to nodes (`Node.handle`). `DishonestSite` has a
real key as well: its information and replies go to the server's `GridTransport`, or through the engine into a run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from flwr.app import Message
from tests.conftest import draw_shapes

from fedchoir import methods
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.server import Server
from fedchoir.deploy.config import OWN, FederationFile, read_federation
from fedchoir.deploy.engine import FlowerEngine
from fedchoir.deploy.keys import make_server, make_site
from fedchoir.deploy.node import Node, NodeOptions
from fedchoir.deploy.policy import Policy
from fedchoir.deploy.records import ACTIONS, EXTRA_TTL, SITE_INFO, to_records
from fedchoir.deploy.signing import SignedMessage, Signer
from fedchoir.deploy.site_data import LocalSite
from fedchoir.engines.messages import Envelope, MessageError
from fedchoir.experiments.prepare import public_options

RUN = "0123456789abcdef"
FLOWER_RUN = 7
DEADLINE = 60.0
NAMES = ("red", "green", "white")
SETTINGS = {"image_size": 16, "local_epochs": 2, "local_batch": 16, "public_size": 40, "public_batch": 16}


@dataclass
class DishonestServer:
    """The server of a federation of nodes in this process, with everything that a real one has: keys and file."""

    folder: Path
    federation: FederationFile
    nodes: list[Node]
    signer: Signer
    recorded: list[tuple[dict[str, Any], list[bytes]]]  # honest messages to the first node

    @classmethod
    def start(
        cls,
        folder: Path,
        policy: Mapping[str, Any] | None = None,
        models: Sequence[str] = ("mlp", "simple_cnn@4", "mlp"),
        **changes: Any,
    ) -> DishonestServer:
        """Data, keys, a federation's file, and one node per site that has agreed to it."""
        folder.mkdir(parents=True, exist_ok=True)
        make_server(folder / "keys", ["127.0.0.1"])
        sites = dict(zip(NAMES, models, strict=True))
        file = _write(folder, sites, **changes)
        federation = read_federation(file)
        allowed = Policy(
            **{"federation": file, "public": str(folder / "public.npz"), "metrics": True, **(policy or {})}
        )
        nodes = []
        for name, model in sites.items():
            make_site(folder / "keys", name)
            site = LocalSite(
                name, model, folder / f"{name}.npz", folder / f"work-{name}", public=allowed.public, device="cpu"
            )  # fmt: skip
            options = NodeOptions("127.0.0.1:1", allowed, ca=folder / "keys/ca.crt", key=folder / "keys" / name)
            nodes.append(Node(site, options, lambda line: None))
        return cls(folder, federation, nodes, Signer.read(federation.certificate, federation.key), [])

    # -- what a node gets ------------------------------------------------------------------------------------------

    def message(self, text: str, blobs: list[bytes], *, node: int = 0, kind: str = ACTIONS, **forged: Any) -> Message:
        """A signed message. ``forged`` replaces what the signature covers, or ``signer`` or ``delivered``: the text
        and bytes that arrive instead of the signed ones."""
        delivered = forged.pop("delivered", (text, blobs))
        signer = forged.pop("signer", self.signer)
        signed = SignedMessage(FLOWER_RUN, node, kind, time.time_ns(), DEADLINE, text, blobs)
        signed = replace(signed, **forged)
        records = to_records(
            *delivered, certificate=signer.certificate if signer else b"",
            signature=signer.sign(signed) if signer else b"", sent=signed.sent, deadline=signed.deadline,
        )  # fmt: skip
        return Message(records, node, kind, ttl=DEADLINE + EXTRA_TTL)

    def send(self, message: Message, node: int = 0) -> Envelope:
        """What the node replies. Raises `MessageError` with the reason that the server would get."""
        return self.nodes[node].handle(message, FLOWER_RUN, node)

    def ask(
        self, header: Mapping[str, Any], blobs: list[bytes] | None = None, node: int = 0, **options: Any
    ) -> Envelope:
        return self.send(self.message(json.dumps(header), blobs or [], node=node, **options), node)

    def site_info(self) -> dict[str, Any]:
        """The honest question about a site."""
        plan = self.federation.plan()
        settings = plan.params.model_dump(mode="json")
        return {"method": self.federation.method, "settings": settings, "public": public_options(plan)}

    # -- the honest run --------------------------------------------------------------------------------------------

    def run(self, sites: Transport | None = None) -> Iterator[dict[str, Any]]:
        """The events of an honest run with these nodes."""
        plan = self.federation.plan()
        infos = [self.ask(self.site_info(), node=k, kind=SITE_INFO).header for k in range(len(self.nodes))]
        clients = tuple(ClientInfo(i["name"], i["model"], i["train"], i["test"], OWN) for i in infos)
        site, shared = self.nodes[0].site, infos[0]["public"] or {}
        spec = FederationSpec(
            tuple(infos[0]["classes"]), clients, plan.rounds, plan.experiment.seed,
            public_size=shared.get("size", 0), inputs=site.domain(plan.params).train.input_spec,
        )  # fmt: skip
        method = methods.get(self.federation.method)(plan.params, spec)
        public = {**(public_options(plan) or {}), "digest": shared.get("digest")}
        engine = FlowerEngine(
            method, sites or Transport(self), run=RUN, public=public if method.needs_public else None,
            journal=self.folder / "replies.jsonl",
        )  # fmt: skip
        for events in Server(method, engine, (OWN,), quorum=0.3, secure=self.federation.secure).rounds():
            yield from events


class Transport:
    """Carries the honest server's messages to the nodes. ``intercept`` may replace a node's reply, and ``tamper`` the
    bytes that the nodes get."""

    def __init__(
        self,
        server: DishonestServer,
        intercept: Callable[[int, Envelope], Envelope] = lambda node, reply: reply,
        tamper: Callable[[dict[str, Any], list[bytes]], list[bytes]] = lambda header, blobs: blobs,
    ) -> None:
        self._server, self._intercept, self._tamper = server, intercept, tamper

    def update_clients(self, clients: tuple[ClientInfo, ...]) -> tuple[ClientInfo, ...]:
        return clients

    def deliver(self, envelopes: Mapping[int, Envelope], within: float = 0.0) -> Iterator[tuple[int, Envelope | str]]:
        server = self._server
        for k, envelope in envelopes.items():
            text = envelope.text()
            blobs = self._tamper(json.loads(text), [bytes(blob) for blob in envelope.blobs])
            if k == 0:
                server.recorded.append((json.loads(text), blobs))
            try:
                reply = server.send(server.message(text, blobs, node=k), k)
                yield k, self._intercept(k, Envelope.read(reply.text(), reply.blobs))
            except MessageError as error:
                yield k, str(error)


def _write(folder: Path, models: Mapping[str, str], **changes: Any) -> Path:
    rng = np.random.default_rng(5)
    for number, name in enumerate(models):
        tint = np.full(3, 0.1)
        tint[number] = 1.0
        train, test = draw_shapes(rng, 48, tuple(tint), 20), draw_shapes(rng, 32, tuple(tint), 20)
        arrays = {"train_x": train["x"], "train_y": train["y"], "test_x": test["x"], "test_y": test["y"]}
        np.savez(folder / f"{name}.npz", **arrays)
    np.savez(folder / "public.npz", x=rng.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8))
    sites = [{"name": name, "key": f"keys/{name}.pub", "model": model} for name, model in models.items()]
    fields = {
        "method": "fccl+", "public": "public.npz", "rounds": 2, "deadline": DEADLINE, "out": "run",
        "settings": {**SETTINGS, **changes.pop("settings", {})}, "sites": sites, **changes,
    }  # fmt: skip
    path = folder / "federation.toml"
    path.write_text(tomli_w.dumps(fields))
    return path
