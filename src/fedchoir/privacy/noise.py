"""Random numbers for differential privacy at a real site: from the operating system, never from a seed.

torch's CPU generator keeps only 32 bits of its seed, so whoever guesses the seed can subtract the noise. Here a
ChaCha20 key of 256 bits comes from the operating system, once per `SecureRandom`, and is never stored.
"""

import math
import os
from collections.abc import Sequence

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor

TERMS = 4  # Gaussian draws that are added up for one noise value


class SecureRandom:
    """A cryptographically secure stream of random numbers.

    >>> a, b = SecureRandom(), SecureRandom()
    >>> bool((a.uniform(8) == b.uniform(8)).any())
    False
    """

    def __init__(self) -> None:
        self._cipher = Cipher(algorithms.ChaCha20(os.urandom(32), os.urandom(16)), mode=None).encryptor()

    def uniform(self, count: int) -> NDArray[np.float64]:
        """``count`` numbers in (0, 1), with 53 random bits each."""
        words = np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8")
        return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def normal(self, shape: Sequence[int], std: float) -> Tensor:
        """Gaussian noise in float64, on the CPU.

        Each value is a sum of four Box-Muller draws over two. A single draw has few possible values near a given
        result, so its low bits may tell which of two neighbouring inputs was noised (Mironov, CCS 2012). Holohan and
        Braghin (2021) propose the sum.
        """
        count = math.prod(shape)
        radius = np.sqrt(-2.0 * np.log(self.uniform(TERMS * count)))
        draws = radius * np.cos(2.0 * np.pi * self.uniform(TERMS * count))
        return torch.from_numpy(draws.reshape(TERMS, *shape).sum(axis=0) * (std / math.sqrt(TERMS)))

    def poisson_sample(self, count: int, rate: float) -> Tensor:
        """Indices of a sample that holds each of ``count`` items with probability ``rate``."""
        return torch.from_numpy(np.flatnonzero(self.uniform(count) < rate))
