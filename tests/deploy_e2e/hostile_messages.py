"""Sixty hostile messages by name: forty from a server to a node, twenty from a site to the server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch
from tests.deploy.test_agreement import ATTACKS
from tests.deploy_e2e.adversary import FLOWER_RUN, DishonestServer

from fedchoir.deploy.keys import make_server
from fedchoir.deploy.records import SITE_INFO
from fedchoir.deploy.signing import Signer
from fedchoir.engines.messages import Envelope
from fedchoir.payload import Payload

UNSIGNED = "not signed by this federation's server"
FromServer = Callable[[DishonestServer], Envelope]


def _first(server: DishonestServer) -> tuple[str, list[bytes]]:
    header, blobs = server.recorded[0]
    return json.dumps(header), blobs


def _changed(attack: Callable[[dict[str, Any]], None]) -> FromServer:
    def send(server: DishonestServer) -> Envelope:
        header = json.loads(json.dumps(server.recorded[0][0]))
        attack(header)
        return server.ask(header, server.recorded[0][1])

    return send


def _forged(**options: Any) -> FromServer:
    return lambda server: server.send(server.message(*_first(server), **options))


def _foreign(server: DishonestServer) -> Envelope:
    folder = server.folder / "foreign"
    if not folder.exists():
        make_server(folder, ["127.0.0.1"])
    return server.send(
        server.message(*_first(server), signer=Signer.read(folder / "server.crt", folder / "server.key"))
    )


def _replaced(server: DishonestServer) -> Envelope:
    text, blobs = _first(server)
    return server.send(server.message(text, blobs, delivered=(text.replace("share", "upload"), blobs)))


def _replayed(server: DishonestServer) -> Envelope:
    message = server.message(json.dumps(server.site_info()), [], kind=SITE_INFO)
    server.send(message)  # honest, and answered
    return server.send(message)


def _text(text: str) -> FromServer:
    return lambda server: server.send(server.message(text, []))


def _received(payload: Payload) -> FromServer:
    """The second message of the honest run, with another aggregate."""

    def send(server: DishonestServer) -> Envelope:
        header, blobs = server.recorded[1]
        return server.ask({**header, "base": 0}, [payload.to_bytes(), *blobs[1:]])

    return send


def _question(**changes: Any) -> FromServer:
    return lambda server: server.ask({**server.site_info(), **changes}, kind=SITE_INFO)


def _path(name: str) -> FromServer:
    def send(server: DishonestServer) -> Envelope:
        question = server.site_info()
        path = str(server.folder / name) if not name.startswith("/") else name
        return server.ask({**question, "public": {**question["public"], "name": path}}, kind=SITE_INFO)

    return send


def _evaluate(server: DishonestServer) -> Envelope:
    weights = Payload({"weights/x": torch.zeros(1)})
    return server.ask({**server.recorded[0][0], "work": [{"round": 0, "evaluate": 0}]}, [weights.to_bytes()])


def _losses(server: DishonestServer) -> Envelope:
    """64 pairs of crafted weights and one training step, to read pixels from the losses."""
    pair = [
        {"round": 0, "kind": "step", "name": name, "batches": [], "received": received, "dims": {}}
        for name, received in (("download", 0), ("local_update", None))
    ]
    weights = Payload({"weights/x": torch.zeros(1)}).to_bytes()
    return server.ask({**server.recorded[0][0], "work": pair * 64}, [weights])


def _imprint(server: DishonestServer) -> Envelope:
    """Another method, crafted weights, one step, and all weights back."""
    header = json.loads(json.dumps(server.recorded[0][0]))
    header["plan"]["method"] = "fedavg"
    work = [("step", "download", 0), ("step", "local_update", None), ("exchange", "upload", None)]
    header["work"] = [
        {"round": 0, "kind": kind, "name": name, "batches": [], "received": received, "dims": {}}
        for kind, name, received in work
    ]
    return server.ask(header, [Payload({"weights/x": torch.zeros(1)}).to_bytes()])


CRITICAL = {"imprint weights", "crafted losses", "the private images as the public set by its path"}
HOUR = 3600 * 10**9

FROM_SERVER: dict[str, tuple[FromServer, str]] = {
    **{name: (_changed(attack), why) for name, (attack, why) in ATTACKS.items()},
    "imprint weights": (_imprint, "the server asks for 'fedavg', and the agreed file has 'fccl+'"),
    "crafted losses": (_losses, "'download' is not what fccl+ does next"),
    "the private images as the public set by its path": (_path("red.npz"), "names another public set"),
    "any file as the public set": (_path("/etc/passwd"), "names another public set"),
    "a question about another method": (_question(method="fedavg"), "the agreed file has 'fccl+'"),
    "a question that is malformed": (_question(settings=[]), "the question is malformed: settings"),
    "a global model where there is none": (_evaluate, "fccl+ has no global model"),
    "no signature": (_forged(signer=None), UNSIGNED),
    "another authority": (_foreign, UNSIGNED),
    "signed for another run": (_forged(run=FLOWER_RUN + 1), UNSIGNED),
    "signed for another type": (_forged(message_type=SITE_INFO), UNSIGNED),
    "another text than the signed one": (_replaced, UNSIGNED),
    "the same message again": (_replayed, "was received before"),
    "too late": (_forged(sent=time.time_ns() - 24 * HOUR), "s old, and its deadline was 60 s"),
    "from the future": (_forged(sent=time.time_ns() + 24 * HOUR), "ahead"),
    "no JSON": (_text("{"), "the header is not JSON"),
    "deep nesting": (_text("[" * 100_000), "the header is not JSON"),
    "a number of ten thousand digits": (_text('{"run": ' + "9" * 10_000 + "}"), "the header is not JSON"),
    "no fields": (_text("{}"), "the request is malformed: run: Field required"),
    "an aggregate that is not finite": (
        _received(Payload(logits=torch.full((16, 4), float("nan")))), "logits is not finite",
    ),
    "an absurd aggregate": (_received(Payload(logits=torch.full((16, 4), 3e38))), "has a magnitude of 3e+38"),
}  # fmt: skip


# -- from a site -------------------------------------------------------------------------------------------------------

INFO: dict[str, tuple[dict[str, Any], str]] = {
    "no size": ({"train": ...}, "train: Field required"),
    "a size of 400 digits": ({"train": 10**400}, "train: "),
    "a size that is the whole mean": ({"train": 10**15}, "train: Input should be less than or equal to 1000000000"),
    "a negative size": ({"train": -1}, "train: Input should be greater than or equal to 0"),
    "the name of another site": ({"name": "b"}, "gives its name as 'b', but its key is that of 'a'"),
    "a path that ends in its name": ({"name": "x/a"}, "gives its name as 'x/a', but its key is that of 'a'"),
    "a forged line of the log": ({"model": "mlp\nround 3: all fine"}, "model: String should match pattern"),
    "control of the terminal": ({"model": "mlp\x1b[2J"}, "model: String should match pattern"),
    "a digest that is a path": ({"public": {"digest": "../../etc/passwd", "size": 1}}, "public.digest"),
    "twenty thousand classes": ({"classes": ["x"] * 20_000}, "classes: List should have at most 10000 items"),
}
Reply = Callable[[Envelope], Envelope]


def _header(**changes: Any) -> Reply:
    return lambda reply: Envelope({**reply.header, **changes}, reply.blobs)


def _payload(change: Callable[[Payload], Payload]) -> Reply:
    def send(reply: Envelope) -> Envelope:
        blobs = [change(Payload.from_bytes(reply.blobs[0])).to_bytes(), *reply.blobs[1:]]
        return Envelope(reply.header, blobs)

    return send


def _logits(change: Callable[[torch.Tensor], torch.Tensor]) -> Reply:
    return _payload(lambda p: Payload({**dict(p), "logits": change(p["logits"])}, scalars=p.scalars))


REPLIES: dict[str, tuple[Reply, str]] = {
    "logits that are not finite": (_logits(lambda t: t * float("inf")), "logits is not finite"),
    "finite logits that ruin every model": (_logits(lambda t: torch.full_like(t, 3.4e38)), "magnitude of 3.4e+38"),
    "another shape": (_logits(lambda t: t[:, :2].contiguous()), "logits has shape"),
    "another type": (_logits(lambda t: t.double()), "logits is torch.float64"),
    "a tensor that is not declared": (
        _payload(lambda p: Payload({**dict(p), "x\x1b[2J": torch.zeros(1)})), "tensor x\\x1b[2J was not declared",
    ),
    "bytes that are no payload": (lambda reply: Envelope(reply.header, [b"\x00" * 64]), "not a payload"),
    "no payload": (_header(payloads=[]), "sent 0 payloads where 1 were expected"),
    "the payload twice": (_header(payloads=[0, 0]), "sent 2 payloads where 1 were expected"),
    "twenty thousand losses": (
        _header(deferred={"0": {"report": {f"l{k}": 1.0 for k in range(20_000)}}}), "deferred.report: Dictionary",
    ),
    "fields of its own": (_header(admin=True), "the reply is malformed: admin: Extra inputs are not permitted"),
}  # fmt: skip
COUNT = len(FROM_SERVER) + len(INFO) + len(REPLIES)
