"""Randomness is derived, not consumed.

Every draw comes from a seed and the names of what it is for: ``(seed, "public", round, batch)``. So a result does
not depend on the engine, on the order in which clients run, or on a restart: there is no RNG state to save.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *labels: int | str) -> int:
    """A 63-bit number that depends on the seed and every label, and on nothing else.

    >>> derive(0, "public", 3) == derive(0, "public", 3)
    True
    >>> derive(0, "public", 3) == derive(0, "public", 4)
    False
    >>> derive(0, "ab", "c") == derive(0, "a", "bc")
    False
    """
    text = repr((int(seed), *labels)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def generator(seed: int, *labels: int | str) -> torch.Generator:
    """A CPU generator for one purpose. Drawing on the CPU gives the same numbers for every device."""
    return torch.Generator().manual_seed(derive(seed, *labels))


def reseed(seed: int) -> None:
    """Seed torch's global generators, as ``torch.manual_seed`` does. Where no GPU is in use that one still notes down
    the whole call stack for it, which takes longer than a small client's training step.

    >>> _ = torch.manual_seed(5)
    >>> drawn = torch.rand(3)
    >>> reseed(5)
    >>> torch.equal(drawn, torch.rand(3))
    True
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def seeded(seed: int, *labels: int | str) -> Iterator[None]:
    """Seed torch's global generators inside the block (initialisation, dropout) and restore them after it."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        reseed(derive(seed, *labels))
        yield
