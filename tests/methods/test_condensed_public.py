"""Methods with a public set on condensed samples: who has which set, what it is used for, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import ON_CONDENSED, TINY_CONDENSATION
from tests.federation_harness import FederationHarness
from tests.helpers import events, numbers
from tests.methods.plain_models import PLAIN

from fedchoir import Experiment, load_model, methods, run
from fedchoir.condensation.sample_space import decode
from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.public import PublicSet
from fedchoir.data.samples import unlabeled
from fedchoir.methods.condensed_public import CondensedPublic
from fedchoir.payload import Payload, PayloadError
from fedchoir.utils.errors import UsageError

PUBLIC = [name for name, cls in methods.registry().items() if cls.needs_public]
WITH_LABELS = [name for name in PUBLIC if methods.get(name).uses_labels]
SETTINGS = {name: value for name, value in ON_CONDENSED.items() if name != "public"}
SENT = 4 * 4 * 3 * 16 * 16 + 4 * 4  # uint8 images of four classes, and which classes are owned


@pytest.fixture
def condensed(small: Callable[..., Experiment]) -> Callable[..., Experiment]:
    """An experiment on condensed samples: method, changes of the experiment, options."""

    def make(method: str = "fedmd", changes: dict[str, Any] | None = None, **settings: Any) -> Experiment:
        values = {"public": "condensed", "models": PLAIN, "rounds": 2, **(changes or {})}
        return small(method, **values, settings={**SETTINGS, "local_epochs": 1, **settings})

    return make


def stored(s: FederationHarness, client: int = 0) -> torch.Tensor:
    return s.clients[client].stored_tensor("public_samples")


# -- the set -----------------------------------------------------------------------------------------------------------


def test_every_client_has_the_samples_of_all_in_one_set(condensed: Callable[..., Experiment]) -> None:
    s = FederationHarness(condensed())
    first, second = s.run_rounds(2)
    own = torch.cat([client.stored_tensor("own_set").flatten(0, 1) for client in s.clients])
    assert own.shape == (48, 3, 16, 16)
    assert all(torch.equal(stored(s, k), own) for k in range(3))
    logits = 3 * 40 * 4 * 4
    assert (first["bytes_up"], second["bytes_up"]) == (3 * SENT + logits, logits)  # the sets once
    assert (first["bytes_down"], second["bytes_down"]) == (3 * own.nbytes + logits, logits)
    assert "condense_loss" in first["losses"]["red"]
    assert "condense_loss" not in second["losses"]["red"]


def test_public_batches_are_those_of_any_public_set_with_these_samples(condensed: Callable[..., Experiment]) -> None:
    s = FederationHarness(condensed(public_size=48))
    s.run_rounds()
    samples = ImageSet(stored(s), unlabeled(48))
    public = PublicSet("any", samples, (), samples.digest())
    view = PublicView(public, seed=s.spec.seed, kind="weak", device=torch.device("cpu"))
    for r in (0, 1):
        for (batch,) in s.spec.round(r, s.method.params).public_batches():
            assert all(torch.equal(client.public_samples(batch), view.samples(batch)) for client in s.clients)
    plain = FederationHarness(condensed(public_size=48, public_augment="none"))
    plain.run_rounds()
    (batch,) = next(plain.spec.round(0, plain.method.params).public_batches())
    known, used = (x.flatten(1) for x in (samples.transform(stored(plain)), plain.clients[0].public_samples(batch)))
    differences = (used.unsqueeze(1) - known).abs().amax(dim=2)  # 16×48
    assert differences.amin(dim=1).max() < 1e-5
    assert len(set(differences.argmin(dim=1).tolist())) == 16


def test_a_run_on_the_same_samples_as_a_file_trains_the_same_models(
    condensed: Callable[..., Experiment], small: Callable[..., Experiment], tmp_path: Path
) -> None:
    """Nothing but the origin of the samples differs."""
    s = FederationHarness(condensed("fccl+"))
    s.run_rounds(2)
    np.savez(tmp_path / "public.npz", x=stored(s).permute(0, 2, 3, 1).numpy())
    changes = {"public": str(tmp_path / "public.npz"), "models": PLAIN, "rounds": 2}
    plain = FederationHarness(small("fccl+", **changes, settings={"local_epochs": 1}))
    plain.run_rounds(2)
    for one, two in zip(s.weights(), plain.weights(), strict=True):
        assert all(torch.equal(t, two[name]) for name, t in one.items())


def test_public_size_draws_from_the_set(condensed: Callable[..., Experiment]) -> None:
    s = FederationHarness(condensed(public_size=10, public_augment="none"))
    s.run_rounds()
    assert s.spec.public_size == 10
    assert len(s.method.as_public(stored(s))) == 10
    with pytest.raises(UsageError, match="public_size: 49 samples wanted, but condensed has 48"):
        run(condensed(public_size=49))


def test_without_public_size_the_whole_set_is_used_and_the_result_tells(shapes: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "image_size": 16, "local_epochs": 1}
    experiment = Experiment(
        method="fedmd", scenario=str(shapes), public="condensed", models=PLAIN, rounds=1, out=tmp_path / "run",
        settings=settings,
    )  # fmt: skip
    result = run(experiment)
    assert "public set condensed: all 48 samples used, 5000 requested" in result.notes
    assert result.public == "condensed"


def test_one_stored_image_may_hold_several(condensed: Callable[..., Experiment]) -> None:
    s = FederationHarness(condensed(formation=2, public_size=192))
    s.run_rounds()
    assert stored(s).shape == (48, 3, 16, 16)
    assert torch.equal(s.method.as_public(stored(s)).inputs, decode(stored(s), 2))
    assert s.spec.public_size == 192


def test_classes_that_a_client_does_not_have(condensed: Callable[..., Experiment], uneven: Path) -> None:
    s = FederationHarness(condensed(changes={"scenario": str(uneven)}))
    s.run_rounds()
    made = s.method.joined_sets()["samples"]
    assert len(made) == (2 + 3 + 3) * 4
    assert torch.equal(stored(s), torch.cat([made, made[: 48 - 32]]))


@pytest.mark.parametrize(
    ("least", "settings"), [(13, {"smallest_class": 13}), (16, {"private_per_synthetic": 4, "formation": 2})]
)
def test_nothing_was_condensed(least: int, settings: dict[str, Any], condensed: Callable[..., Experiment]) -> None:
    why = f"public = 'condensed' is not possible: no client has {least} samples of a class, which condensation needs"
    with pytest.raises(UsageError, match=why):
        run(condensed(**settings))


def test_tables_are_in_the_units_of_their_senders(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for k, name in enumerate(("north", "south")):
        rows = rng.normal(10 * k, 1 + k, (60, 3))
        lines = [f"{a:.3f},{b:.3f},{c:.3f},{'yes' if a > 10 * k else 'no'}" for a, b, c in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,c,ill", *lines]))
    settings = {**TINY_CONDENSATION, "target": "ill", "local_epochs": 1, "public_size": 8}
    experiment = Experiment(
        method="fccl+", scenario=str(tmp_path), public="condensed", models=("mlp@8", "logistic"), rounds=1,
        out=tmp_path / "run", settings=settings,
    )  # fmt: skip
    s = FederationHarness(experiment)
    s.run_rounds()
    one, two = (client.public_samples(s.batch(8)) for client in s.clients)
    assert torch.equal(one, two)
    assert one.abs().mean() < 3
    with pytest.raises(UsageError, match="public_augment = 'affine' is not possible for condensed table samples"):
        run(experiment.model_copy(update={"settings": {**settings, "public_augment": "affine"}}))


def test_a_client_that_joins_late_gets_the_set_of_the_others(condensed: Callable[..., Experiment]) -> None:
    s = FederationHarness(condensed(changes={"rounds": 3}, join_late="white:2", public_size=32))
    assert s.spec.public_size == 32
    first, second, _ = s.run_rounds(3)
    assert first["bytes_up"] == 2 * (SENT + 32 * 4 * 4)
    assert second["bytes_up"] == 3 * 32 * 4 * 4
    assert len(stored(s)) == 32
    assert all(torch.equal(stored(s, k), stored(s)) for k in range(3))
    assert "own_set" not in s.clients[2].memory


def test_idle_clients_have_the_set_too(condensed: Callable[..., Experiment]) -> None:
    s = FederationHarness(condensed(changes={"rounds": 3}, fraction=0.34))
    s.run_rounds(3)
    assert all(torch.equal(stored(s, k), stored(s)) for k in range(3))


def test_a_client_without_a_usable_set_is_left_out_and_the_set_is_filled(
    condensed: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = FederationHarness(condensed())
    share = CondensedPublic.share_condensed

    @wraps(share)
    def faulty(self: CondensedPublic, client: Client) -> Payload:
        payload = share(self, client)
        return payload if client.index else Payload({**payload, "owned": payload["owned"] + 0.5})

    monkeypatch.setattr(CondensedPublic, "share_condensed", faulty)
    (event,) = s.run_rounds()
    assert [out["why"] for out in event["left_out"]] == ["owned has a number that is neither 0 nor 1"]
    others = torch.cat([client.stored_tensor("own_set").flatten(0, 1) for client in list(s.clients)[1:]])
    assert torch.equal(stored(s), torch.cat([others, others[:16]]))


@pytest.mark.parametrize("name", WITH_LABELS)
def test_every_method_with_a_public_set_runs_on_it(name: str, condensed: Callable[..., Experiment]) -> None:
    experiment = condensed(name, {"rounds": 1}, **({"pretrain_epochs": 1} if name == "fccl" else {}))
    result = run(experiment)
    (event,) = events(experiment)
    assert event["left_out"] == []
    assert result.method == name
    assert json.loads((experiment.out / "models.json").read_text())["public_set"] == "condensed"  # type: ignore[operator]
    assert load_model(experiment.out, "red")(torch.zeros(2, 3, 16, 16)).shape == (2, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PUBLIC)
def test_options_and_traits_are_those_of_the_method_and_of_condensation(name: str) -> None:
    plain, made = methods.get(name), methods.get(name, "condensed")
    assert made is methods.get(name, "condensed")
    assert made is not plain
    assert made is not methods.registry()[name]
    assert issubclass(made, CondensedPublic)
    before, now = plain.Params().model_dump(), made.Params().model_dump()
    assert {key: now[key] for key in before} == before
    assert now["per_class"] == 30
    for trait in ("name", "heterogeneous", "uses_labels", "symmetric", "changes", "with_private_statistics"):
        assert getattr(made, trait) == getattr(plain, trait)
    assert made.synthetic_samples == {"condensed"}
    assert not made.supports_dp


def test_methods_without_a_public_set_ignore_it(play: Callable[..., Any], condensed: Callable[..., Experiment]) -> None:
    assert methods.get("solo", "condensed") is methods.get("solo")
    assert play("solo", rounds=1, public="condensed").public is None
    assert methods.get("fedmd", "photos") is methods.get("fedmd")


def test_own_embedders_are_pretrained(condensed: Callable[..., Experiment]) -> None:
    random, own = (condensed(embedders=kind, pretrain_epochs=1) for kind in ("random", "own"))
    run(random)
    run(own := own.model_copy(update={"out": own.out.with_name("own")}))  # type: ignore[union-attr]
    assert numbers(random) != numbers(own)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"soft_labels": True}, "public = 'condensed' is not possible with soft_labels = true: public samples have no"),
        ({"refresh": 2}, "public = 'condensed' is not possible with refresh = 2: the public set is sent once"),
        ({"embedders": "own"}, "with embedders = 'own' and an untrained model: set pretrain_epochs to 1 or more"),
        ({"per_class": 10_000}, "with per_class = 10000: all clients' samples would be more than 100,000"),
        ({"formation": 3}, "formation = 3 does not divide the image size"),
        ({"dp_noise": 1.0}, "dp_noise = 1 is not possible with fccl\\+: the samples of public = 'condensed' are made"),
        ({"release_noise": 1.0}, "release_noise = 1 is not possible with public = 'condensed': outputs on those"),
        ({"public_augment": "jitter"}, "public_augment = 'jitter' is not possible for condensed image samples"),
    ],
)  # fmt: skip
def test_options_that_are_refused(settings: dict[str, Any], why: str, condensed: Callable[..., Experiment]) -> None:
    experiment = condensed("fccl+", **settings)
    with pytest.raises(UsageError, match=why) as refused:
        run(experiment)
    assert "\n" not in str(refused.value)
    assert not experiment.out.exists()  # type: ignore[union-attr]


def test_secure_sums_are_refused(condensed: Callable[..., Experiment]) -> None:
    why = "with fedmd: with public = 'condensed' its server forwards each client's synthetic samples"
    with pytest.raises(UsageError, match=why):
        run(condensed(changes={"secure": True}))


def test_methods_without_labels_are_refused(condensed: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match="with fedmd-ssl: its clients train without labels"):
        run(condensed("fedmd-ssl"))


def test_texts_of_one_vocabulary_are_a_public_set(tmp_path: Path) -> None:
    for name in "ab":
        lines = [
            json.dumps({"text": f"{['bad', 'good'][i % 2]} film {i % 3} word{i}", "label": "ny"[i % 2]})
            for i in range(60)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    experiment = Experiment(
        method="fedmd", scenario=str(tmp_path), public="condensed", models=("textcnn@8", "bag_of_embeddings@8"),
        rounds=1, out=tmp_path / "run", settings={"per_class": 3, "local_epochs": 1, "public_size": 12},
    )  # fmt: skip
    s = FederationHarness(experiment)
    s.run_rounds()
    one, two = (client.public_samples(s.batch(12)) for client in s.clients)
    assert torch.equal(one, two)
    stored = s.clients[0].stored_tensor("public_samples")
    assert stored.dtype == torch.int32
    assert int(stored.max()) > 0
    bad = stored.clone()
    bad[0, 0] = s.spec.inputs.vocabulary
    with pytest.raises(PayloadError, match="a token id outside the vocabulary"):
        s.method.store_public(s.clients[0], Payload(samples=bad))


def test_its_options_are_not_those_of_other_public_sets(small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match="there is no option 'per_class'"):
        run(small("fedmd", settings={"per_class": 2}))


@pytest.mark.parametrize(
    "received",
    [
        Payload(samples=torch.zeros(47, 3, 16, 16, dtype=torch.uint8)),
        Payload(samples=torch.zeros(48, 3, 16, 16)),
        Payload(samples=torch.zeros(48, 3, 8, 8, dtype=torch.uint8)),
        Payload(labels=torch.zeros(48)),
        Payload(samples=torch.zeros(48, 3, 16, 16, dtype=torch.uint8), more=torch.zeros(1)),
    ],
)
def test_a_client_refuses_another_set(received: Payload, condensed: Callable[..., Experiment]) -> None:
    s = FederationHarness(condensed())
    with pytest.raises(PayloadError, match=r"was expected|do not fit"):
        s.method.store_public(s.clients[0], received)
    assert "public_samples" not in s.clients[0].memory
