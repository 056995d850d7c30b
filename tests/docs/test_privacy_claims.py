"""What the documentation claims about privacy and security: the tests that it names exist, its tables agree with the
code, and the output that it shows is what the commands print.

``python -m tests.docs.test_privacy_claims`` prints the table of methods as it should be in docs/privacy.md.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import FOR_METHOD, SMALL
from tests.docs.markdown_tables import Table, tables_of
from typer.testing import CliRunner

from fedchoir import methods
from fedchoir.cli.app import app
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.deploy.config import FederationFile, SiteEntry
from fedchoir.deploy.inspection import sent_each_round
from fedchoir.deploy.policy import Policy
from fedchoir.methods.base import Method
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

ROOT = Path(__file__).parents[2]
PRIVACY, DEPLOY = ROOT / "docs" / "privacy.md", ROOT / "docs" / "deploy.md"
ATTACKS = "tests/core/test_secure_attacks.py"
NAMED = re.compile(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`")
FINDINGS = 26
UNTESTED = "no test"


def table(page: Path, first: str) -> Table:
    """The one table of a page whose first column has this title."""
    found = [each for each in tables_of(page) if each.header[0] == first]
    assert len(found) == 1, f"{page.name} has {len(found)} tables that begin with {first!r}"
    return found[0]


# -- claims and findings name tests ------------------------------------------------------------------------------------


@cache
def functions_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def named_tests(text: str, default: str = "") -> list[tuple[str, str]]:
    """(file, function) of every test that a text names; a test without a file is in the default one."""
    return [(file or default, test) for file, test in NAMED.findall(text)]


def missing(named: list[tuple[str, str]]) -> list[str]:
    return [f"{file}::{test}" for file, test in named if not (ROOT / file).is_file() or test not in functions_in(file)]


def test_every_claim_names_tests_that_exist() -> None:
    claims = table(PRIVACY, "claim")
    assert len(claims.rows) > 20
    assert [claim for claim, tests in claims.rows if not NAMED.search(tests)] == []
    assert missing(named_tests(" ".join(claims.column("test")), ATTACKS)) == []


def test_every_attack_on_secure_sums_is_named_in_a_claim() -> None:
    named = named_tests(" ".join(table(PRIVACY, "claim").column("test")), ATTACKS)
    attacks = {name for name in functions_in(ATTACKS) if name.startswith("test_")}
    assert attacks <= {test for file, test in named if file == ATTACKS}


def test_every_finding_of_the_review_names_a_test_or_is_open() -> None:
    findings = table(PRIVACY, "finding")
    assert [int(row[0].split(".")[0]) for row in findings.rows] == list(range(1, FINDINGS + 1))
    tests = findings.column("test")
    assert [cell for cell in tests if not NAMED.search(cell) and UNTESTED not in cell] == []
    assert missing(named_tests(" ".join(tests))) == []


def test_a_test_that_does_not_exist_is_found() -> None:
    named = named_tests(f"`{ATTACKS}::test_nothing`, `tests/nowhere.py::test_x`, `test_y`", "tests/z.py")
    assert missing(named) == [f"{ATTACKS}::test_nothing", "tests/nowhere.py::test_x", "tests/z.py::test_y"]


# -- the table of methods ----------------------------------------------------------------------------------------------

HEADER = ("method", "payloads", "of these, from private samples directly", "with `dp_noise`", "with secure sums")
ALIKE = ("resnet10@4",) * 3
DIFFERENT = (("resnet10@4", "simple_cnn@4", "simple_cnn@4"), ("resnet10@4", "resnet10@8", "resnet10@8"))
OPTIONS: tuple[dict[str, Any], ...] = (
    {"recolor": "exchanged"}, {"shared_model": "simple_cnn@4"}, {"foa": True}, {"pretrain_epochs": 1},
)  # fmt: skip
"""Options with which a method sends something else than without them."""
OF_THE_MODEL = {"head", "update", "sender"}
"""Names of payloads that are weights, or nothing about samples, though their declaration is of single tensors."""
UNDECLARED = {"weights", "owned", "prototypes", "head"}
"""Names that a class may declare in a function that it inherits and never uses."""


def spec_of(models: tuple[str, ...]) -> FederationSpec:
    clients = tuple(ClientInfo(f"site-{k}", model, 100, 1, "own") for k, model in enumerate(models))
    return FederationSpec(tuple("abcd"), clients, rounds=2, seed=0, public_size=40, inputs=InputSpec.image(16))


def built(name: str, models: tuple[str, ...], **options: Any) -> Method | None:
    """The method with small settings; None where it refuses these models or options."""
    cls = methods.get(name)
    try:
        return cls(cls.Params(**{**SMALL, **FOR_METHOD.get(name, {}), **options}), spec_of(models))
    except UsageError:
        return None


def payloads(method: Method | None) -> set[tuple[str, str]]:
    """Names of everything that a client sends, and of which kind each is."""
    sent = [one for each in sent_each_round(method) for one in each] if method is not None else []
    return {(one.name.partition("/")[0], one.kind) for one in sent}


def variants(name: str) -> Iterator[dict[str, Any]]:
    """Options that the method has and that are not its defaults."""
    fields = methods.get(name).Params.model_fields
    for option in OPTIONS:
        ((key, value),) = option.items()
        if key in fields and fields[key].default != value and key not in FOR_METHOD.get(name, {}):
            yield option


def written(option: Mapping[str, Any]) -> str:
    ((key, value),) = option.items()
    return f"`{key}`" if key in ("shared_model", "pretrain_epochs") else f"`{key} = {toml(value)}`"


def toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'


def quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{each}`" for each in sorted(set(names)))


def names_of(sent: Iterable[tuple[str, str]]) -> set[str]:
    return {name for name, _ in sent}


@cache
def row(name: str) -> tuple[str, ...]:
    """The row of a method, from its declarations."""
    cls = methods.get(name)
    different = next((m for models in DIFFERENT if (m := built(name, models))), None)
    alike = built(name, ALIKE)
    usual = payloads(different or alike)
    everything, cells = set(usual), [quoted(names_of(usual)) or "none"]
    if more := payloads(alike) - everything:
        everything |= more
        cells.append(f"{quoted(names_of(more))} where all models are alike")
    refusals = []
    for option in variants(name):
        changed = built(name, DIFFERENT[0], **option) or built(name, ALIKE, **option)
        if more := payloads(changed) - everything:
            everything |= more
            cells.append(f"{quoted(names_of(more))} with {written(option)}")
        if changed is not None and cls.requires_individual_payloads(changed.params):
            refusals.append(f"refused with {written(option)}")
    direct = {each for each, kind in everything if kind.endswith(("statistics", "synthetic samples"))} - OF_THE_MODEL
    assert direct <= names_of(everything)
    params = (different or alike).params  # type: ignore[union-attr]
    secure = "; ".join(["sum" if usual else "nothing is sent", *refusals])
    secure = "refused" if cls.requires_individual_payloads(params) else secure
    dp = "refused" if cls.dp_obstacle(params) else "accounted"
    return f"`{name}`", "; ".join(cells), quoted(direct) or "none", dp, secure


def test_the_table_of_methods_is_what_the_methods_declare() -> None:
    found = {each[0]: tuple(each) for each in table(PRIVACY, "method").rows}
    expected = {f"`{name}`": row(name) for name in methods.registry()}
    wrong = "\n".join(line(cells) for name, cells in expected.items() if found.get(name) != cells)
    assert not wrong, f"rows should be (python -m tests.docs.test_privacy_claims prints all):\n{wrong}"
    assert set(found) == set(expected)
    assert table(PRIVACY, "method").header == list(HEADER)


@pytest.mark.parametrize("name", sorted(methods.registry()))
def test_with_noise_nothing_leaves_that_is_not_accounted(name: str) -> None:
    """A method that runs with noise sends nothing but weights and outputs on public samples."""
    *_, direct, dp, _ = row(name)
    assert dp == "refused" or direct == "none"
    assert (dp == "refused") == (built(name, ALIKE, dp_noise=1.0) is None and noisy(name) is None)


def noisy(name: str) -> Method | None:
    return next((m for models in DIFFERENT if (m := built(name, models, dp_noise=1.0))), None)


def test_without_averaging_equal_models_send_what_different_ones_do() -> None:
    """What docs/privacy.md advises: a server that claims that all models are alike then gets no weights."""
    names = [name for name in methods.registry() if "where all models are alike" in row(name)[1]]
    assert [n for n in names if payloads(built(n, ALIKE, average="never")) != payloads(built(n, DIFFERENT[0]))] == []
    assert len(names) > 5


@pytest.mark.parametrize("name", sorted(methods.registry()))
def test_no_declared_payload_is_missing_in_the_table(name: str) -> None:
    """A payload that is sent only with an option is declared all the same."""
    cls, listed = methods.get(name), set(re.findall(r"`(\w+)`", row(name)[1]))
    declared = {
        field.partition("/")[0]
        for function in (getattr(cls, attribute, None) for attribute in dir(cls))
        if isinstance(getattr(function, "__sends__", None), dict)
        for field in function.__sends__
    }
    assert declared - listed <= UNDECLARED


# -- tables and output of docs/deploy.md -------------------------------------------------------------------------------


def default_of(model: type[Any], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    if field.default is None or field.default_factory is not None or field.default in ({}, ()):
        return "–"
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


@pytest.mark.parametrize(
    ("column", "model"), [("policy", Policy), ("federation file", FederationFile), ("site", SiteEntry)]
)
def test_every_field_is_in_a_table_with_its_default(column: str, model: type[Any]) -> None:
    rows = {cells[0].strip("`"): cells[1] for cells in table(DEPLOY, column).rows}
    assert rows == {name: default_of(model, name) for name in model.model_fields}


def code(page: Path, start: str) -> str:
    """The code block whose content begins like this."""
    (found,) = re.findall(rf"^```\w*\n({re.escape(start)}.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return str(found)


def test_the_output_of_show_is_that_of_the_federation_on_the_page(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(code(DEPLOY, 'method = "fccl+"\npublic = "photos"            #'))
    tomllib.loads(file.read_text())
    done = CliRunner().invoke(app, ["federation", "show", str(file)])
    assert done.exit_code == 0, done.output
    assert done.output.strip() == code(DEPLOY, "fccl+, 10 rounds").strip()


def line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print("\n".join([line(HEADER), "|---" * len(HEADER) + "|", *map(line, map(row, methods.registry()))]))
