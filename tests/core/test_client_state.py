"""A client's state as flat named tensors: everything comes back, and training continues to the same numbers."""

from __future__ import annotations

import torch
from tests.core.example_client import BATCH, loss, make_client
from tests.helpers import equal
from torch import nn

from fedchoir.core.client import Client
from fedchoir.core.client_state import Memory, flatten, restore, state_without_model
from fedchoir.core.training import Batch


def square(client: Client, batch: Batch) -> torch.Tensor:
    return client.logits(batch.inputs).square().mean()


def with_head(client: Client) -> Client:
    torch.manual_seed(3)
    client.modules["head"] = nn.Linear(client.model.feature_dim, 2)
    return client


def copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Through a file: contiguous and without shared memory."""
    return {name: t.clone().contiguous() for name, t in state.items()}


def test_names_tell_where_a_tensor_belongs() -> None:
    client = with_head(make_client())
    client.memory["teacher"] = client.snapshot()
    client.memory["prototypes"] = torch.randn(4, 8)
    client.public_step(BATCH, square)
    kinds = {name.split("/")[0] for name in flatten(client)}
    assert kinds == {"model", "modules", "memory", "optimizer"}
    assert {"modules/head.weight", "memory/prototypes", "optimizer/public/0/step"} <= flatten(client).keys()
    assert {f"memory/teacher/{name}" for name in client.model.state_dict()} <= flatten(client).keys()
    assert not any(name.startswith("model/") for name in state_without_model(client))
    assert flatten(client).keys() - state_without_model(client).keys() == {
        f"model/{name}" for name in client.model.state_dict()
    }


def test_a_restored_client_continues_in_the_middle_of_a_public_phase() -> None:
    """Weights, memory, modules and Adam's moments: the next steps give the same numbers to the bit."""
    original = with_head(make_client())
    original.memory["teacher"] = original.snapshot()
    original.public_step(BATCH, square)
    restored = with_head(make_client(count=20))
    restore(restored, copied(flatten(original)))
    for client in (original, restored):
        client.phase = "public"
        client.public_step(BATCH, square)
        client.train(loss)
    assert equal(flatten(original), flatten(restored))


def test_a_model_that_was_left_out_is_unchanged() -> None:
    client = make_client()
    client.memory["prototypes"] = torch.ones(4, 8)
    other = make_client()
    other.train(loss)
    before = other.snapshot()
    restore(other, state_without_model(client))
    assert equal(before, other.snapshot())
    assert torch.equal(other.stored_tensor("prototypes"), torch.ones(4, 8))


def test_what_the_restored_state_does_not_have_is_gone() -> None:
    client = make_client()
    state = copied(flatten(client))
    client.memory["teacher"] = client.snapshot()
    client.public_step(BATCH, square)
    restore(client, state)
    assert dict(client.memory) == {}
    assert client.optimizers == {}


def test_stored_weights_have_the_models_memory_layout() -> None:
    """Another layout of convolution weights would change the order of summation."""
    client, other = make_client(), make_client()
    client.memory["teacher"] = client.snapshot()
    restore(other, copied(flatten(client)))
    kernels = [t for t in other.stored_weights("teacher").values() if t.dim() == 4]
    assert kernels
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in kernels)


def test_memory_copies_and_reuses_its_place() -> None:
    memory, weights = Memory(), {"w": torch.ones(3)}
    memory["teacher"] = weights
    weights["w"].zero_()
    stored = memory["teacher"]
    assert isinstance(stored, dict)
    assert stored["w"].tolist() == [1.0] * 3
    place = stored["w"].data_ptr()
    memory["teacher"] = {"w": torch.full((3,), 2.0)}
    assert memory["teacher"]["w"].data_ptr() == place  # type: ignore[index]
    memory["teacher"] = {"w": torch.ones(4)}  # another shape needs another place
    assert memory["teacher"]["w"].tolist() == [1.0] * 4  # type: ignore[index]
    assert [t.numel() for t in memory.tensors()] == [4]
    del memory["teacher"]
    assert len(memory) == 0
