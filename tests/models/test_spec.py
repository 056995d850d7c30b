"""Models as strings and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedchoir.models.spec import ModelSpec, split_models
from fedchoir.utils.errors import UsageError

NAMES = st.from_regex(r"[A-Za-z0-9_./@-]{1,20}", fullmatch=True)


@given(
    st.builds(
        dict,
        source=NAMES.map(lambda name: f"{name}.py:build"),
        weights=st.none() | NAMES,
        features=st.none() | NAMES,
        feature_map=st.none() | NAMES,
        output=st.none() | NAMES,
        train=st.sampled_from(["all", "head"]),
        trunk_lr=st.sampled_from([1.0, 0.1, 0.025, 3.0]),
    )
)
def test_a_string_holds_all_of_a_model(values: dict[str, Any]) -> None:
    spec = ModelSpec(**values)
    assert ModelSpec.parse(str(spec)) == spec
    assert ModelSpec.read(values) == spec


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("resnet10@16", "zoo"),
        ("timm:resnet18[pretrained]", "timm"),
        ("my_net.py:build", "file"),
        ("nets/my_net.py:Net[train=head]", "file"),
        ("torchvision.models:resnet18", "package"),
        ("object:Net-0a1b2c3d", "object"),
        ("custom:my_net.build", "remote"),
    ],
)
def test_the_kind_of_a_source(text: str, kind: str) -> None:
    assert ModelSpec.parse(text).kind == kind


def test_options_of_training_are_not_part_of_the_architecture() -> None:
    text = "my_net.py:build[weights=w.safetensors,features=avgpool,train=head,trunk_lr=0.1]"
    assert ModelSpec.parse(text).architecture == "my_net.py:build[features=avgpool]"
    assert ModelSpec.parse("resnet10@16").architecture == "resnet10@16"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("resnet10@16[weights=/home/a/w.pt,train=head]", "resnet10@16"),
        ("timm:resnet18[pretrained]", "timm:resnet18"),
        ("/home/a/secret/my_net.py:build[features=avgpool]", "custom:my_net.build"),
        ("hospital.nets:Net", "custom:hospital.nets.Net"),
        ("object:Net-0a1b2c3d", "custom:Net-0a1b2c3d"),
    ],
)
def test_other_sites_learn_no_path(text: str, name: str) -> None:
    spec = ModelSpec.parse(text)
    assert spec.public_name == name
    assert ModelSpec.parse(name).public_name == name


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("resnet10[", ["'resnet10['", "SOURCE[option"]),
        ("a[b][c]", ["SOURCE[option"]),
        ("resnet10[train=trunk]", ["resnet10[train=trunk]", "train", "'all' or 'head'"]),
        ("resnet10[trian=head]", ["'trian'", "train"]),
        ("resnet10[trunk_lr=0]", ["trunk_lr", "greater than 0"]),
        ("resnet10[trunk_lr=fast]", ["trunk_lr", "'fast'"]),
        ("resnet10[pretrained]", ["pretrained", "timm:NAME", "weights=FILE"]),
        ("timm:resnet18[pretrained,weights=w.pt]", ["exclude"]),
        ("resnet10[features=avgpool]", ["features", "your own"]),
        ("my_net.py:build[weights]", ["weights"]),
        ("my_net.py:build[weights=]", ["weights"]),
    ],
)
def test_a_wrong_string_is_one_line(text: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        ModelSpec.parse(text)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_files_are_looked_for_beside_the_toml_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
    (beside / "net.py").touch()
    (beside / "w.pt").touch()
    (here / "w.pt").touch()
    monkeypatch.chdir(here)
    spec = ModelSpec.parse("net.py:build[weights=w.pt]").relative_to(beside)
    assert spec.source == f"{beside}/net.py:build"
    assert spec.weights == "w.pt"  # the working folder comes first


def test_a_comma_in_brackets_does_not_end_a_model() -> None:
    assert split_models("a[b,c=d], e ,f[g]") == ("a[b,c=d]", "e", "f[g]")
