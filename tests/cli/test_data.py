"""data show and data check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np


def test_show_finds_data_sets(fedchoir: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    np.savez(tmp_path / "usps.npz", **{k: np.zeros(1) for k in ("train_x", "train_y", "test_x", "test_y")})
    code, out, _ = fedchoir("data", "show", "--data-root", str(tmp_path))
    assert code == 0
    assert "usps.npz" in out


def test_check_shows_what_each_client_has(fedchoir: Callable[..., tuple[int, str, str]], shapes: Path) -> None:
    code, out, _ = fedchoir("data", "check", str(shapes))
    assert code == 0
    assert "classes (0, 1, 2, 3)" in " ".join(out.split())
    for domain in ("red", "green", "white"):
        assert f"{domain} (32)" in out
