"""Series as a modality: a user's folder, and public sets."""

from pathlib import Path

import numpy as np
import pytest

from fedchoir.data.options import DataOptions
from fedchoir.data.public import load_public
from fedchoir.data.registry import info
from fedchoir.data.scenario import load_scenario
from fedchoir.utils.errors import UsageError


@pytest.fixture
def sensors(tmp_path: Path) -> Path:
    """Two clients with two channels of eight steps, in different units."""
    rng = np.random.default_rng(0)
    for name, unit in (("a", 1.0), ("b", 100.0)):
        np.savez(tmp_path / f"{name}.npz", x=unit * rng.normal(size=(30, 2, 8)), y=np.arange(30) % 3)
    return tmp_path


def test_a_folder_of_series(sensors: Path) -> None:
    scenario = load_scenario(str(sensors))
    assert (scenario.inputs.modality, scenario.inputs.shape) == ("series", (2, 8))
    first, second = (client.train for client in scenario.clients)
    assert (len(first), len(scenario.tests["a"])) == (24, 6)
    for samples in (first, second):
        assert samples.transform is not None
        assert abs(float(samples.transform(samples.inputs).std()) - 1) < 0.05
    assert scenario.tests["a"].transform is None
    known = info(str(sensors))
    assert (known.modality, known.public, known.models[0]) == ("series", "noise", "cnn1d")


def test_validation_sets_are_scaled_by_the_client(sensors: Path) -> None:
    scenario = load_scenario(str(sensors), options=DataOptions(test_split="validation"))
    assert all(test.transform is None for test in scenario.tests.values())


def test_public_sets(sensors: Path, tmp_path: Path) -> None:
    like = load_scenario(str(sensors)).clients[0].train
    assert len(load_public("noise", like=like, size=50)) == 50
    np.savez(tmp_path / "p.npz", x=np.ones((7, 2, 8)))
    public = load_public(str(tmp_path / "p.npz"), like=like, size=5)
    assert len(public) == 5
    assert public.samples.transform is None
    np.savez(tmp_path / "p.npz", x=np.ones((7, 2, 9)))
    with pytest.raises(UsageError, match=r"has series of 2×9 \(channels×time\), but the clients' are 2×8"):
        load_public(str(tmp_path / "p.npz"), like=like)
    with pytest.raises(UsageError, match=r"'photos' is neither one of noise, har-people nor an \.npz file of series"):
        load_public("photos", like=like)


def test_clients_of_another_shape_are_refused(sensors: Path) -> None:
    np.savez(sensors / "c.npz", x=np.random.default_rng(0).normal(size=(30, 3, 8)), y=np.arange(30) % 3)
    with pytest.raises(UsageError, match="a has samples of series 2×8 and c of series 3×8"):
        load_scenario(str(sensors))
    np.savez(sensors / "c.npz", x=np.zeros((30, 8, 8), np.uint8), y=np.arange(30) % 3)
    with pytest.raises(UsageError, match="c has image samples and b has series samples"):
        load_scenario(str(sensors))
