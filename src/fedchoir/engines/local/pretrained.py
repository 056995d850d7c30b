"""Pretrained models that runs share: the first run that needs one trains it, the others load it.

A file's name is a digest of everything that determines the trained weights, so a model that is loaded is the one that
would have been trained. Runs in several processes may use one folder at the same time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor
from torch.optim import Optimizer

from fedchoir.core.client import Client
from fedchoir.core.training import Batch, Loss, Trainer, WrappedTrainer
from fedchoir.methods.base import Method
from fedchoir.payload import load_tensors, save_tensors
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import atomic_path
from fedchoir.version import __version__

LOSS = "loss"
WEIGHTS = "model/"


class PretrainedTrainer(WrappedTrainer):
    """A `Trainer` that takes the result of a client's pretraining from a folder, or puts it there."""

    def __init__(self, inner: Trainer, folder: Path) -> None:
        super().__init__(inner)
        self._folder = folder

    def train(self, client: Client, optimizer: Optimizer, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        method = pretraining_method(client, loss)
        if method is None:
            return self.inner.train(client, optimizer, loss, batches)
        path = self._folder / f"{key(client, method, optimizer)}.safetensors"
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):  # a second run waits for the first one's model
            found = _read(path, client)
            if found is None:
                modules = _digest(client.modules.state_dict())
                value = self.inner.train(client, optimizer, loss, batches)
                if _digest(client.modules.state_dict()) == modules:  # else the model is not all that was trained
                    with atomic_path(path) as part:
                        weights = {f"{WEIGHTS}{n}": t for n, t in client.model.state_dict().items()}
                        save_tensors(part, {LOSS: value, **weights})
                return value
        for _ in batches:  # whoever counts the steps of a run counts these, too
            pass
        client.model.load_state_dict({n.removeprefix(WEIGHTS): t for n, t in found.items() if n != LOSS})
        return found[LOSS].to(client.device)


def pretraining_method(client: Client, loss: Loss) -> Method | None:
    """The method whose pretraining this is, if it is cross-entropy on private data and nothing else."""
    method = getattr(loss, "__self__", None)
    if client.phase != "pretrain" or not isinstance(method, Method):
        return None
    plain = type(method).pretrain is Method.pretrain and getattr(loss, "__func__", None) is Method.supervised_loss
    return method if plain else None


def key(client: Client, method: Method, optimizer: Optimizer) -> str:
    """A digest of everything that determines a client's pretrained weights."""
    device, params = client.device, method.params.of_pretraining()
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    transform = client.private.transform
    group = optimizer.param_groups[0]
    facts = {
        "versions": [__version__, torch.__version__],
        "device": [device.type, machine, client.precision],
        "draws": [client.seed, client.index, client.round, client.phase],
        "model": [repr(client.model), [name for name, p in client.model.named_parameters() if p.requires_grad]],
        "weights": _digest(client.model.state_dict()),
        "data": [
            client.private.digest(),
            _digest({"labels": client.private.labels}),
            transform and transform.to_json(),
        ],
        "optimizer": [type(optimizer).__name__, {n: v for n, v in group.items() if n != "params"}],
        "settings": [params.pretrain_epochs, params.local_batch, params.private_augment, params.class_weights],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _read(path: Path, client: Client) -> dict[str, Tensor] | None:
    """The tensors of a file; None if there is none, or if it is damaged."""
    if not path.exists():
        return None
    try:
        found = load_tensors(path)
    except UsageError:
        return None
    shapes = {f"{WEIGHTS}{n}": t.shape for n, t in client.model.state_dict().items()}
    return found if {n: t.shape for n, t in found.items() if n != LOSS} == shapes and LOSS in found else None


def _digest(tensors: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
