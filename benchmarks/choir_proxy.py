"""The contribution of each part of Choir on small versions of the scenarios, for one CPU core, with FCCL+ to compare.

    python benchmarks/choir_proxy.py --data-root DATA --out runs/choir-proxy
    python benchmarks/choir_proxy.py --data-root DATA --out runs/choir-office --scenario office-caltech

The four real domains with four small models, fewer public images, epochs and rounds than the papers; Digits also has
fewer SVHN and SYN images, at 16×16. Choose options with ``--validation`` and other seeds: accuracy is then measured on
a fifth of the training images, which are not trained on, and the test images are not used. Finished runs are not
repeated.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedchoir import Experiment, Result, run
from fedchoir.core.result import load_result


class Proxy(NamedTuple):
    """A small version of a scenario: the files of its domains, models and settings."""

    files: tuple[str, ...]
    models: tuple[str, ...]
    settings: dict[str, Any]


DIGITS = Proxy(
    files=("mnist", "usps", "svhn", "syn"),
    models=("resnet10@16", "resnet12@16", "resnet12@12", "vgg9@8"),
    settings={
        "image_size": 16, "private": (150, 80, 3000, 1500), "local_epochs": (20, 30, 4, 4), "local_batch": 64,
        "public_size": 512, "public_batch": 128, "evaluate_every": 1000,
    },
)  # fmt: skip
OFFICE = Proxy(
    files=tuple(f"office_caltech_{domain}" for domain in ("amazon", "caltech10", "dslr", "webcam")),
    models=("vgg9@16", "resnet12@16", "resnet10@16", "resnet12@12"),
    settings={
        "local_epochs": (8, 8, 16, 12), "local_batch": 64, "public_size": 512, "public_batch": 128,
        "evaluate_every": 1000,
    },
)  # fmt: skip
PROXIES = {"digits": DIGITS, "office-caltech": OFFICE}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "solo": ("solo", {}),
    "fedmd": ("fedmd", {}),
    "fccl+": ("fccl+", {}),
    "fccl+, recolored": ("fccl+", {"private_augment": "recolor"}),
    "fccl+, affine": ("fccl+", {"private_augment": "affine"}),
    "fccl+, affine and recolored": ("fccl+", {"private_augment": "affine-recolor"}),
    "fedmd, affine and recolored": ("fedmd", {"private_augment": "affine-recolor"}),
    "choir-v1": ("choir-v1", {}),
    "choir: no affine augmentation": ("choir-v1", {"private_augment": "none"}),
    "choir: no recoloring": ("choir-v1", {"recolor": "none"}),
    "choir: styles exchanged": ("choir-v1", {"recolor": "exchanged"}),
    "choir: augmentation alone": ("choir-v1", {"use_fccm": False, "use_fisl": False}),
    "choir: with FNTD": ("choir-v1", {"use_fntd": True}),
    "choir: public images not recolored": ("choir-v1", {"public_recolor_share": 0.0}),
    "choir: three quarters recolored": ("choir-v1", {"recolor_share": 0.75}),
    "choir: recolored by the common augmentation": (
        "choir-v1",
        {"recolor": "none", "private_augment": "affine-recolor"},
    ),
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/choir-proxy"))
    parser.add_argument("--scenario", choices=list(PROXIES), default="digits")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", default="2,3,4")
    parser.add_argument("--variants", default=";".join(list(VARIANTS)[:9]), help="separated by semicolons")
    parser.add_argument("--tests", type=int, default=1000, help="test images of each domain, the first ones")
    parser.add_argument("--validation", action="store_true", help="evaluate on held-back training images")
    return parser.parse_args()


def prepare(o: argparse.Namespace) -> Path:
    """A data root with few test images, the first ones of each domain."""
    folder: Path = o.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROXIES[o.scenario].files:
        if not (folder / f"{name}.npz").exists():
            with np.load(o.data_root / f"{name}.npz") as stored:
                arrays = {key: stored[key] for key in stored.files}
            np.savez(folder / f"{name}.npz", **arrays | {key: arrays[key][: o.tests] for key in ("test_x", "test_y")})
    public = folder / "cifar100.npz"
    if not public.exists():
        public.symlink_to((o.data_root / "cifar100.npz").resolve())
    return folder


def run_variant(o: argparse.Namespace, root: Path, label: str, seed: int) -> Result:
    method, special = VARIANTS[label]
    proxy = PROXIES[o.scenario]
    kind = "validation" if o.validation else "test"
    split = {"test_split": "validation"} if o.validation else {}
    out = o.out / kind / f"{label.translate(str.maketrans(' :,', '-__'))}-seed{seed}"
    if (out / "result.json").exists():
        return load_result(out)
    return run(
        Experiment(
            method=method,
            scenario=o.scenario,
            public="cifar100",
            models=proxy.models,
            rounds=o.rounds,
            seed=seed,
            data_root=root,
            device="cpu",
            out=out,
            settings={**proxy.settings, **special, **split},
        )
    )


def main() -> None:
    o = options()
    root = prepare(o)
    found: dict[str, list[Result]] = {label: [] for label in o.variants.split(";")}
    for seed in map(int, o.seeds.split(",")):
        for label, results in found.items():
            results.append(result := run_variant(o, root, label, seed))
            print(f"{label}, seed {seed}: intra {result.intra_avg:.1f}, inter {result.inter_avg:.1f}", flush=True)
    print("\n| | intra | inter | inter of each seed | of each client |\n|---|---|---|---|---|")
    for label, results in found.items():
        intra, inter = [r.intra_avg for r in results], [r.inter_avg for r in results]
        each = " / ".join(f"{statistics.mean(column):.1f}" for column in zip(*(r.inter for r in results), strict=True))
        seeds = " / ".join(f"{value:.1f}" for value in inter)
        print(f"| {label} | {statistics.mean(intra):.1f} | {statistics.mean(inter):.1f} | {seeds} | {each} |")


if __name__ == "__main__":
    main()
