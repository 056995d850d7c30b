"""Amazon reviews: domains, the public share, and the layouts in which they are stored."""

import gzip
import json
import os
from pathlib import Path

import pytest

from fedchoir.data.options import DataOptions
from fedchoir.data.public import load_public
from fedchoir.data.scenario import load_scenario
from fedchoir.data.text.amazon_reviews import CLASSES, DOMAINS, read_reviews
from fedchoir.utils.errors import UsageError


def review(domain: str, number: int) -> dict[str, str]:
    return {"label": CLASSES[number % 2], "title": f"title {number}", "text": f"{domain} review {number}\nends"}


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    (tmp_path / "amazon_reviews").mkdir()
    for domain in DOMAINS:
        rows = "".join(json.dumps(review(domain, i)) + "\n" for i in [*range(40), 0, 1])  # two reviews occur twice
        (tmp_path / "amazon_reviews" / f"{domain}.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    return tmp_path


def test_domains_and_public_set_are_disjoint(reviews: Path) -> None:
    scenario = load_scenario("amazon-reviews", root=reviews, options=DataOptions(max_length=8))
    assert [client.name for client in scenario.clients] == list(DOMAINS)
    assert scenario.classes == CLASSES
    public = load_public("amazon-reviews", like=scenario.clients[0].train, root=reviews)
    assert 30 <= len(public) <= 40
    assert public.samples.labels.eq(-1).all()
    hashes = set(public.samples.hashes())
    for client in scenario.clients:
        test = scenario.tests[client.name]
        assert hashes.isdisjoint(client.train.hashes())
        assert hashes.isdisjoint(test.hashes())
        assert set(test.hashes()).isdisjoint(client.train.hashes())
        assert len(client.train) + len(test) >= 30
        assert set(test.labels.tolist()) == {0, 1}


def test_the_authors_layout(reviews: Path, tmp_path: Path) -> None:
    expected, labels = read_reviews("dvd", reviews)
    folder = tmp_path / "other" / "sorted_data_acl" / "dvd"
    folder.mkdir(parents=True)
    for label in CLASSES:
        chosen = [review("dvd", i) for i in [*range(40), 0, 1] if review("dvd", i)["label"] == label]
        body = "".join(
            f"<review>\n<title>\n{r['title']}\n</title>\n<review_text>\n{r['text']}\n</review_text>\n</review>\n"
            for r in chosen
        )
        (folder / f"{label}.review").write_text(body, encoding="latin-1")
    found, found_labels = read_reviews("dvd", tmp_path / "other")
    assert sorted(found) == sorted(expected)
    assert sorted(found_labels) == sorted(labels)
    (folder / "positive.review").write_text("<review>no text</review>")
    with pytest.raises(UsageError, match=r"positive\.review: 0 texts and 0 titles found"):
        read_reviews("dvd", tmp_path / "other")


def test_a_missing_domain_is_one_line(tmp_path: Path) -> None:
    why = rf"no amazon_reviews/books\.jsonl\.gz or sorted_data_acl/books/ in the data root {tmp_path}.*get it: "
    with pytest.raises(UsageError, match=why):
        load_scenario("amazon-reviews", root=tmp_path)


def test_a_file_with_other_fields_is_one_line(reviews: Path) -> None:
    (reviews / "amazon_reviews" / "books.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a", "label": "neutral"}\n'))
    with pytest.raises(UsageError, match="record 1 has the label 'neutral'; wanted negative or positive"):
        read_reviews("books", reviews)
    (reviews / "amazon_reviews" / "books.jsonl.gz").write_bytes(gzip.compress(b'{"label": "positive"}\n'))
    with pytest.raises(UsageError, match="set text_column"):
        read_reviews("books", reviews)


REAL = Path(os.environ.get("FEDCHOIR_DATA", ""))


@pytest.mark.skipif(
    not (REAL / "amazon_reviews").is_dir(), reason="amazon_reviews is not in the data root FEDCHOIR_DATA"
)
def test_the_real_data_set() -> None:
    for domain in DOMAINS:
        texts, labels = read_reviews(domain, REAL)
        assert (len(texts), sum(labels)) == (2000, 1000)
        assert min(map(len, texts)) > 5
