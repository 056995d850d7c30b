from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev

import pytest
from tests.fake_results import fake_result

from fedchoir.core.result import Result
from fedchoir.reporting.run_groups import delta, group_of, grouped, interactions, rounds_to_target, rows


def three_methods() -> list[Result]:
    plus = [fake_result("fccl+", seed=s, intra=90.0 + s, inter=48.0 + 2 * s) for s in range(3)]
    return [fake_result("solo", intra=73.0, inter=25.0), *plus, fake_result("fedmd", intra=80.0, inter=26.0)]


def test_runs_that_differ_only_in_their_seed_form_one_row() -> None:
    made = rows(three_methods())
    assert [(row.label, len(row.results)) for row in made] == [("solo", 1), ("fccl+", 3), ("fedmd", 1)]
    inter = made[1].number("inter")
    assert inter is not None
    assert (inter.mean, inter.sd) == (mean([48, 50, 52]), stdev([48, 50, 52]))


def test_labels_name_what_differs() -> None:
    others = [
        fake_result("fccl+", settings={"omega": 1}), fake_result("fccl+", profile="paper"),
        fake_result("fccl+", seed=7),
    ]  # fmt: skip
    labels = [row.label for row in rows([*three_methods(), *others])]
    assert sorted(labels) == ["fccl+ fixed omega=1.0", "fccl+ fixed omega=3.0", "fccl+ paper", "fedmd", "solo"]


def test_runs_with_other_data_models_or_rounds_are_not_compared() -> None:
    results = [
        fake_result("fedmd"), fake_result("fedmd", models=("resnet12",)), fake_result("fedmd", rounds=3),
        fake_result("fedmd", "office31"), fake_result("fedmd", settings={"private": (0.01,)}),
        fake_result("fedmd", settings={"label_noise": 0.2}), fake_result("fedavg", "cifar10", settings={"beta": 0.1}),
        fake_result("fedavg", "cifar10", settings={"fraction": 0.5}),
    ]  # fmt: skip
    groups = [group for group, _ in grouped(rows(results))]
    assert len(groups) == len(results)
    assert any("beta=0.1" in group for group in groups)
    assert any("fraction=0.5" in group for group in groups)


def test_delta_is_to_the_solo_row_with_the_shortest_label() -> None:
    augmented = fake_result("solo", intra=80.0, inter=40.0, settings={"private_augment": "recolor"})
    labelled = [r.model_copy(update={"label": r.method}) for r in three_methods()]
    made = rows([augmented.model_copy(update={"label": "solo, recolored"}), *labelled])
    deltas = {row.label: delta(row, made, "inter") for row in made}
    assert deltas == {"solo, recolored": None, "solo": None, "fccl+": 25.0, "fedmd": 1.0}


def test_clients_are_averaged_over_seeds() -> None:
    row = next(row for row in rows(three_methods()) if row.method == "fccl+")
    assert [number.mean for number in row.clients("inter")] == [48.5, 49.5, 50.5, 51.5]
    one, two = fake_result("fccl+"), fake_result("fccl+", seed=1, extras={"intra": [1.0]})
    assert rows([one, two])[0].clients("intra") == []


def test_rounds_to_a_target_average_over_seeds(tmp_path: Path) -> None:
    for seed, curve in enumerate(([50, 70, 80], [60, 76, 77])):
        (tmp_path / f"seed{seed}").mkdir()
        events = [{"round": -1, "intra_avg": None}, *({"round": r, "intra_avg": v} for r, v in enumerate(curve))]
        (tmp_path / f"seed{seed}" / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    results = [fake_result("fedavg", seed=s, extras={"folder": str(tmp_path / f"seed{s}")}) for s in range(2)]
    (row,) = rows(results)
    assert row.rounds_to(76) == 2.5
    assert row.rounds_to(79) is None


@pytest.mark.parametrize(("target", "expected"), [(5, 1), (50, 2), (50.1, 5), (70, 5), (71, None)])
def test_the_first_round_at_or_above_the_target_counts(target: float, expected: int | None) -> None:
    events = [{"round": r, "intra_avg": v} for r, v in enumerate([10.0, 50.0, None, 49.0, 70.0])]
    assert rounds_to_target(events, target) == expected


def test_a_title_has_the_names_of_columns() -> None:
    columns = [{"name": "age", "kind": "numeric", "min": 20.0}, {"name": "sex", "kind": "boolean", "min": None}]
    result = fake_result("fedmd").model_copy(update={"settings": {"columns": columns, "classes": ["ill", "well"]}})
    ((group, _),) = grouped(rows([result]))
    assert group.endswith(" · classes=ill,well · columns=age,sex")


def test_runs_whose_rounds_count_interactions_are_in_the_group_of_runs_with_as_many_rounds() -> None:
    """FedAvg with 100 rounds against 50 averagings with an exchange each."""
    fedavg = fake_result("fedavg", "cifar10", rounds=100, settings={"clients": 10})
    settings = {"clients": 10, "rounds_unit": "interaction"}
    fedct = fake_result("fedct", "cifar10", rounds=100, settings=settings)
    assert fedct.rounds == 50
    other = fake_result("fedct", "cifar10", rounds=50, settings={"clients": 10})
    assert group_of(fedavg) == group_of(fedct) != group_of(other)
    assert interactions(fedavg) == 1
    assert interactions(fedct) == 2
