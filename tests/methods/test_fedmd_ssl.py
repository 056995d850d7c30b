"""FedMD on features."""

from __future__ import annotations

from collections.abc import Callable

from fedchoir import Experiment, run

Small = Callable[..., Experiment]
N = 8  # dim of the small runs


def test_public_features_travel_in_the_common_width(small: Small) -> None:
    experiment = small("fedmd-ssl", rounds=1)
    result = run(experiment)
    assert result.bytes_up == 3 * 40 * N * 4  # three clients, 40 public images
