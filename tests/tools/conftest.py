from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w

TINY = {"private": [20], "public_size": 16, "public_batch": 8, "local_epochs": 1, "pretrain_epochs": 1}
BASE = {"scenario": "digits-lite", "models": "simple_cnn@2", "rounds": 3, "device": "cpu", "settings": TINY}


@pytest.fixture
def queue_file(tmp_path: Path) -> Path:
    """Two rows of one tiny run each."""
    rows = []
    for method in ("fedmd", "fccl"):
        sweep = tmp_path / f"{method}.toml"
        sweep.write_text(tomli_w.dumps({"title": method, "base": {**BASE, "method": method}}))
        rows.append({"sweep": str(sweep), "section": f"tiny-{method}", "why": "a test"})
    path = tmp_path / "queue.toml"
    path.write_text(tomli_w.dumps({"row": rows}))
    return path
