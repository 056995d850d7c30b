"""Values that processes exchange arrive as they were."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.helpers import equal

from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.public import PublicSet
from fedchoir.data.samples import Samples
from fedchoir.data.scenario import ClientData, Scenario
from fedchoir.data.series.series_set import SeriesSet
from fedchoir.data.text.text_set import TextSet
from fedchoir.data.text.tokenizers import HashTokenizer, VocabularyTokenizer
from fedchoir.data.torch_datasets.tensor_set import TensorSet
from fedchoir.engines.messages import Envelope
from fedchoir.engines.multiprocess.data_transfer import from_frames, pack, to_frames, unpack
from fedchoir.payload import Payload


def transfer(value: Any) -> Any:
    envelope = Envelope({})
    envelope.header["value"] = pack(envelope, value)
    message = from_frames(to_frames(envelope))
    return unpack(message, message.header["value"])


def images(count: int) -> ImageSet:
    pixels = torch.randint(0, 256, (count, 3, 4, 4), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count), (0.1, 0.2, 0.3), (1.0, 2.0, 3.0))


def same(one: ImageSet, two: ImageSet) -> bool:
    tensors = torch.equal(one.inputs, two.inputs) and torch.equal(one.labels, two.labels)
    return tensors and (one.mean, one.std) == (two.mean, two.std)


def test_a_scenario_and_a_public_set() -> None:
    scenario = Scenario(
        "s", ("a", "b"), (ClientData("one", images(3), "d"), ClientData("two", images(0), "e")), {"d": images(2)},
        top_k=5, notes=("n",),
    )  # fmt: skip
    copy = transfer(scenario)
    assert (copy.name, copy.classes, copy.top_k, copy.notes) == ("s", ("a", "b"), 5, ("n",))
    assert [(c.name, c.domain) for c in copy.clients] == [("one", "d"), ("two", "e")]
    assert isinstance(copy.clients, tuple)
    assert all(same(a.train, b.train) for a, b in zip(copy.clients, scenario.clients, strict=True))
    assert same(copy.tests["d"], scenario.tests["d"])
    assert copy.own_tests == {}
    public = PublicSet("p", images(2), (), "digest")
    again = transfer(public)
    assert torch.equal(again.samples.inputs, public.samples.inputs)
    assert (again.samples.transform, again.digest) == (public.samples.transform, "digest")
    assert transfer(None) is None


@pytest.mark.parametrize(
    "samples",
    [
        SeriesSet(torch.randn(3, 2, 5), torch.arange(3), "client"),
        TextSet(torch.ones(3, 4, dtype=torch.int64), torch.arange(3), VocabularyTokenizer(("a", "b"))),
        TextSet(torch.ones(3, 4, dtype=torch.int64), torch.arange(3), HashTokenizer(50)),
        TensorSet(torch.randn(3, 7), torch.arange(3), ((2, 2), (3,))),
    ],
    ids=lambda samples: samples.modality,
)
def test_samples_of_other_kinds(samples: Samples) -> None:
    copy = transfer(samples)
    assert type(copy) is type(samples)
    assert copy.digest() == samples.digest()
    assert (copy.input_spec, copy.transform) == (samples.input_spec, samples.transform)


def test_a_federation_spec() -> None:
    spec = FederationSpec(("a",), (ClientInfo("one", "mlp", 1, 2, "d"),), 3, 4)
    assert transfer(spec) == spec


def test_states_and_payloads() -> None:
    weight = torch.randn(3, 2).bfloat16()
    state = {"weight": weight, "rows": weight[:2]}  # they share memory
    assert equal(transfer(state), {name: t.clone() for name, t in state.items()})
    payload = transfer(Payload(t=torch.ones(2), scalars={"loss": 0.5}))
    assert payload.scalars == {"loss": 0.5}
    assert payload["t"].tolist() == [1.0, 1.0]
    assert transfer({}) == {}


def test_numbers_that_are_not_finite() -> None:
    loss, budget = transfer([{"loss": math.nan}, math.inf])
    assert math.isnan(loss["loss"])
    assert budget == math.inf
