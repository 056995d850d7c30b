"""Text as a modality: a user's folder, tokenizers, and public sets."""

import json
from pathlib import Path

import pytest

from fedchoir.data.options import DataOptions
from fedchoir.data.preprocessing import describe_preprocessing, load_preprocessing
from fedchoir.data.public import load_public
from fedchoir.data.registry import info
from fedchoir.data.scenario import load_scenario
from fedchoir.data.text.text_set import TextSet
from fedchoir.utils.errors import UsageError


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("a", "b"):
        rows = [{"text": f"{name} word{i} x", "label": i % 2} for i in range(20)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_folder_of_texts(notes: Path, tmp_path: Path) -> None:
    scenario = load_scenario(str(notes), options=DataOptions(vocabulary=64, max_length=5))
    assert (scenario.inputs.modality, scenario.inputs.shape, scenario.inputs.vocabulary) == ("text", (5,), 64)
    assert scenario.classes == ("0", "1")
    assert [len(client.train) + len(scenario.tests[client.name]) for client in scenario.clients] == [20, 20]
    assert info(str(notes)).models == ("bag_of_embeddings", "textcnn", "bigru", "transformer")
    (tmp_path / "words.txt").write_text("a\nb\nx\n" + "".join(f"word{i}\n" for i in range(10)))
    own = load_scenario(str(notes), options=DataOptions(tokenizer=tmp_path / "words.txt", max_length=3))
    assert own.inputs.vocabulary == 15
    assert [3, 1, 4] in own.clients[1].train.inputs.tolist()


def test_an_own_test_split(notes: Path) -> None:
    rows = [{"text": f"word{i}", "label": i % 2, "split": "test" if i < 4 else "train"} for i in range(20)]
    (notes / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scenario = load_scenario(str(notes))
    assert (len(scenario.clients[0].train), len(scenario.tests["a"])) == (16, 4)
    (notes / "a.jsonl").write_text(json.dumps(rows[0]))
    with pytest.raises(UsageError, match="every text has the split 'test'"):
        load_scenario(str(notes))


def test_csv_is_text_where_a_text_column_is_named(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("body,age,label\n" + "".join(f"w{i},{i},{i % 2}\n" for i in range(20)))
    scenario = load_scenario(str(tmp_path), options=DataOptions(text_column="body", max_length=4))
    assert isinstance(scenario.clients[0].train, TextSet)
    assert info(str(tmp_path), DataOptions(text_column="body")).modality == "text"


def test_the_text_column_holds_for_public_and_new_texts(tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    for name in "ab":
        rows = "".join(f"w{i},{i},{i % 2}\n" for i in range(20))
        (tmp_path / "clients" / f"{name}.csv").write_text(f"body,age,label\n{rows}")
    options = DataOptions(text_column="body", max_length=4)
    like = load_scenario(str(tmp_path / "clients"), options=options).clients[0].train
    found = {}
    for column in ("body", "text", "other"):
        (tmp_path / f"{column}.csv").write_text(f"age,{column}\n1,one\n2,two words\n")
    (tmp_path / "lines.txt").write_text("one\ntwo words\n")
    for file in ("body.csv", "text.csv", "lines.txt"):  # a file without the column may have a usual one
        found[file] = load_public(str(tmp_path / file), like=like).samples.inputs
        assert found[file].tolist() == found["body.csv"].tolist()
        new = load_preprocessing(describe_preprocessing(like), options).read(tmp_path / file)
        assert new[1].tolist() == found["body.csv"].tolist()
    with pytest.raises(UsageError, match=r"\(age, other\) is called body \(text_column\), text, .*document$"):
        load_public(str(tmp_path / "other.csv"), like=like)


def test_public_texts(notes: Path, tmp_path: Path) -> None:
    like = load_scenario(str(notes), options=DataOptions(max_length=6)).clients[0].train
    assert isinstance(like, TextSet)
    (tmp_path / "p.txt").write_text("one\ntwo words\n")
    public = load_public(str(tmp_path / "p.txt"), like=like)
    assert isinstance(public.samples, TextSet)
    assert public.samples.tokenizer == like.tokenizer
    assert public.samples.inputs.shape == (2, 6)
    with pytest.raises(UsageError, match=r"--public is missing: .*could be amazon-reviews, a \.jsonl.* or FILE\.py"):
        load_public("", like=like)
    for name in ("noise", str(tmp_path / "none.txt")):
        with pytest.raises(UsageError, match=r"nor a file of texts .* texts cannot be generated"):
            load_public(name, like=like)
