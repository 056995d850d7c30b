"""UCI HAR: people, recordings, and the layouts in which it is stored."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedchoir.data.options import DataOptions
from fedchoir.data.public import load_public
from fedchoir.data.scenario import load_scenario
from fedchoir.data.series.har import CLASSES, Windows, find_recordings, load_group, public_windows, read_har
from fedchoir.utils.errors import UsageError


def record(rng: np.random.Generator, windows: int) -> np.ndarray:
    """Overlapping windows of one recording: smooth signals of nine channels."""
    steps = rng.normal(size=(9, 64 * (windows + 1))).cumsum(axis=1)
    return np.stack([steps[:, 64 * i : 64 * i + 128] for i in range(windows)]).astype(np.float16)


def make_har(people: int = 30) -> dict[str, np.ndarray]:
    """A small data set in the layout of har.npz: four recordings of three windows per person and activity."""
    rng = np.random.default_rng(3)
    x, y, user = [], [], []
    for person in range(people):
        for activity in range(6):
            for _ in range(4):
                x.append(record(rng, 3) + 20 * activity)
                y += [activity] * 3
                user += [person] * 3
    order = rng.permutation(len(y))
    return {"x": np.concatenate(x)[order], "y": np.array(y)[order], "user": np.array(user, dtype=np.int16)[order]}


@pytest.fixture(scope="session")
def har_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("har")
    np.savez(root / "har.npz", **make_har())
    return root


def test_people_form_the_clients_and_the_public_set(har_root: Path) -> None:
    scenario = load_scenario("har", root=har_root)
    assert [client.name for client in scenario.clients] == [f"people-{i}-{i + 4}" for i in (1, 6, 11, 16, 21)]
    assert scenario.classes == CLASSES
    assert scenario.inputs.shape == (9, 128)
    assert all(len(client.train) == 5 * 6 * 9 for client in scenario.clients)
    assert all(len(test) == 5 * 6 * 3 for test in scenario.tests.values())
    public = load_public("har-people", like=scenario.clients[0].train, root=har_root)
    assert len(public) == 5 * 6 * 12
    known = {h for client in scenario.clients for h in client.train.hashes()}
    known |= {h for test in scenario.tests.values() for h in test.hashes()}
    assert known.isdisjoint(public.samples.hashes())
    assert public.samples.transform is None
    one = load_scenario("har-people", root=har_root, options=DataOptions(private=(20,)))
    assert len(one.clients) == 25
    assert {len(client.train) for client in one.clients} == {20}


def test_no_test_window_overlaps_a_training_window(har_root: Path) -> None:
    domain = load_group(read_har(har_root), "a", range(1, 6))
    halves = [{half.numpy().tobytes() for window in part.inputs for half in (window[:, :64], window[:, 64:])}
              for part in (domain.train, domain.test)]  # fmt: skip
    assert len(domain.test)
    assert halves[0].isdisjoint(halves[1])


def test_recordings_are_found_in_any_order() -> None:
    rng = np.random.default_rng(0)
    series = np.concatenate([record(rng, n) for n in (5, 1, 3)])
    truth = np.repeat([0, 1, 2], (5, 1, 3))
    order = rng.permutation(len(truth))
    found = find_recordings(series[order])
    assert len(set(zip(found.tolist(), truth[order].tolist(), strict=True))) == 3
    assert len(set(found.tolist())) == 3


def test_an_array_in_the_wrong_order_is_read_right_with_a_note(har_root: Path, tmp_path: Path) -> None:
    right = make_har(2)
    by_step = right["x"].transpose(0, 2, 1).copy()
    np.savez(tmp_path / "har.npz", **{**right, "x": by_step.reshape(right["x"].shape)})
    read = read_har(tmp_path)
    assert np.array_equal(read.series, right["x"].astype(np.float32))
    assert "N×128×9" in read.notes[0]
    np.savez(tmp_path / "har.npz", **{**right, "x": by_step})
    assert np.array_equal(read_har(tmp_path).series, read.series)
    assert read_har(har_root).notes == ()


def test_the_authors_folder(tmp_path: Path) -> None:
    arrays = make_har(2)
    for split, person in (("train", 0), ("test", 1)):
        folder = tmp_path / "UCI HAR Dataset" / split
        (folder / "Inertial Signals").mkdir(parents=True)
        chosen = arrays["user"] == person
        names = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
        for channel, name in enumerate(names):
            np.savetxt(folder / "Inertial Signals" / f"{name}_{split}.txt", arrays["x"][chosen, channel], fmt=" %.8e")
        np.savetxt(folder / f"y_{split}.txt", arrays["y"][chosen] + 1, fmt="%d")
        np.savetxt(folder / f"subject_{split}.txt", arrays["user"][chosen] + 1, fmt="%d")
    read = read_har(tmp_path)
    order = np.argsort(arrays["user"], kind="stable")
    assert np.array_equal(read.series, arrays["x"][order].astype(np.float32))
    assert np.array_equal(read.activities, arrays["y"][order])
    assert np.array_equal(read.people, arrays["user"][order] + 1)
    (tmp_path / "UCI HAR Dataset" / "test" / "y_test.txt").unlink()
    with pytest.raises(UsageError, match=r"y_test\.txt"):
        read_har(tmp_path)


def test_a_missing_or_damaged_data_set_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=rf"no har.npz or UCI HAR Dataset/ in the data root {tmp_path}.*get it: UCI HAR"
    ):
        read_har(tmp_path)
    np.savez(tmp_path / "har.npz", x=np.zeros((3, 9, 128)), y=np.zeros(3))
    with pytest.raises(UsageError, match="no array 'user'"):
        read_har(tmp_path)
    np.savez(tmp_path / "har.npz", x=np.zeros((3, 9, 100)), y=np.zeros(3), user=np.zeros(3))
    with pytest.raises(UsageError, match=r"x is \(3, 9, 100\)"):
        read_har(tmp_path)


def test_someone_with_one_recording_is_trained_on() -> None:
    windows = Windows(
        record(np.random.default_rng(0), 4).astype(np.float32), np.zeros(4, np.int64), np.ones(4, np.int64)
    )
    assert (len(load_group(windows, "a", [1]).train), len(public_windows(windows))) == (4, 0)


REAL = Path(os.environ.get("FEDCHOIR_DATA", "")) / "har.npz"


@pytest.mark.skipif(not REAL.is_file(), reason="har.npz is not in the data root FEDCHOIR_DATA")
def test_the_real_data_set() -> None:
    windows = read_har(REAL.parent)
    assert windows.series.shape == (10299, 9, 128)
    assert len(set(windows.people)) == 30
    gravity = windows.series[:, 6].mean()  # total acceleration along the body, in g
    assert 0.7 < gravity < 0.9
    assert len(set(find_recordings(windows.series))) < 1000
