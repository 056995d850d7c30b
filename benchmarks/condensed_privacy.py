"""What the condensed sets of finished Choir runs reveal, and Choir's accuracy against ε.

    python benchmarks/condensed_privacy.py audit RUN…
    python benchmarks/condensed_privacy.py epsilon --out runs/epsilon [--seeds 0 1] [--epsilons 1 2 4 8 16]

``audit`` attacks every client's set in the last checkpoint of a run (`condensation.audit`): AUC of membership by
the nearest synthetic sample and by class means under random networks, the distance of synthetic samples to private ones
relative to that between private ones, and the best match in dB with that of as many test samples. Of texts, the longest
run of tokens in common in place of dB, and the number of private texts that have the rarest sent token.

``epsilon`` runs Choir on digits-lite with `simple_cnn@16` at every client, once without noise and once for each ε at
δ = 1e-5, and SOLO with the same augmentation. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fedchoir import Experiment, run
from fedchoir.condensation.audit import Audit, Labelled, audit
from fedchoir.condensation.sample_space import decode, plain, unpack
from fedchoir.condensation.sets import join_sets
from fedchoir.core import checkpoint
from fedchoir.core.result import load_result
from fedchoir.data.samples import Samples
from fedchoir.data.scenario import load_scenario
from fedchoir.experiments.config import make_plan, read_experiment
from fedchoir.payload import Payload
from fedchoir.privacy.dp import epsilon

DELTA = 1e-5
MODEL = "simple_cnn@16"


def audits(folder: Path) -> Iterator[tuple[str, int, Audit]]:
    """The name, number of private samples and audit of every client of a run."""
    plan = make_plan(read_experiment(folder / "experiment.toml"))
    params: Any = plan.params
    scenario = load_scenario(plan.experiment.scenario, seed=plan.experiment.seed, options=params)
    last = checkpoint.latest(folder / "checkpoint")
    assert last is not None, f"{folder} has no checkpoint"
    kept = Payload(checkpoint.load(last, "server"))
    for k, client in enumerate(scenario.clients):
        made = join_sets([kept.under(f"set{k}")], scenario.inputs)
        labels = made["labels"].repeat_interleave(params.formation**2)
        samples = Labelled(unpack(decode(made["samples"], params.formation)), labels)
        private, unseen = (labelled(each, client.train) for each in (client.train, scenario.tests[client.domain]))
        classes = len(scenario.classes)
        yield client.name, len(client.train), audit(samples, private, unseen, scenario.inputs, classes, seed=0)


def labelled(samples: Samples, own: Samples) -> Labelled:
    return Labelled(plain(samples, torch.arange(len(samples)), own.transform), samples.labels)


def print_audits(folders: list[Path]) -> None:
    print(
        "run, client: samples; AUC nearest; AUC class means; distance; best match, that of test samples (dB, or tokens"
    )
    print("in a row); of texts, the fewest private ones with a sent token")
    for folder in folders:
        for name, count, found in audits(folder):
            rarest = "" if found.rarest is None else f"; {found.rarest}"
            print(
                f"{folder.name}, {name}: {count}; {found.nearest}; {found.embedded}; {found.distance:.2f}; "
                f"{found.best:.1f}, {found.chance:.1f}{rarest}"
            )


def noise_for(wanted: float) -> float:
    """σ of one Gaussian release at this ε, rounded up to four digits."""
    low, high = 0.05, 50.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(middle, 1.0, 1, DELTA) > wanted else (low, middle)
    return round(high + 5e-5, 4)


def print_curve(out: Path, seeds: list[int], wanted: list[float]) -> None:
    rows: dict[str, tuple[str, dict[str, Any]]] = {
        "solo": ("solo", {"private_augment": "affine-recolor"}),
        "no noise": ("choir", {"average": "never"}),
    }
    for limit in wanted:
        rows[f"ε = {limit:g}"] = ("choir", {"average": "never", "release_noise": noise_for(limit)})
    print("row, seed: noise; intra; inter; worst client's intra")
    for seed in seeds:
        for label, (method, settings) in rows.items():
            folder = out / f"{label.replace(' ', '-')}-seed{seed}"
            experiment = Experiment(
                method=method, scenario="digits-lite", models=(MODEL,), seed=seed, out=folder, device="cpu",
                settings={"pretrain_epochs": 8, **settings},
            )  # fmt: skip
            result = load_result(folder) if (folder / "result.json").is_file() else run(experiment)
            noise = settings.get("release_noise", 0)
            print(f"{label}, {seed}: {noise}; {result.intra_avg:.1f}; {result.inter_avg:.1f}; {min(result.intra):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("audit").add_argument("runs", nargs="+", type=Path)
    curve = commands.add_parser("epsilon")
    curve.add_argument("--out", type=Path, required=True)
    curve.add_argument("--seeds", nargs="+", type=int, default=[0])
    curve.add_argument("--epsilons", nargs="+", type=float, default=[1, 2, 4, 8, 16])
    given = parser.parse_args()
    if given.command == "audit":
        print_audits(given.runs)
    else:
        print_curve(given.out, given.seeds, given.epsilons)


if __name__ == "__main__":
    main()
