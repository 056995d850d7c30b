from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fake_results import fake_result

from fedchoir.reporting.pareto import front, pareto
from fedchoir.reporting.run_groups import rows

Points = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda p: (float(p[0]), float(p[1]))), min_size=1)


@given(Points, st.sampled_from(["accuracy", "log_loss"]))
def test_no_point_beats_the_front_and_every_other_point_is_beaten(points: list[Any], metric: str) -> None:
    sign = 1 if metric == "accuracy" else -1
    best = front(points, metric)

    def beats(q: tuple[float, float], p: tuple[float, float]) -> bool:
        return q != p and sign * q[0] >= sign * p[0] and sign * q[1] >= sign * p[1]

    assert best
    assert [points[k] for k in best] == sorted(points[k] for k in best)
    for k, p in enumerate(points):
        assert any(beats(q, p) for q in points) == (k not in best)


def heterogeneous() -> list[Any]:
    values = {"solo": (60.0, 30.0), "fccl": (70.0, 40.0), "fedmd": (75.0, 35.0)}
    return [
        fake_result(method, seed=seed, intra=intra + seed, inter=inter + 2 * seed)
        for method, (intra, inter) in values.items()
        for seed in range(3)
    ]


def test_points_error_bars_and_bytes() -> None:
    made = rows(heterogeneous())
    found = pareto(made, made)
    assert found is not None
    points = {point["label"]: point for point in found["points"]}
    assert (points["fccl"]["intra"], points["fccl"]["intra_sd"], points["fccl"]["inter_sd"]) == (71.0, 1.0, 2.0)
    assert points["fccl"]["bytes"] == made[0].bytes_per_round
    assert [found["points"][k]["label"] for k in found["front"]] == ["fccl", "fedmd"]
    assert [made[point["row"]].label for point in found["points"]] == [point["label"] for point in found["points"]]


def test_a_missing_reference_is_named_with_its_command() -> None:
    made = rows(heterogeneous())
    found = pareto(made, made)
    assert found is not None
    assert found["note"] == (
        "reference row missing, one small FedAvg model: fedchoir run fedavg --scenario digits --models simple_cnn "
        "--rounds 40"
    )


def test_fedavg_of_one_model_on_the_same_data_is_the_reference() -> None:
    small = fake_result("fedavg", models=("simple_cnn@16",), intra=65.0, inter=65.0)
    other = fake_result("fedavg", models=("simple_cnn@16",), rounds=5)
    every = rows([*heterogeneous(), small, other])
    group = next(row.group for row in every if row.method == "fccl")
    found = pareto([row for row in every if row.group == group], every)
    assert found is not None
    (reference,) = [point for point in found["points"] if point["row"] is None]
    assert (reference["label"], reference["inter"], reference["inter_sd"]) == ("fedavg (simple_cnn@16)", 65.0, None)
    assert found["note"] == ""
    assert found["points"].index(reference) in found["front"]


def test_own_data_has_no_known_small_model() -> None:
    result = fake_result("fccl", extras={"scenario": "my data/"})
    found = pareto(rows([result]), rows([result]))
    assert found is not None
    assert "--scenario 'my data/' --models MODEL" in found["note"]


def test_label_skew_has_no_such_plot() -> None:
    made = rows([fake_result("fedavg", "cifar10")])
    assert pareto(made, made) is None
