"""What every method promises, whatever it does. A method is tested by being registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from tests.conftest import CLASSES, VARIANTS
from tests.helpers import Stop, StopAfter, events, numbers

from fedchoir import Experiment, Result, methods, run
from fedchoir.core import checkpoint
from fedchoir.core.actions import Action, Exchange
from fedchoir.core.exchange import Reply
from fedchoir.core.server import Server
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.run import prepare
from fedchoir.payload import Payload, check, declared_by
from fedchoir.utils.errors import QuorumError, UsageError

NAMES = list(methods.registry())
EXCHANGING = [name for name in NAMES if name not in ("solo", "byol")]
CHANCE = 100 / CLASSES


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_it_learns(name: str, play: Callable[..., Result]) -> None:
    result = play(name, rounds=4)
    assert result.intra_avg > CHANCE + 20
    assert all(0 <= value <= 100 for row in result.accuracy for value in row)


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_one_seed_one_result_and_resume_is_exact(name: str, small: Callable[..., Experiment]) -> None:
    straight, stopped = small(name, "straight", rounds=3), small(name, "stopped", rounds=3)
    first = run(straight)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(0)])
    second = run(stopped, resume=True)
    assert second.accuracy == first.accuracy
    assert numbers(straight.out) == numbers(stopped.out)
    for saved in sorted(checkpoint.latest(straight.out / "checkpoint").glob("*.safetensors")):
        one = checkpoint.load(saved.parent, saved.stem)
        two = checkpoint.load(checkpoint.latest(stopped.out / "checkpoint"), saved.stem)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one), saved.stem


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_another_result(name: str, small: Callable[..., Experiment]) -> None:
    one, two = small(name, "one", rounds=1), small(name, "two", rounds=1, seed=1)
    run(one), run(two)
    assert numbers(one.out) != numbers(two.out)


@pytest.mark.parametrize("name", NAMES)
def test_it_sends_what_it_declares_and_every_byte_is_counted(
    name: str, small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Exchange, Reply]] = []
    shapes: dict[int, dict[str, torch.Tensor]] = {}
    parts: dict[int, dict[str, torch.Tensor]] = {}
    ask = LocalEngine.execute

    def spy(self: LocalEngine, clients: Sequence[int], actions: Sequence[Action], index: int) -> Iterator[Reply]:
        for reply in ask(self, clients, actions, index):
            if isinstance(actions[-1], Exchange):
                seen.append((actions[-1], reply))
                shapes[reply.client] = self.clients[reply.client].model.state_dict()
                parts[reply.client] = self.clients[reply.client].parts.state_dict()
            yield reply

    monkeypatch.setattr(LocalEngine, "execute", spy)
    result = run(small(name, rounds=1))
    assert bool(seen) == (name in EXCHANGING)
    for action, reply in seen:
        for number, part in enumerate(reply.payloads):
            dims = {"C": CLASSES, **action.dims, **(action.batches[number].dims if action.batches else {})}
            check(part, declared_by(action.function), dims, shapes[reply.client], parts=parts[reply.client])
            assert all(t.device.type == "cpu" and not t.requires_grad for t in part.values())
    assert result.bytes_up == sum(part.nbytes for _, reply in seen for part in reply.payloads)


@pytest.mark.parametrize("name", NAMES)
def test_no_private_image_leaves_a_client(
    name: str, small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that is sent has the size of an image batch or holds an image's numbers."""
    sent: list[Payload] = []
    came = Server._exchange

    def spy(self: Any, actions: Any, ask: Exchange, *rest: Any) -> Any:
        inner = self.engine.execute
        self.engine.execute = lambda *a: (sent.extend(r.payloads) or r for r in inner(*a))
        try:
            return came(self, actions, ask, *rest)
        finally:
            self.engine.execute = inner

    monkeypatch.setattr(Server, "_exchange", spy)
    experiment = small(name, rounds=1)
    run(experiment)
    images = torch.cat([c.train.images for c in prepare(make_plan(experiment))[1].clients])
    pictures = {tuple(x.flatten()[:48].tolist()) for x in images.float() / 255}
    for payload in sent:
        for tensor in payload.values():
            rows = tensor.float().flatten(1) if tensor.dim() > 1 else tensor.float().reshape(1, -1)
            assert not any(tuple(row[:48].tolist()) in pictures for row in rows if len(row) >= 48)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_clients_does_not_matter(
    name: str, small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = small(name, "plain", rounds=2)
    run(plain)
    ask = LocalEngine.execute
    monkeypatch.setattr(LocalEngine, "execute", lambda self, clients, *rest: ask(self, tuple(reversed(clients)), *rest))
    backwards = small(name, "backwards", rounds=2)
    run(backwards)
    one, two = numbers(plain.out), numbers(backwards.out)
    assert [e["accuracy"] for e in one] == [e["accuracy"] for e in two]


@pytest.mark.parametrize("name", EXCHANGING)
def test_a_client_that_sends_nonsense_is_left_out_and_named(
    name: str, small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = LocalEngine.execute

    def broken(self: LocalEngine, clients: Sequence[int], actions: Sequence[Action], index: int) -> Iterator[Reply]:
        for reply in ask(self, clients, actions, index):
            if reply.client == 1 and reply.payloads:
                parts = [
                    Payload({n: t * float("nan") for n, t in p.items() if t.is_floating_point()})
                    for p in reply.payloads
                ]
                yield Reply(
                    1, [Payload({**p, **bad}, scalars=p.scalars) for p, bad in zip(reply.payloads, parts, strict=True)]
                )
            else:
                yield reply

    monkeypatch.setattr(LocalEngine, "execute", broken)
    experiment = small(name, rounds=1)
    result = run(experiment)
    left_out = events(experiment.out)[0]["left_out"]
    assert left_out
    assert {out["client"] for out in left_out} == {result.clients[1]["name"]}
    assert "not finite" in left_out[0]["why"]


@pytest.mark.parametrize("name", EXCHANGING)
def test_below_quorum_the_run_stops_with_its_checkpoint_intact(
    name: str, small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small(name, rounds=2)
    ask = LocalEngine.execute

    def silent(self: LocalEngine, clients: Sequence[int], actions: Sequence[Action], index: int) -> Iterator[Reply]:
        for reply in ask(self, clients, actions, index):
            if index == 0 or reply.client == 0:
                yield reply

    monkeypatch.setattr(LocalEngine, "execute", silent)
    with pytest.raises(QuorumError, match="only 1 of 3 clients"):
        run(experiment)
    monkeypatch.undo()
    assert checkpoint.facts(checkpoint.latest(experiment.out / "checkpoint"))["round"] == 0
    assert run(experiment, resume=True).rounds == 2


@pytest.mark.parametrize("name", NAMES)
def test_it_refuses_what_is_impossible(name: str, small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match="there is no option 'locl_epochs'"):
        run(small(name, settings={"locl_epochs": 1}))
    with pytest.raises(UsageError, match="local_epochs"):
        run(small(name, settings={"local_epochs": -1}))
    if not methods.get(name).heterogeneous:
        with pytest.raises(UsageError, match="one architecture"):
            run(small(name, models=("mlp", "resnet10@4")))
    assert not small(name).out.exists()


@pytest.mark.parametrize("name", NAMES)
def test_half_the_clients_can_take_part(name: str, play: Callable[..., Result]) -> None:
    result = play(name, rounds=2, settings={"fraction": 0.67})
    assert result.rounds == 2


@pytest.mark.parametrize("name", [n for n in NAMES if methods.get(n).heterogeneous])
def test_alike_models_work_too(name: str, play: Callable[..., Result]) -> None:
    assert play(name, rounds=2, models=("resnet10@4",)).rounds == 2


@pytest.mark.parametrize("profile", ["paper", "official"])
@pytest.mark.parametrize("name", NAMES)
def test_every_profile_runs(name: str, profile: str, play: Callable[..., Result]) -> None:
    result = play(name, rounds=2, profile=profile, settings={"pretrain_epochs": 1})
    assert result.profile == profile
