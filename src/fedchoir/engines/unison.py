"""Small dense models of one architecture train in unison: one product of matrices for all of them, step by step.

A step of such a model is mostly the cost of saying what to do, and it is said once for a whole group. The numbers are
those of one client after the other, to rounding. It is only done where it pays, which was measured on a CPU: networks
of linear layers with few weights. Larger ones are busy with arithmetic anyway, and convolutions with a set of weights
for each client are slower than one after the other (docs/performance.md). Whatever else a method does in its local
phase (a loss of its own, hooks, differential privacy), its clients train one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedchoir.engines.roster import Roster
from fedchoir.federation.client import Client
from fedchoir.federation.phases import Action
from fedchoir.federation.training import Batch, EagerTrainer, new_optimizer
from fedchoir.methods.method import Method
from fedchoir.models import VisionModel

MOST_WEIGHTS = 128_000  # of a model; beyond this, arithmetic takes the time
FEWEST, MOST = 4, 16  # clients in a group


class Unison:
    """Says which clients of an engine act together, and lets them practise."""

    def __init__(self, method: Method, clients: Roster, device: torch.device, precision: str) -> None:
        params = method.params
        plain = practises_plainly(method) and not params.dp_noise and precision != "bf16"
        wanted = params.together == "auto" and plain and method.task.homogeneous and device.type == "cpu"
        self._layers = dense_layers(clients.pattern) if wanted else None

    def groups(self, clients: Sequence[int], actions: Sequence[Action]) -> Iterator[tuple[int, ...]]:
        """Clients that are awake together: each alone, but for those that practise in unison. Who is in a group does
        not depend on the order in which clients are asked."""
        if len(clients) >= FEWEST and any(map(self.takes, actions)):
            ordered = sorted(clients)
            yield from (tuple(ordered[start : start + MOST]) for start in range(0, len(ordered), MOST))
        else:
            yield from ((k,) for k in clients)

    def takes(self, action: Action) -> bool:
        """Whether an action is one to do in unison."""
        return self._layers is not None and getattr(action.function, "__func__", None) is Method.practise

    def practise(self, clients: Sequence[Client], action: Action) -> None:
        """The local phase of `Method.practise` for all of them."""
        assert self._layers is not None
        for client in clients:
            client.phase = action.function.__name__
        epochs = {client: client.settings.epochs_of(client.index) for client in clients}
        # those with most steps first: whoever still has a batch is then among the first
        steps = {client: epochs[client] * client.steps_per_epoch() for client in clients if epochs[client]}
        ordered = sorted(steps, key=lambda client: -steps[client])
        if ordered:
            train(ordered, self._layers, [client.lessons(epochs[client]) for client in ordered])

    def can(self, clients: Sequence[Client]) -> bool:
        """Whether these very clients are as plain as the method: own trainers and hooks are heeded."""
        return len(clients) > 1 and all(
            type(client.trainer) is EagerTrainer and not client.parts and not any(map(hooked, client.model.modules()))
            for client in clients
        )


def practises_plainly(method: Method) -> bool:
    """Whether the local phase is epochs of cross-entropy and nothing else."""
    kind = type(method)
    return all(getattr(kind, name) is getattr(Method, name) for name in ("practise", "local_loss", "supervised_loss"))


def hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def dense_layers(model: VisionModel) -> list[str] | None:
    """The model as a list: names of linear layers, and ``relu``. None where it has anything else, or many weights."""
    layers: list[str] = []
    if type(model) is not VisionModel or sum(p.numel() for p in model.parameters()) > MOST_WEIGHTS:
        return None
    for name, module in model.named_modules():
        if type(module) is nn.Linear and module.bias is not None:
            layers.append(name)
        elif type(module) is nn.ReLU:
            layers.append("relu")
        elif type(module) not in (VisionModel, nn.Sequential, nn.Identity, nn.Flatten):
            return None
    return layers


def train(clients: Sequence[Client], layers: Sequence[str], lessons: Sequence[Iterator[Batch]]) -> None:
    """One optimiser step for each batch of each client, all clients at a time. Whoever has no batch left is done."""
    first = clients[0]
    s = first.settings
    models = [dict(client.model.train().named_parameters()) for client in clients]
    weights = {n: torch.stack([m[n].detach() for m in models]).requires_grad_() for n in models[0]}
    lr = s.lr(s.local_lr, first.round, first.rounds)
    optimizer = new_optimizer(
        s.optimizer, list(weights.values()), lr=lr, weight_decay=s.local_weight_decay, momentum=s.momentum
    )
    totals, counts, singing = torch.zeros(len(clients)), torch.zeros(len(clients)), len(clients)
    for batches in zip_longest(*lessons):
        left = [batch for batch in batches if batch is not None]
        hand_back(models, weights, range(len(left), singing))
        singing = len(left)
        optimizer.zero_grad(set_to_none=True)
        losses = mean_losses({n: t[:singing] for n, t in weights.items()}, layers, left)
        losses.sum().backward()
        optimizer.step()
        totals[:singing] += losses.detach()
        counts[:singing] += 1
    hand_back(models, weights, range(singing))
    for client, loss in zip(clients, totals / counts.clamp_min(1), strict=True):
        client.record("local", loss)


def mean_losses(weights: Mapping[str, Tensor], layers: Sequence[str], batches: Sequence[Batch]) -> Tensor:
    """Each client's mean cross-entropy on its own batch: K. Weights are K×…; shorter batches are filled up with images
    that do not count."""
    longest = max(map(len, batches))
    images = torch.stack([filled(batch.images.flatten(1), longest) for batch in batches])
    labels = torch.stack([filled(batch.labels, longest) for batch in batches])
    sizes = torch.tensor([[len(batch)] for batch in batches])
    share = (torch.arange(longest) < sizes) / sizes  # K×B
    z = forward(weights, layers, images)
    each = F.cross_entropy(z.flatten(0, 1), labels.flatten(), reduction="none").view(len(batches), longest)
    return (each * share).sum(1)


def forward(weights: Mapping[str, Tensor], layers: Sequence[str], x: Tensor) -> Tensor:
    """K batches (K×B×d) through K networks: K×B×C."""
    for layer in layers:
        if layer == "relu":
            x = x.relu()
        else:
            # W·xᵀ and not x·Wᵀ: the gradient of W then comes out as it lies in memory
            x = torch.bmm(weights[f"{layer}.weight"], x.transpose(1, 2)).transpose(1, 2)
            x = x + weights[f"{layer}.bias"].unsqueeze(1)
    return x


def filled(rows: Tensor, length: int) -> Tensor:
    """``rows`` with zeros after them, so that there are ``length``."""
    return rows if len(rows) == length else torch.cat([rows, rows.new_zeros((length - len(rows), *rows.shape[1:]))])


@torch.no_grad()
def hand_back(models: Sequence[Mapping[str, Tensor]], weights: Mapping[str, Tensor], who: range) -> None:
    """Put the weights of some clients into their own models."""
    for k in who:
        for name, own in models[k].items():
            own.copy_(weights[name][k])
