"""The diagonal of the Fisher information, for EWC (Kirkpatrick et al., PNAS 2017)."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedchoir.core.client import Client


def diagonal_fisher(client: Client, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Mean squared gradient of the log-likelihood at ``weights`` over the client's private data, by parameter name.

    As usual, gradients are per batch instead of per sample, which would cost one backward pass each.
    """
    model = client.frozen_copy(weights).requires_grad_(True)
    names, parameters = zip(*model.named_parameters(), strict=True)
    total = [torch.zeros_like(p) for p in parameters]
    for images, labels in client.private_chunks(client.settings.local_batch):
        loss = cross_entropy(model(images).float(), labels)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for sum_, g in zip(total, gradients, strict=True):
            if g is not None:
                sum_.add_(g.square(), alpha=len(labels) / len(client.private))
    return dict(zip(names, total, strict=True))
