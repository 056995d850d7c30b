"""Matrices as products of two thin ones, for FedKD's compressed updates.

A matrix travels as three tensors whose sum ``left @ right + full.sum(0)`` it is: P×r, r×Q and n×P×Q. One of r and n is
0. Any r and n that a client declares give a matrix of the right shape, so that no payload can break the server.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedchoir.core.aggregation import Aggregator, Payloads
from fedchoir.payload import Payload

State = Mapping[str, Tensor]
FACTORS = ("left", "right", "full")
Factors = dict[str, Tensor]
"""``left`` P×r, ``right`` r×Q and ``full`` n×P×Q."""


def compress(matrix: Tensor, energy: float) -> Factors:
    """The truncated SVD with the least rank that keeps a share of the energy, the sum of squared singular values.

    FedKD: the least K with Σ_{i≤K} σ_i² ≥ T Σ_i σ_i². The singular values are multiplied into the left factor. The
    matrix itself is sent where its factors would be larger.

    Args:
        matrix: P×Q.
        energy: T, between 0 and 1.

    >>> thin = compress(torch.diag(torch.tensor([3.0, 1.0, 0.0, 0.0, 0.0])), energy=0.85)
    >>> {name: tuple(t.shape) for name, t in thin.items()}
    {'left': (5, 1), 'right': (1, 5), 'full': (0, 5, 5)}
    """
    p, q = matrix.shape
    whole = {"left": matrix.new_zeros(p, 0), "right": matrix.new_zeros(0, q), "full": matrix.unsqueeze(0)}
    if not bool(matrix.isfinite().all()):
        return whole
    u, sigma, v = torch.linalg.svd(matrix, full_matrices=False)
    kept = sigma.square().cumsum(dim=0)
    rank = int((kept < energy * kept[-1]).sum()) + 1 if bool(kept[-1] > 0) else 0
    if rank * (p + q) >= p * q:
        return whole
    left, right = u[:, :rank] * sigma[:rank], v[:rank]
    return {"left": left.contiguous(), "right": right.contiguous(), "full": matrix.new_zeros(0, p, q)}


def restored(factors: Mapping[str, Tensor]) -> Tensor:
    """The matrix of its factors.

    >>> matrix = torch.tensor([[2.0, 4.0, 6.0], [1.0, 2.0, 3.0], [3.0, 6.0, 9.0]])
    >>> torch.allclose(restored(compress(matrix, energy=0.99)), matrix)
    True
    """
    return factors["left"] @ factors["right"] + factors["full"].sum(dim=0)


def is_matrix(t: Tensor) -> bool:
    """Whether a tensor of a state dict is compressed; a convolution counts as a matrix, filters × rest."""
    return t.dim() >= 2 and t.is_floating_point()


def declared_update(state: State) -> dict[str, str]:
    """The declaration of `packed` (see `fedchoir.payload.sends`): r and n of every matrix are free.

    >>> declared_update({"w": torch.zeros(4, 5), "b": torch.zeros(4)})
    {'update/w/left': '4 rA', 'update/w/right': 'rA 5', 'update/w/full': 'nA 4 5', 'update/b': '4:float32'}
    """
    fields: dict[str, str] = {}
    for number, (name, t) in enumerate(state.items()):
        place, dtype = f"update/{name}", str(t.dtype).removeprefix("torch.")
        label = "".join(chr(ord("A") + int(digit)) for digit in str(number))  # dimensions have names without digits
        if is_matrix(t):
            p, q = t.flatten(1).shape
            sizes = {"left": f"{p} r{label}", "right": f"r{label} {q}", "full": f"n{label} {p} {q}"}
            fields |= {f"{place}/{factor}": size for factor, size in sizes.items()}
        else:
            fields[place] = " ".join(map(str, t.shape)) + f":{dtype}"
    return fields


def packed(change: State, energy: float) -> Payload:
    """Factors of every matrix of an update, and its other tensors, under ``update/``."""
    tensors: dict[str, Tensor] = {}
    for name, t in change.items():
        tensors |= {f"{name}/{f}": v for f, v in compress(t, energy).items()} if is_matrix(t) else {name: t.clone()}
    return Payload({f"update/{name}": t for name, t in tensors.items()})


def unpacked(payload: Payload) -> Payload:
    """The inverse of `packed`, up to the energy that was cut off."""
    names = [name.removesuffix("/left") for name in payload if name.endswith("/left")]
    matrices = {name: restored({f: payload[f"{name}/{f}"] for f in FACTORS}) for name in names}
    whole = {name: t for name, t in payload.items() if name.rpartition("/")[0] not in matrices}
    return Payload({**whole, **matrices})


def updated(state: State, change: State) -> dict[str, Tensor]:
    """A state dict after an update: matrices are added, other tensors replaced."""
    return {n: t + change[n].view_as(t).to(t) if is_matrix(t) else change[n] for n, t in state.items()}


class RestoredMean:
    """A mean over clients of the matrices that their factors stand for."""

    def __init__(self, mean: Aggregator) -> None:
        self._mean = mean

    def add(self, client: int, payloads: Payloads) -> None:
        self._mean.add(client, [unpacked(payload) for payload in payloads])

    def result(self) -> list[Payload]:
        return self._mean.result()
