"""UCI HAR: 30 people with a smartphone on the waist, six activities (Anguita et al., ESANN 2013).

A sample is a window of 128 steps (2.56 s) of nine channels: body acceleration, angular velocity and total acceleration.
Consecutive windows of a recording overlap by half. So a test set consists of whole recordings: a window that shares a
half with a training window would test on training data. People 26 to 30 have no client; their windows, without labels,
are the public set.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fedchoir.data.domain import SPLIT_SEED, Domain
from fedchoir.data.image.files import data_root, find_folder, find_npz
from fedchoir.data.npz import read_arrays
from fedchoir.data.samples import unlabeled
from fedchoir.data.series.series_set import SeriesSet
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import derive

CLASSES = ("walking", "walking_upstairs", "walking_downstairs", "sitting", "standing", "laying")
PUBLIC_PEOPLE = range(26, 31)
GET = (
    "UCI HAR (archive.ics.uci.edu, data set 240), unpacked as 'UCI HAR Dataset/', or har.npz with x N×9×128, y 0…5 and "
    "user 0…29"
)
HELD_OUT = 0.25  # share of the recordings of every person and activity

_CHANNELS, _STEPS = 9, 128
_SIGNALS = [f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]


@dataclass(frozen=True)
class Windows:
    """All windows: float32 N×9×128, their activities (N) and people (N, from 1)."""

    series: np.ndarray
    activities: np.ndarray
    people: np.ndarray
    notes: tuple[str, ...] = ()


def load_group(windows: Windows, name: str, people: Iterable[int]) -> Domain:
    """The windows of some people. A quarter of the recordings of each person and activity is held out for testing."""
    chosen = np.flatnonzero(np.isin(windows.people, list(people)))
    series = torch.from_numpy(windows.series[chosen])
    samples = SeriesSet(series, torch.from_numpy(windows.activities[chosen]))
    held_out = torch.from_numpy(_held_out(windows, chosen))
    test = samples.subset(held_out).for_every_client()
    return Domain(name, samples.subset(~held_out), test, CLASSES, own_test=False)


def public_windows(windows: Windows) -> SeriesSet:
    """The windows of the people who are no clients, without labels."""
    series = torch.from_numpy(windows.series[np.isin(windows.people, list(PUBLIC_PEOPLE))])
    return SeriesSet(series, unlabeled(len(series)), scaling="client")


def _held_out(windows: Windows, chosen: np.ndarray) -> np.ndarray:
    """Mask of the chosen windows: True where the recording is held out."""
    import pandas as pd  # not above: it takes long to import

    recordings = find_recordings(windows.series[chosen])
    groups = pd.DataFrame(
        {"person": windows.people[chosen], "activity": windows.activities[chosen], "recording": recordings}
    )
    held_out: set[int] = set()
    for (person, activity), rows in groups.groupby(["person", "activity"]):
        found = rows["recording"].unique()  # in the order of the file
        count = max(1, round(HELD_OUT * len(found))) if len(found) > 1 else 0
        rng = np.random.default_rng(derive(SPLIT_SEED, "recordings", int(person), int(activity)))
        held_out.update(rng.permutation(found)[:count].tolist())
    return np.isin(recordings, list(held_out))


def find_recordings(series: np.ndarray) -> np.ndarray:
    """The number of each window's recording: windows belong together where the end of one is the start of another."""
    half = series.shape[2] // 2
    starts = {window[:, :half].tobytes(): i for i, window in enumerate(series)}
    successor = np.array([starts.get(window[:, half:].tobytes(), -1) for window in series])
    followed = np.flatnonzero(successor >= 0)
    links = coo_array((np.ones(len(followed)), (followed, successor[followed])), shape=(len(series),) * 2)
    return np.asarray(connected_components(links, directed=False)[1])


def read_har(root: Path | None) -> Windows:
    """The data set from ``har.npz`` or the folder of its authors in the data root."""
    folder = data_root(root)
    if not (place := found(root)):
        raise UsageError(
            f"har: no har.npz or UCI HAR Dataset/ in the data root {folder} (--data-root or FEDCHOIR_DATA); "
            f"get it: {GET}"
        )
    return _from_npz(folder / place) if place.endswith(".npz") else _from_folder(folder / place)


def found(root: Path | None) -> str:
    """The path of the data set relative to the data root; empty if it is missing."""
    folder = data_root(root)
    place = find_npz(folder, "har") or find_folder(folder, "UCI HAR Dataset")
    return "" if place is None else str(place.relative_to(folder))


def _from_npz(path: Path) -> Windows:
    arrays = read_arrays(path)
    missing = [key for key in ("x", "y", "user") if key not in arrays]
    if missing:
        raise UsageError(f"{path}: no array {missing[0]!r}; wanted x N×9×128, y 0…5 and user 0…29")
    x, y, user = (arrays[key] for key in ("x", "y", "user"))
    if x.shape[1:] not in ((_CHANNELS, _STEPS), (_STEPS, _CHANNELS)) or not len(x) == len(y) == len(user):
        raise UsageError(f"{path}: x is {x.shape}, y {y.shape}, user {user.shape}; wanted N×9×128, N and N")
    by_step = x.reshape(len(x), _STEPS, _CHANNELS).transpose(0, 2, 1)
    notes: tuple[str, ...] = ()
    if x.shape[2] == _CHANNELS:
        x = by_step
    elif roughness(by_step) < roughness(x):  # neighbouring values are alike in time, not across channels
        x = by_step
        notes = (f"har: {path.name} has the shape N×9×128 but its values are in the order N×128×9; read as such",)
    return Windows(np.ascontiguousarray(x, dtype=np.float32), y.astype(np.int64), user.astype(np.int64) + 1, notes)


def roughness(series: np.ndarray) -> float:
    """The mean step from one value in time to the next, relative to the variation: small for real signals."""
    series = series[:1000].astype(np.float32)
    return float(np.abs(np.diff(series, axis=2)).mean() / (series.std() + 1e-12))


def _from_folder(folder: Path) -> Windows:
    """The authors' layout: a text file per channel, split by people into train/ and test/; that split is not used."""
    splits = []
    for split in ("train", "test"):
        signals = [
            _numbers(folder / split / "Inertial Signals" / f"{signal}_{split}.txt", np.float32) for signal in _SIGNALS
        ]
        labels, people = (_numbers(folder / split / f"{name}_{split}.txt", np.int64)[:, 0] for name in ("y", "subject"))
        splits.append((np.stack(signals, axis=1), labels - 1, people))
    series, labels, people = (np.concatenate(columns) for columns in zip(*splits, strict=True))
    return Windows(series, labels, people)


def _numbers(path: Path, dtype: type) -> np.ndarray:
    import pandas as pd

    try:
        return pd.read_csv(path, sep=r"\s+", header=None).to_numpy(dtype=dtype)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a readable table of numbers ({error})") from None
