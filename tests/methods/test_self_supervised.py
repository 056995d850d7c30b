"""What all self-supervised methods share: objectives, views, linear evaluation."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from tests.helpers import events
from tests.methods.ssl.one_client import colored_images, one_client

from fedchoir import Experiment, Result, run
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.methods.ssl import probe as probe_module
from fedchoir.methods.ssl.probe import LinearProbe, fit_probe
from fedchoir.utils.errors import UsageError

Play = Callable[..., Result]
Small = Callable[..., Experiment]


def test_the_probe_is_fitted_only_where_it_is_asked_for(small: Small) -> None:
    experiment = small("byol", rounds=6, settings={"evaluate_every": 2, "local_epochs": 0})
    run(experiment)
    assert [event["accuracy"] is not None for event in events(experiment)] == [False, True, False, True, True, True]


@pytest.mark.parametrize("objective", ["simsiam", "simclr"])
@pytest.mark.parametrize("name", ["fedfoa", "fedema"])
def test_every_objective_federates(name: str, objective: str, play: Play) -> None:
    assert play(name, rounds=2, settings={"objective": objective, "foa": True}).rounds == 2


def test_two_views_are_two_draws_and_the_first_is_the_one_of_a_single_view() -> None:
    _, client = one_client()
    single = list(client.private_batches.batches(range(1), {}))
    double = list(client.private_batches.batches(range(1), {}, views=2))
    again = list(client.private_batches.batches(range(1), {}, views=2))
    for one, two, same in zip(single, double, again, strict=True):
        assert torch.equal(one.inputs, two.inputs)
        assert not torch.equal(two.inputs, two["view2"])
        assert torch.equal(two["view2"], same["view2"])


def test_labels_are_not_used_in_training() -> None:
    """Shuffled labels: not one weight changes, online or target."""
    states = []
    for shuffle in (False, True):
        method, client = one_client("fedfoa", pretrain_epochs=1)
        if shuffle:
            client.private.labels.copy_(client.private.labels.flip(0).roll(1))
        method.pretrain(client)
        method.local_update(client)
        states.append(client.state())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_two_equal_views_are_refused() -> None:
    with pytest.raises(UsageError, match="private_augment = 'none' gives two equal views"):
        one_client(private_augment="none")


def test_the_evaluation_is_fitted_on_the_samples_of_all_clients_or_on_a_clients_own(small: Small) -> None:
    fitted: dict[str, list[int]] = {}
    for data in ("all", "own"):
        engine_method, scenario, public = prepare(make_plan(small("byol", data, settings={"probe_data": data})))
        engine = LocalEngine(engine_method, scenario, public, device=torch.device("cpu"))
        sizes = fitted[data] = []
        for client in engine.clients:
            with patch.object(probe_module, "LinearProbe", wraps=LinearProbe) as spy:
                engine_method.predictor(client)
            sizes.append(len(spy.call_args.args[0]))
    own = [len(data.train) for data in scenario.clients]
    assert fitted == {"all": [sum(own)] * 3, "own": own}


def test_weight_decay_shrinks_the_probe() -> None:
    _, client = one_client()
    features, labels = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4
    norms = [
        fit_probe(client, features, labels, epochs=50, lr=0.01, weight_decay=decay).layer.weight.norm().item()
        for decay in (0.0, 1e-2, 1.0)
    ]
    assert norms[0] > norms[1] > norms[2]


def test_nearest_neighbours_may_be_the_evaluation(small: Small) -> None:
    """Against scikit-learn's, on the features of the run's own models."""
    method, client = one_client(evaluation="knn", knn=5, probe_data="own")
    test = colored_images(30, seed=5)
    predict = method.predictor(client)
    found = predict(test.transform(test.inputs)).argmax(1)
    train, tests = client.predict_private("features"), client.predict_samples(test, "features")
    reference = KNeighborsClassifier(5, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.07))
    expected = reference.fit(train.numpy(), client.private.labels.numpy()).predict(tests.numpy())
    assert found.tolist() == expected.tolist()
    assert run(small("byol", rounds=1, settings={"evaluation": "knn"})).intra_avg > 0


def covariances(z: np.ndarray) -> tuple[np.ndarray, float]:
    """Standard deviations, and the squared covariances of different features over n."""
    c = np.cov(z.T)
    return np.sqrt(z.var(axis=0, ddof=1) + 1e-4), float((c**2).sum() - (np.diag(c) ** 2).sum()) / z.shape[1]


@pytest.mark.parametrize("kind", ["vicreg", "barlow"])
def test_a_regulariser_is_added_to_the_loss(kind: str) -> None:
    """Against the equations of the two papers in NumPy."""
    values = []
    for regulariser in ("none", kind):
        method, client = one_client(regulariser=regulariser, regulariser_weight=0.5)
        batch = next(client.private_batches.batches(range(1), {}, views=2))
        client.model.eval()
        with torch.no_grad():
            values.append(float(method.local_loss(client, batch)))
            views = [method.calibrated(client, x).double().numpy() for x in (batch.inputs, batch["view2"])]
    if kind == "vicreg":
        (s1, c1), (s2, c2) = map(covariances, views)
        variance = (np.maximum(0, 1 - s1).mean() + np.maximum(0, 1 - s2).mean()) / 2
        expected = 25 * ((views[0] - views[1]) ** 2).mean() + 25 * variance + c1 + c2
    else:
        one, two = ((z - z.mean(0)) / np.sqrt(z.var(0) + 1e-5) for z in views)
        c = one.T @ two / len(one)
        off = (c**2).sum() - (np.diag(c) ** 2).sum()
        expected = ((np.diag(c) - 1) ** 2).sum() + 0.005 * off
    assert values[1] - values[0] == pytest.approx(0.5 * expected, rel=1e-3)


def test_dropout_of_the_encoder_may_be_switched_off() -> None:
    for probability in (None, 0.0):
        _, client = one_client(model="alexnet@4", image_size=16, dropout=probability)
        found = {layer.p for layer in client.model.modules() if isinstance(layer, torch.nn.Dropout)}
        assert found == ({0.5} if probability is None else {0.0})
        target = {layer.p for layer in client.modules["target"].modules() if isinstance(layer, torch.nn.Dropout)}
        assert target == found
