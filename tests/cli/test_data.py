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


def test_check_has_options_and_prints_the_shape(fedchoir: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body,age,ill,smoker\n" + "".join(f"w{i},{i},{i % 2},1\n" for i in range(20)))
    code, out, _ = fedchoir("data", "check", str(tmp_path), "--set", "target=ill", "--set", "text_column=body")
    assert code == 0
    assert "--input text:128x8192 --classes 2" in out
    code, out, _ = fedchoir("data", "check", "heart")
    assert "--input 13 --classes 2" in out  # with the scenario's own options, as in a run
    code, _, err = fedchoir("data", "check", "heart", "--set", "targe=x")
    assert code == 2
    assert "there is no option 'targe'; did you mean target" in err


def test_check_shows_what_each_client_has(fedchoir: Callable[..., tuple[int, str, str]], shapes: Path) -> None:
    code, out, _ = fedchoir("data", "check", str(shapes))
    assert code == 0
    assert "classes (0, 1, 2, 3)" in " ".join(out.split())
    for domain in ("red", "green", "white"):
        assert f"{domain} (32)" in out
