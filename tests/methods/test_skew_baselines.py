"""FedNova, FedDC, FedASAM, FedNTD and FedDecorr against what their papers say, written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fedchoir import Experiment, run
from fedchoir.core import checkpoint
from fedchoir.core.client import Client
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.training import Batch, EagerTrainer
from fedchoir.data.image.image_set import ImageSet
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.methods.base import Method
from fedchoir.methods.fedasam import FedASAM
from fedchoir.methods.fedavg import FedAvg
from fedchoir.methods.feddc import FedDC
from fedchoir.methods.fednova import FedNova, normaliser
from fedchoir.methods.fedntd import FedNTD
from fedchoir.models import build
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError

MODEL = "resnet10@4"
State = dict[str, torch.Tensor]


def a_task(sizes: tuple[int, ...] = (12, 30)) -> FederationSpec:
    cards = tuple(ClientInfo(f"c{k}", MODEL, n, 10, "global") for k, n in enumerate(sizes))
    return FederationSpec(tuple("abcd"), cards, rounds=4, seed=3, image_size=16)


def a_method(cls: type[Method], **changes: Any) -> Any:
    values = {"image_size": 16, "local_epochs": 2, "local_batch": 8, "optimizer": "sgd", "local_lr": 0.05}
    return cls(cls.Params(**{**values, "lr_schedule": "constant", **changes}), a_task())


def a_client(method: Method, index: int = 0) -> Client:
    size = method.spec.clients[index].train
    g = torch.Generator().manual_seed(index)
    pixels = torch.randint(0, 256, (size, 3, 16, 16), generator=g, dtype=torch.uint8)
    torch.manual_seed(0)
    model = build(MODEL, 4, image_size=16)
    private = ImageSet(pixels, torch.arange(size) % 4)
    return Client(index, f"c{index}", model, private, settings=method.params, seed=3, rounds=4)


def saved(experiment: Experiment, name: str = "server") -> State:
    folder = checkpoint.latest(experiment.out / "checkpoint")
    assert folder is not None
    return checkpoint.load(folder, name)


def parameters(client: Client) -> State:
    return {n: p.detach().clone() for n, p in client.model.named_parameters()}


# -- a weight of 0 is FedAvg ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "off"), [("fedntd", "ntd_weight"), ("feddecorr", "decorrelation_weight")])
def test_without_its_term_a_method_is_fedavg(name: str, off: str, skew: Callable[..., Experiment]) -> None:
    plain, without, with_it = skew("fedavg", "plain"), skew(name, "without", **{off: 0.0}), skew(name, "with")
    for experiment in (plain, without, with_it):
        run(experiment)
    one, two, three = saved(plain), saved(without), saved(with_it)
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert not all(torch.equal(one[n], three[n]) for n in one)


def test_fedntd_learns_from_the_global_model() -> None:
    """At the first step the client is the global model: nothing to distil, so the loss is cross-entropy."""
    method = a_method(FedNTD, local_epochs=1, local_batch=64)
    client = a_client(method)
    seen: list[tuple[float, float]] = []

    class Spy(EagerTrainer):
        def train(self, client: Client, optimizer: Any, loss: Any, batches: Any) -> torch.Tensor:
            for batch in batches:
                client.model.eval()  # as the teacher is
                z = client.logits(batch.images)
                seen.append((loss(client, batch).item(), cross_entropy(z, batch.labels).item()))
            return torch.zeros(())

    client.trainer = Spy()
    method.local_update(client)
    assert seen
    assert all(a == pytest.approx(b, abs=1e-6) for a, b in seen)


# -- FedNova -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.floats(0, 0.99))
@settings(max_examples=60, deadline=None)
def test_the_normaliser_counts_how_often_gradients_work(steps: int, momentum: float) -> None:
    """Run SGD's recursion on unit gradients, one at a time: what each adds up to in the end."""
    total = 0.0
    for start in range(steps):
        velocity = 1.0
        for _ in range(start, steps):
            total += velocity
            velocity *= momentum
    assert normaliser(steps, momentum) == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 10, 16, 17])
def test_the_steps_of_an_epoch_are_counted_as_they_are_taken(size: int) -> None:
    client = a_client(a_method(FedNova))
    client.private = ImageSet(client.private.images[:1].repeat(size, 1, 1, 1), torch.zeros(size, dtype=torch.int64))
    taken = sum(1 for _ in client.private_view.batches(range(1), {}))
    assert client.steps_per_epoch() == taken


def test_fednova_is_its_equation() -> None:
    method = a_method(FedNova, momentum=0.5)
    clients = [a_client(method, k) for k in (0, 1)]
    list(method.setup())
    start = {n: p.clone() for n, p in method.architecture.named_parameters()}
    aggregator = method.weighting()
    after, norms = [], []
    for client in clients:
        method.download(client, Payload(method.server))
        assert all(torch.equal(start[n], p) for n, p in client.model.named_parameters())
        method.local_update(client)
        after.append(client.snapshot())
        norms.append(normaliser(2 * client.steps_per_epoch(), 0.5))
        aggregator.add(client.index, [method.contribute(client)])
    assert norms[0] != norms[1]
    (mean,) = aggregator.result()
    method.advance(mean)
    share = (12 / 42, 30 / 42)
    effective = sum(p * a for p, a in zip(share, norms, strict=True))
    for name, value in method.global_weights().items():
        if name in start:
            direction = sum(p * (w[name] - start[name]) / a for p, w, a in zip(share, after, norms, strict=True))
            torch.testing.assert_close(value, start[name] + effective * direction)
        elif value.is_floating_point():
            torch.testing.assert_close(value, sum(p * w[name] for p, w in zip(share, after, strict=True)))


def test_with_equal_steps_fednova_is_fedavg(skew: Callable[..., Experiment]) -> None:
    changes = {"partition": "iid", "optimizer": "sgd", "local_lr": 0.05}
    nova, avg = skew("fednova", "nova", **changes), skew("fedavg", "avg", **changes)
    run(nova), run(avg)
    one, two = saved(nova), saved(avg)
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


def test_the_server_knows_the_start_of_its_clients(
    skew: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it derives is what clients are made with; after pretraining it is their average instead."""
    starts: dict[int, State] = {}
    ask = LocalEngine.execute

    def spy(self: LocalEngine, clients: Any, actions: Any, index: int) -> Any:
        names = [action.function.__name__ for action in actions]
        if index == 0 and "contribute" in names:
            for k in clients:
                starts.setdefault(k, self.clients[k].snapshot())
            (received,) = [a.received.under("weights") for a in actions if a.function.__name__ == "download"]
            starts[-1] = received
        return ask(self, clients, actions, index)

    monkeypatch.setattr(LocalEngine, "execute", spy)
    run(skew("fednova", rounds=1))
    assert all(torch.equal(starts[-1][n], state[n]) for state in starts.values() for n in state)
    starts.clear()
    run(skew("fednova", "pretrained", rounds=1, pretrain_epochs=1, partition="iid"))
    name = "head.weight" if "head.weight" in starts[-1] else next(n for n in starts[-1] if n.startswith("head"))
    torch.testing.assert_close(starts[-1][name], torch.stack([starts[k][name] for k in range(4)]).mean(0))


# -- FedDC ---------------------------------------------------------------------------------------------------------


def test_feddc_refuses_adam(skew: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match=r"optimizer = 'adam' of feddc is not possible: it should be 'sgd'"):
        run(skew("feddc", optimizer="adam"))


def test_feddc_follows_its_drift_and_its_gradients() -> None:
    """Two rounds of one client by hand: the loss it steps on, the drift, the gradient estimate, what it sends."""
    method = a_method(FedDC, alpha=0.3, local_epochs=1)
    client = a_client(method)
    w = parameters(client)
    client.phase = "practise"
    method.local_update(client)
    reach = 0.05 * client.steps_per_epoch()
    drift = {n: parameters(client)[n] - w[n] for n in w}
    own = {n: -t / reach for n, t in drift.items()}
    sent = method.upload(client)
    for n in w:
        torch.testing.assert_close(client.stored_weights("drift")[n], drift[n])
        torch.testing.assert_close(client.stored_weights("gradient")[n], own[n])
        torch.testing.assert_close(sent[f"weights/{n}"], w[n] + 2 * drift[n])
        torch.testing.assert_close(sent[f"gradient/{n}"], own[n])
    everyone = {n: torch.full_like(t, 0.01) for n, t in w.items()}
    state = client.snapshot()
    received = {f"weights/{n}": t for n, t in state.items()} | {f"gradient/{n}": t for n, t in everyone.items()}
    method.download(client, Payload(received))
    losses: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Spy(EagerTrainer):
        def train(self, client: Client, optimizer: Any, loss: Any, batches: Any) -> torch.Tensor:
            for p in client.model.parameters():
                p.data += 0.1
            batch = next(iter(batches))
            value = loss(client, batch)
            theta = dict(client.model.named_parameters())
            expected = cross_entropy(client.logits(batch.images), batch.labels)
            for n in theta:
                expected = expected + 0.15 * (drift[n] + theta[n] - state[n]).square().sum()
                expected = expected + (theta[n] * (everyone[n] - own[n])).sum()
            losses.append((value, expected))
            return value.detach()

    client.trainer = Spy()
    method.local_update(client)
    torch.testing.assert_close(*losses[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(client.stored_weights("drift")["head.bias"], drift["head.bias"] + 0.1)


# -- FedASAM -------------------------------------------------------------------------------------------------------


def a_batch() -> Batch:
    torch.manual_seed(5)
    return Batch(torch.randn(8, 3, 16, 16), torch.arange(8) % 4)


def gradients(client: Client, loss: Callable[[Client, Batch], torch.Tensor]) -> State:
    client.model.train().zero_grad()
    loss(client, a_batch()).backward()
    return {n: p.grad.clone() for n, p in client.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("adaptive", [True, False])
def test_fedasam_follows_the_gradient_at_the_worst_weights_nearby(adaptive: bool) -> None:
    """Against the two passes written out: climb, take the gradient, come back."""
    method = a_method(FedASAM, rho=0.3, eta=0.02, adaptive=adaptive)
    client, twin = a_client(method), a_client(method)
    found = gradients(client, method.local_loss)

    first = gradients(twin, FedAvg.local_loss.__get__(method))
    scale = {
        n: p.detach().abs() + 0.02 if adaptive and n.endswith("weight") else torch.ones_like(p)
        for n, p in twin.model.named_parameters()
    }
    length = torch.sqrt(sum(((scale[n] * g) ** 2).sum() for n, g in first.items()))
    with torch.no_grad():
        for n, p in twin.model.named_parameters():
            p += 0.3 * scale[n] ** 2 * first[n] / length
    second = gradients(twin, FedAvg.local_loss.__get__(method))
    for n in second:
        torch.testing.assert_close(found[n], second[n], rtol=1e-3, atol=1e-5)
    before = parameters(a_client(method))
    assert all(torch.equal(before[n], p) for n, p in client.model.named_parameters())  # it came back


def test_fedasam_moves_statistics_once_and_without_radius_is_fedavg() -> None:
    method = a_method(FedASAM, rho=0.0)
    one, two = a_client(method), a_client(method)
    a, b = gradients(one, method.local_loss), gradients(two, FedAvg.local_loss.__get__(method))
    for n in a:
        torch.testing.assert_close(a[n], b[n])
    means = [n for n in one.model.state_dict() if n.endswith(("running_mean", "running_var"))]
    for n in means:
        torch.testing.assert_close(one.model.state_dict()[n], two.model.state_dict()[n])
