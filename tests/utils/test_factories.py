"""Functions of a user's own code by name."""

from pathlib import Path

import pytest

from fedchoir.utils.errors import UsageError
from fedchoir.utils.factories import is_factory, load_factory


def test_a_function_comes_from_a_file_or_a_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def make():\n    return 7\n")
    assert load_factory(f"{tmp_path}/mine.py:make", "scenario")() == 7
    assert load_factory("math:sqrt", "scenario")(9) == 3


@pytest.mark.parametrize("text", ["mine.py", "timm:resnet18", "a folder:make", "mine.py:", "C:\\data", "1st:make"])
def test_other_texts_do_not_name_a_function(text: str) -> None:
    assert not is_factory(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("none.py:make", "scenario names none.py, which is not there"),
        ("{}/mine.py:mkae", "nothing called 'mkae'"),
        ("{}/mine.py:NUMBER", "NUMBER in .*mine.py is not a function"),
        ("no.such.module:make", "scenario names the module no.such.module"),
        ("{}/broken.py:make", r"broken.py cannot be loaded: SyntaxError"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("NUMBER = 3\ndef make():\n    return 7\n")
    (tmp_path / "broken.py").write_text("def make(\n")
    with pytest.raises(UsageError, match=why):
        load_factory(text.format(tmp_path), "scenario")
