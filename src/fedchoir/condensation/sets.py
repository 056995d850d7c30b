"""Condensed sets as they travel: checks of what arrives, and several sets in one."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedchoir.condensation.sample_space import LARGEST, sent_dtype
from fedchoir.condensation.text import find_text_fault
from fedchoir.payload import Payload, PayloadError
from fedchoir.utils.input_spec import InputSpec

ROUNDING = 1e-3  # of probabilities that should add up to 1
MOST = 100_000  # received samples of all clients together


def find_fault(payload: Payload, inputs: InputSpec) -> str:
    """Why a client's set, whose names, shapes and dtypes are right, cannot be used; empty where it can."""
    owned = payload["owned"]
    if not bool(((owned == 0) | (owned == 1)).all()):
        return "owned has a number that is neither 0 nor 1"
    if inputs.modality == "text":
        if why := find_text_fault(payload["condensed"][owned > 0.5].flatten(0, 1), inputs.vocabulary):
            return f"condensed has {why}"
    elif inputs.modality != "image" and float(payload["condensed"].abs().amax()) > LARGEST:
        return f"condensed has a number beyond ±{LARGEST:g} standard units"
    return _soft_fault(payload["soft"]) if "soft" in payload else ""


def _soft_fault(soft: Tensor) -> str:
    if float(soft.amin()) < 0 or float((soft.sum(dim=-1) - 1).abs().amax()) > ROUNDING:
        return "soft has rows that are no probabilities"
    return ""


def join_sets(sets: Sequence[Mapping[str, Tensor]], inputs: InputSpec) -> Payload:
    """The samples of owned classes, ``samples`` M×shape with ``labels`` M and, where all sets have them, ``soft``
    M×f²×C. M may be 0."""
    dtype = getattr(torch, sent_dtype(inputs.modality))
    samples, labels = [torch.zeros(0, *inputs.shape, dtype=dtype)], [torch.zeros(0, dtype=torch.int64)]
    soft: list[Tensor] = []
    for found in sets:
        owned = found["owned"] > 0.5
        samples.append(found["condensed"][owned].flatten(0, 1))
        labels.append(owned.nonzero().flatten().repeat_interleave(found["condensed"].shape[1]))
        soft += [found["soft"][owned].flatten(0, 1)] if "soft" in found else []
    more = {"soft": torch.cat(soft)} if soft else {}
    return Payload({"samples": torch.cat(samples), "labels": torch.cat(labels), **more})


def check_received(received: Payload, inputs: InputSpec, classes: int, tiles: int) -> None:
    """Raise `PayloadError` unless a server sent what `join_sets` gives: the client trains on it.

    Args:
        tiles: samples that one stored sample holds.
    """
    samples, labels = received.get("samples"), received.get("labels")
    if samples is None or labels is None or set(received) - {"samples", "labels", "soft"}:
        raise PayloadError("condensed samples with their labels were expected")
    _check_samples(samples, inputs)
    if labels.dtype != torch.int64 or labels.shape != samples.shape[:1]:
        raise PayloadError("the labels of condensed samples do not fit them")
    if not len(labels):
        return
    if int(labels.amin()) < 0 or int(labels.amax()) >= classes:
        raise PayloadError(f"a label of a condensed sample is not one of {classes} classes")
    if "soft" in received:
        soft = received["soft"]
        if soft.dtype != torch.float32 or tuple(soft.shape) != (len(samples), tiles, classes) or _soft_fault(soft):
            raise PayloadError("the soft labels of condensed samples do not fit them")


def check_public(received: Payload, inputs: InputSpec, count: int) -> None:
    """Raise `PayloadError` unless a server sent so many condensed samples, without labels, as a public set."""
    samples = received.get("samples")
    if samples is None or set(received) != {"samples"} or len(samples) != count:
        raise PayloadError(f"a public set of {count} condensed samples was expected")
    _check_samples(samples, inputs)


def _check_samples(samples: Tensor, inputs: InputSpec) -> None:
    dtype = getattr(torch, sent_dtype(inputs.modality))
    if samples.dtype != dtype or tuple(samples.shape[1:]) != inputs.shape or len(samples) > MOST:
        raise PayloadError(f"condensed samples of shape {tuple(samples.shape)} and {samples.dtype} do not fit {inputs}")
    if samples.is_floating_point() and len(samples) and not float(samples.abs().amax()) <= LARGEST:  # NaN: false
        raise PayloadError(f"a condensed sample has a number beyond ±{LARGEST:g} standard units")
    if inputs.modality == "text" and (why := find_text_fault(samples, inputs.vocabulary)):
        raise PayloadError(f"a condensed sample has {why}")


def repeated(samples: Tensor, count: int) -> Tensor:
    """So many samples, the given ones in turn; none if there are none.

    >>> repeated(torch.tensor([7, 8, 9]), 5)
    tensor([7, 8, 9, 7, 8])
    """
    return samples[torch.arange(count if len(samples) else 0) % max(len(samples), 1)]
