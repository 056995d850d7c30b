"""Does cross-training help under label skew? FedAvg, FedExg, PGCT and FedCT on a CIFAR-10 subset, β = 0.1, 10 clients.

    python benchmarks/fedct_bar.py --data-root DATA --out runs/fedct-bar --jobs 6

Two stages, each of many independent runs that share the device; what is finished is not run again. First options are
chosen on a validation split: a fifth of the training images, which no run of that stage trains on, and other seeds.
Then every method runs on the real split with seeds 0, 1 and 2. All take the same number of gradient steps a round:
a method that exchanges models trains half of the epochs before the exchange and half after it. Because an exchange
costs as much communication as an averaging, FedAvg also runs with twice the rounds of half the epochs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedchoir import Experiment, run
from fedchoir.analysis.rounds_to_target import rounds_to_target
from fedchoir.data.splits import complement, stratified_sample
from fedchoir.federation.result import load_result, read_events

RATES = (0.01, 0.03, 0.1)
FEDCT = (  # around the middle of the paper's grids, one option at a time
    {},
    {"kappa": 0.5},
    {"kappa": 2.0},
    {"kappa": 5.0},
    {"tau2": 0.05},
    {"tau2": 0.05, "kappa": 0.5},
    {"eta": 0.01},
    {"eta": 0.5},
    {"lambda_hy": 0.5},
    {"lambda_mix": 0.1},
)
PGCT = ({}, {"kappa": 0.5}, {"kappa": 2.0}, {"tau2": 0.05, "kappa": 0.5})


@dataclass(frozen=True)
class Job:
    """One run: a label for the table, and what differs from the others."""

    label: str
    method: str
    seed: int
    data_root: str
    rounds: int
    settings: dict[str, Any] = field(hash=False)
    model: str = "resnet18@16"
    device: str = "auto"
    precision: str = "tf32"

    def folder(self, out: Path) -> Path:
        options = "-".join(f"{k}={v}" for k, v in sorted(self.settings.items()) if k in TOLD)
        return out / "-".join(filter(None, (self.label, options, f"seed{self.seed}")))


TOLD = ("kappa", "tau2", "eta", "lambda_hy", "lambda_mix", "local_lr")


def perform(job: Job, out: Path) -> None:
    experiment = Experiment(
        method=job.method,
        scenario="cifar10",
        models=(job.model,),
        rounds=job.rounds,
        seed=job.seed,
        data_root=Path(job.data_root),
        device=job.device,
        precision=job.precision,
        out=job.folder(out),
        settings=job.settings,
    )
    run(experiment, resume=True)


def perform_all(jobs: list[Job], out: Path, at_once: int) -> None:
    """Each run in a process of its own, ``at_once`` of them; finished ones are left alone."""
    waiting = [job for job in jobs if not (job.folder(out) / "result.json").exists()]
    started = time.perf_counter()

    def one(job: Job) -> None:
        command = [sys.executable, __file__, "--one", json.dumps(asdict(job)), "--out", str(out)]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{job.folder(out)} failed:\n{done.stderr[-2000:]}")
        score = load_result(job.folder(out)).intra_avg
        print(f"{time.perf_counter() - started:6.0f} s  {job.folder(out).name}: {score:.2f}", flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, waiting))


def write_validation(root: Path, folder: Path) -> Path:
    """A data root whose test set is a fifth of the training images; the real test images are not in it."""
    path = folder / "cifar10.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with np.load(root / "cifar10.npz") as stored:
            x, y = stored["train_x"], stored["train_y"]
            names = {"label_names": stored["label_names"]} if "label_names" in stored.files else {}
        labels = torch.from_numpy(y.astype(np.int64))
        held = stratified_sample(labels, len(y) // 5, torch.Generator().manual_seed(0))
        kept = complement(held, len(y)).numpy()
        held_out = held.numpy()
        np.savez(path, train_x=x[kept], train_y=y[kept], test_x=x[held_out], test_y=y[held_out], **names)
    return folder


class Bar:
    """The jobs of both stages, from the command line's options."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, Path(args.out)
        self.common: dict[str, Any] = {
            "clients": 10, "beta": 0.1, "local_batch": 64, "optimizer": "sgd", "momentum": 0.0,
            "local_weight_decay": 1e-5, "lr_schedule": "constant",
        }  # fmt: skip
        if args.private:
            self.common["private"] = [args.private]

    def job(self, label: str, method: str, seed: int, root: Path, *, rounds: int, **settings: Any) -> Job:
        a = self.args
        return Job(label, method, seed, str(root), rounds, {**self.common, **settings}, a.model, a.device, a.precision)

    def choose(self, label: str, method: str, candidates: list[dict[str, Any]], root: Path) -> dict[str, Any]:
        """The candidate with the best mean accuracy on the validation images."""
        a = self.args
        jobs = {
            n: [self.job(label, method, seed, root, rounds=a.tune_rounds, **c) for seed in a.tune_seeds]
            for n, c in enumerate(candidates)
        }
        perform_all([job for group in jobs.values() for job in group], self.out, a.jobs)
        scores = {n: statistics.mean(self.score(job) for job in group) for n, group in jobs.items()}
        for n, score in sorted(scores.items(), key=lambda item: -item[1]):
            print(f"  validation {score:6.2f}  {label} {candidates[n]}")
        self.tried[label] = [{"options": candidates[n], "accuracy": scores[n]} for n in scores]
        return candidates[max(scores, key=lambda n: scores[n])]

    def score(self, job: Job) -> float:
        return load_result(job.folder(self.out)).intra_avg

    def play(self) -> dict[str, Any]:
        a, self.tried = self.args, {}
        half = {"local_epochs": a.epochs // 2, "cross_epochs": a.epochs // 2}
        validation = write_validation(Path(a.data_root), self.out / "validation")
        rates = [{"local_lr": lr, "local_epochs": a.epochs} for lr in RATES[: a.candidates]]
        lr = self.choose("tune-fedavg", "fedavg", rates, validation)["local_lr"]
        best = {"fedexg": {}}
        for method, grid in (("fedct", FEDCT), ("pgct", PGCT)):
            if method in a.methods:
                tried = [{"local_lr": lr, **half, **options} for options in grid[: a.candidates]]
                chosen = self.choose(f"tune-{method}", method, tried, validation)
                best[method] = {k: v for k, v in chosen.items() if k not in half}
        jobs: dict[str, list[Job]] = {}
        for seed in a.seeds:
            kinds = {
                "fedavg": ("fedavg", a.rounds, {"local_epochs": a.epochs}),
                "fedavg-twice": ("fedavg", 2 * a.rounds, {"local_epochs": a.epochs // 2}),
                **{m: (m, a.rounds, {**half, **best.get(m, {})}) for m in ("fedexg", "pgct", "fedct")},
            }
            for label, (method, rounds, options) in kinds.items():
                if label in a.methods:
                    job = self.job(label, method, seed, Path(a.data_root), rounds=rounds, **{"local_lr": lr, **options})
                    jobs.setdefault(label, []).append(job)
        perform_all([job for group in jobs.values() for job in group], self.out, a.jobs)
        return self.summary(jobs, best, lr)

    def summary(self, jobs: dict[str, list[Job]], best: dict[str, Any], lr: float) -> dict[str, Any]:
        results = {label: [load_result(job.folder(self.out)) for job in group] for label, group in jobs.items()}
        first = next(iter(results))
        target = statistics.mean(r.intra_avg for r in results[first])
        rows = {}
        for label, group in results.items():
            scores = [r.intra_avg for r in group]
            reached = [rounds_to_target(read_events(j.folder(self.out) / "events.jsonl"), target) for j in jobs[label]]
            rows[label] = {
                "accuracy": scores, "mean": statistics.mean(scores),
                "std": statistics.stdev(scores) if len(scores) > 1 else 0.0,
                "own": statistics.mean(statistics.mean(v for v in r.own if v is not None) for r in group),
                "gigabytes": (group[0].bytes_up + group[0].bytes_down) / 1e9,
                "messages": group[0].messages,
                "rounds_to_target": reached, "seconds": [r.seconds["total"] for r in group],
            }  # fmt: skip
        return {
            "arguments": vars(self.args), "common": self.common, "learning_rate": lr, "chosen": best,
            "validation": self.tried, "target": target, "target_of": first, "rows": rows,
            "device": results[first][0].device, "versions": results[first][0].versions,
        }  # fmt: skip


def table(summary: dict[str, Any]) -> str:
    seeds = len(summary["arguments"]["seeds"])
    lines = [
        f"| method | accuracy, mean ± std of {seeds} seeds | each seed | own shares | GB | "
        f"rounds to {summary['target']:.1f} % |",
        "|---|---|---|---|---|---|",
    ]
    for label, row in summary["rows"].items():
        each = " ".join(f"{v:.2f}" for v in row["accuracy"])
        reached = " ".join("–" if n is None else str(n) for n in row["rounds_to_target"])
        lines.append(
            f"| {label} | {row['mean']:.2f} ± {row['std']:.2f} | {each} | {row['own']:.2f} | {row['gigabytes']:.2f} | "
            f"{reached} |"
        )
    return "\n".join(lines)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="folder with cifar10.npz")
    parser.add_argument("--out", default="runs/fedct-bar")
    parser.add_argument("--jobs", type=int, default=6, help="runs at the same time")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tune-rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=4, help="epochs of every client in a round, in all (even)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tune-seeds", type=int, nargs="+", default=[10, 11])
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedavg-twice", "fedexg", "pgct", "fedct"])
    parser.add_argument("--candidates", type=int, default=99, help="only the first so many of each grid")
    parser.add_argument("--private", type=int, default=0, help="training images; 0: all")
    parser.add_argument("--model", default="resnet18@16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = options()
    if args.one:
        return perform(Job(**json.loads(args.one)), Path(args.out))
    if not args.data_root or args.epochs % 2:
        raise SystemExit("--data-root is needed, and --epochs should be even")
    summary = Bar(args).play()
    (Path(args.out) / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(table(summary))


if __name__ == "__main__":
    main()
