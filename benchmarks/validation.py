"""A validation split for choosing options: shared by the benchmarks that tune before they test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedchoir.data.splits import complement, stratified_sample


def write_validation(root: Path, folder: Path, name: str = "cifar10") -> Path:
    """A data root whose test set is a fifth of the training images; the real test images are not in it."""
    path = folder / f"{name}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with np.load(root / f"{name}.npz") as stored:
            x, y = stored["train_x"], stored["train_y"]
            names = {"label_names": stored["label_names"]} if "label_names" in stored.files else {}
        labels = torch.from_numpy(y.astype(np.int64))
        held = stratified_sample(labels, len(y) // 5, torch.Generator().manual_seed(0))
        kept = complement(held, len(y)).numpy()
        held_out = held.numpy()
        np.savez(path, train_x=x[kept], train_y=y[kept], test_x=x[held_out], test_y=y[held_out], **names)
    return folder
