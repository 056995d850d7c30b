"""Names of models that arrive in messages execute no code and read no file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedchoir import models
from fedchoir.models.trust import only_own_models
from fedchoir.utils.errors import UsageError

CODE = """
from pathlib import Path
Path("executed").touch()
from torch import nn
def build(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(CODE)
    torch.save({}, tmp_path / "w.pt")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    ["net.py:build", "os:abort", "resnet10@4[weights=w.pt]", "timm:resnet18[pretrained]", "object:Net-00000000"],
)
def test_other_code_and_files_are_refused(folder: Path, name: str) -> None:
    with only_own_models("mlp"), pytest.raises(UsageError, match="arrived in a message"):
        models.build(name, 3)
    assert not (folder / "executed").exists()


def test_names_of_the_zoo_and_of_timm_may_arrive(folder: Path) -> None:
    with only_own_models("net.py:build"):
        assert models.build("resnet10@4", 3).num_classes == 3
        assert models.build("timm:mobilenetv3_small_050", 3).num_classes == 3


def test_the_own_model_is_built_by_both_of_its_names(folder: Path) -> None:
    with only_own_models("net.py:build[train=head]"):
        assert models.build("net.py:build[train=head]", 3).head_only
        shared = models.build("custom:net.build", 3)  # the architecture alone
        assert not shared.head_only
        with pytest.raises(UsageError, match="code of another site"):
            models.build("custom:other.build", 3)
    with pytest.raises(UsageError, match="code of another site"):
        models.build("custom:net.build", 3)


def test_a_name_is_checked_before_the_samples_are_known(folder: Path) -> None:
    for name in ("resnet10@4", "textcnn", "res_mlp", "timm:resnet18", "net.py:build"):
        models.check_name(name)
    for name in ("resnet11", "net.py:bild", "none.py:build", "mlp[weights=none.pt]", "mlp[x]"):
        with pytest.raises(UsageError):
            models.check_name(name)
