"""What every method promises. A method is tested by being registered."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from tests.conftest import CLASSES, VARIANTS
from tests.helpers import Stop, StopAfter, assert_same, events, numbers, run_folder, states

from fedchoir import Experiment, Result, methods, run
from fedchoir.core import checkpoint
from fedchoir.core.actions import Action, Exchange
from fedchoir.core.exchange import Reply
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.experiments.profiles import profile_options
from fedchoir.payload import Payload, check, declared_by
from fedchoir.utils.errors import QuorumError, UsageError

NAMES = list(methods.registry())
EXCHANGING = [name for name in NAMES if name not in ("solo", "byol")]
ONCE = {"choir"}  # clients send something in their first round only
CHANCE = 100 / CLASSES

Execute = Callable[[LocalEngine, Sequence[int], Sequence[Action], int], Iterator[Reply]]


@pytest.fixture
def execute(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Execute], Execute]], None]:
    """Wrap `LocalEngine.execute`: the function gets the original and returns its replacement."""
    return lambda wrap: monkeypatch.setattr(LocalEngine, "execute", wrap(LocalEngine.execute))


def assert_plausible(experiment: Experiment, result: Result) -> None:
    """Finite numbers in their range, in every round."""
    history = events(experiment)
    assert result.rounds == len(history) == make_plan(experiment).rounds
    assert all(0 <= value <= 100 for row in result.accuracy for value in row)
    assert 0 <= result.intra_avg <= 100
    assert len(result.accuracy) == len(result.clients) == 3
    for event in history:
        assert event["left_out"] == []
        losses = [value for client in event["losses"].values() for value in client.values()]
        assert losses
        assert all(math.isfinite(value) for value in losses)
        if experiment.method not in ONCE or event["round"] == 0:
            assert (event["bytes_up"] > 0) == (experiment.method in EXCHANGING)


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_it_learns(name: str, small: Callable[..., Experiment]) -> None:
    experiment = small(name, rounds=4)
    result = run(experiment)
    assert result.intra_avg > CHANCE + 20
    assert_plausible(experiment, result)


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_one_seed_gives_one_result_and_resume_is_exact(name: str, small: Callable[..., Experiment]) -> None:
    straight, stopped = small(name, "straight", rounds=3), small(name, "stopped", rounds=3)
    first = run(straight)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(0)])
    second = run(stopped, resume=True)
    assert second.accuracy == first.accuracy
    assert_same(straight, stopped)


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_another_result(name: str, small: Callable[..., Experiment]) -> None:
    one, two = small(name, "one", rounds=1), small(name, "two", rounds=1, seed=1)
    run(one), run(two)
    assert numbers(one) != numbers(two)


@pytest.mark.parametrize("name", NAMES)
def test_it_sends_what_it_declares_and_every_byte_is_counted(
    name: str, small: Callable[..., Experiment], execute: Callable[..., None]
) -> None:
    sent: list[tuple[Exchange, Reply]] = []
    models: dict[int, dict[str, torch.Tensor]] = {}
    modules: dict[int, dict[str, torch.Tensor]] = {}

    def recording(original: Execute) -> Execute:
        def spy(self: LocalEngine, clients: Any, actions: Any, index: int) -> Iterator[Reply]:
            for reply in original(self, clients, actions, index):
                if isinstance(actions[-1], Exchange):
                    sent.append((actions[-1], reply))
                    models[reply.client] = self.clients[reply.client].model.state_dict()
                    modules[reply.client] = self.clients[reply.client].modules.state_dict()
                yield reply

        return spy

    execute(recording)
    result = run(small(name, rounds=1))
    assert bool(sent) == (name in EXCHANGING)
    for action, reply in sent:
        for number, payload in enumerate(reply.payloads):
            dims = {"C": CLASSES, **action.dims, **(action.batches[number].dims if action.batches else {})}
            declared = declared_by(action.function)
            check(payload, declared, dims, models[reply.client], modules=modules[reply.client])
            assert all(t.device.type == "cpu" and not t.requires_grad for t in payload.values())
    assert result.bytes_up == sum(payload.nbytes for _, reply in sent for payload in reply.payloads)


@pytest.mark.parametrize("name", NAMES)
def test_no_private_image_leaves_a_client(
    name: str, small: Callable[..., Experiment], execute: Callable[..., None]
) -> None:
    """No row of a payload contains an image's numbers."""
    sent: list[Payload] = []

    def recording(original: Execute) -> Execute:
        def spy(self: LocalEngine, clients: Any, actions: Any, index: int) -> Iterator[Reply]:
            for reply in original(self, clients, actions, index):
                sent.extend(reply.payloads)
                yield reply

        return spy

    execute(recording)
    experiment = small(name, rounds=1)
    run(experiment)
    assert bool(sent) == (name in EXCHANGING)
    images = torch.cat([c.train.inputs for c in prepare(make_plan(experiment))[1].clients])
    private = {tuple(x.flatten()[:48].tolist()) for x in images.float() / 255}
    for payload in sent:
        for tensor in payload.values():
            rows = tensor.float().flatten(1) if tensor.dim() > 1 else tensor.float().reshape(1, -1)
            assert not any(tuple(row[:48].tolist()) in private for row in rows if len(row) >= 48)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_clients_does_not_matter(
    name: str, small: Callable[..., Experiment], execute: Callable[..., None]
) -> None:
    forwards, backwards = small(name, "forwards", rounds=2), small(name, "backwards", rounds=2)
    run(forwards)
    execute(lambda original: lambda self, clients, *rest: original(self, tuple(reversed(clients)), *rest))
    run(backwards)
    assert numbers(forwards, only=("accuracy",)) == numbers(backwards, only=("accuracy",))


def corrupting(original: Execute, value: float) -> Execute:
    """Client 1 sends this value in place of every real number."""

    def corrupted(payload: Payload) -> Payload:
        broken = {n: torch.full_like(t, value) for n, t in payload.items() if t.is_floating_point()}
        return Payload({**payload, **broken}, scalars=payload.scalars)

    def wrapped(self: LocalEngine, clients: Any, actions: Any, index: int) -> Iterator[Reply]:
        for reply in original(self, clients, actions, index):
            yield Reply(1, [corrupted(p) for p in reply.payloads]) if reply.client == 1 else reply

    return wrapped


@pytest.mark.parametrize("value", [3.4e38, -1e30, 1e10])
@pytest.mark.parametrize("name", ["fccl+", "fedavg"])
def test_one_finite_but_absurd_payload_ruins_no_model(
    name: str, value: float, small: Callable[..., Experiment], execute: Callable[..., None]
) -> None:
    execute(partial(corrupting, value=value))
    experiment = small(name, rounds=2)
    result = run(experiment)
    assert {out["client"] for out in events(experiment)[0]["left_out"]} == {result.clients[1]["name"]}
    assert "is allowed" in events(experiment)[0]["left_out"][0]["why"]
    for state in states(experiment).values():
        assert all(bool(t.isfinite().all()) for t in state.values())


@pytest.mark.parametrize("name", EXCHANGING)
def test_a_client_that_sends_nonsense_is_left_out_and_named(
    name: str, small: Callable[..., Experiment], execute: Callable[..., None]
) -> None:
    execute(partial(corrupting, value=math.nan))
    experiment = small(name, rounds=1)
    result = run(experiment)
    left_out = events(experiment)[0]["left_out"]
    assert left_out
    assert {out["client"] for out in left_out} == {result.clients[1]["name"]}
    assert "not finite" in left_out[0]["why"]


@pytest.mark.parametrize("name", EXCHANGING)
def test_below_quorum_the_run_stops_with_its_checkpoint_intact(
    name: str, small: Callable[..., Experiment], execute: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small(name, rounds=2, checkpoint_every=1, settings={"refresh": 1} if name in ONCE else {})

    def silencing(original: Execute) -> Execute:
        def wrapped(self: LocalEngine, clients: Any, actions: Any, index: int) -> Iterator[Reply]:
            for reply in original(self, clients, actions, index):
                if index == 0 or reply.client == 0:
                    yield reply

        return wrapped

    execute(silencing)
    with pytest.raises(QuorumError, match="only 1 of 3 clients"):
        run(experiment)
    monkeypatch.undo()
    saved = checkpoint.latest(run_folder(experiment) / "checkpoint")
    assert saved is not None
    assert checkpoint.facts(saved)["round"] == 0
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
    assert not run_folder(small(name)).exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_part_of_the_clients_can_take_part(name: str, small: Callable[..., Experiment]) -> None:
    experiment = small(name, rounds=2, settings={"fraction": 0.67})
    assert_plausible(experiment, run(experiment))
    assert [len(event["clients"]) for event in events(experiment)] == [2, 2]


@pytest.mark.parametrize("name", [n for n in NAMES if methods.get(n).heterogeneous])
def test_equal_models_work_too(name: str, small: Callable[..., Experiment]) -> None:
    experiment = small(name, rounds=2, models=("resnet10@4",))
    assert_plausible(experiment, run(experiment))


FOR_ALL = {"paper": {"lr_schedule": "constant"}, "official": {"weighting": "uniform"}}
"""Options that a profile sets for every method, written out so that an empty profile would not pass."""


@pytest.mark.parametrize("profile", FOR_ALL)
@pytest.mark.parametrize("name", NAMES)
def test_every_profile_runs_with_the_options_that_it_promises(
    name: str, profile: str, small: Callable[..., Experiment]
) -> None:
    experiment = small(name, rounds=2, profile=profile, settings={"pretrain_epochs": 1})
    result = run(experiment)
    method = methods.get(name)
    promised = profile_options(method, profile) | experiment.settings  # the user's settings win
    assert result.profile == profile
    assert result.settings == method.Params(**promised).model_dump(mode="json")
    assert result.settings.items() >= FOR_ALL[profile].items()
    assert_plausible(experiment, result)
