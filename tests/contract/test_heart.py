"""The four hospitals with four architectures: the methods of the promise run with their defaults."""

from pathlib import Path

import pytest

from fedchoir import Experiment, run
from fedchoir.data.tabular.heart import HOSPITALS
from fedchoir.utils.errors import UsageError

METHODS = ("solo", "fccl+", "fedmd", "feddf", "fml", "choir", "choir-v1", "fedavg", "fedprox", "moon", "fedproc")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_on_heart(name: str, tmp_path: Path) -> None:
    result = run(Experiment(method=name, scenario="heart", rounds=2, out=tmp_path / "run", device="cpu"))
    models = [client["model"] for client in result.clients]
    averaged = name in ("fedavg", "fedprox", "moon", "fedproc")
    assert models == (["mlp"] * 4 if averaged else ["logistic", "mlp", "res_mlp", "ft_transformer"])
    assert [client["name"] for client in result.clients] == list(HOSPITALS)
    assert result.intra_avg > 60
    assert all(value > 0 for row in result.accuracy for value in row)


def test_a_method_that_needs_a_feature_map_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"fbcl needs a feature map, and model '\w+' has none"):
        run(Experiment(method="fbcl", scenario="heart", rounds=1, out=tmp_path / "run", device="cpu"))
