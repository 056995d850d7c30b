"""Cross-training under label skew: FedAvg, FedExg, PGCT and FedCT on a CIFAR-10 subset, β = 0.1, 10 clients.

    python benchmarks/fedct_bar.py --data-root DATA --out runs/fedct-bar --jobs 6

Two stages of many independent runs that share the device; finished runs are not repeated. First, options are chosen on
a validation split (a fifth of the training images, which no run of that stage trains on) with other seeds; an option at
the edge of its grid is reported. Then every method runs on the real split with seeds 0, 1 and 2. All take the same
number of gradient steps per round: a method that exchanges models trains half of the epochs before the exchange and
half after it. Because an exchange costs as much communication as an averaging, FedAvg also runs twice the rounds with
half the epochs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import permutations, product
from pathlib import Path
from typing import Any

import torch

from fedchoir import Experiment, run
from fedchoir.core.result import load_result, read_events
from fedchoir.experiments.config import make_plan, parse_setting
from fedchoir.experiments.prepare import prepare
from fedchoir.reporting.run_groups import rounds_to_target

Grid = dict[str, tuple[float, ...]]
CONTRAST: Grid = {"kappa": (0.1, 0.5, 1.0, 2.0, 5.0), "tau2": (0.02, 0.05, 0.1, 0.5)}
GRIDS: dict[str, list[Grid]] = {  # all combinations of a grid, one grid after the other; wider than the papers'
    "fedavg": [{"local_lr": (0.003, 0.01, 0.03, 0.1, 0.3)}],
    "pgct": [CONTRAST],
    "fedct": [
        CONTRAST,
        {"eta": (0.01, 0.1, 0.5, 1.0)},
        {"lambda_hy": (0.0, 0.1, 0.3, 0.5)},
        {"lambda_mix": (0.1, 0.3, 0.5, 0.7)},
    ],
}
FEDCT_VARIANTS: dict[str, dict[str, Any]] = {  # the method, a random assignment, and the ablations of Table III
    "fedct": {},
    "fedct-random": {"broadcast": "random"},
    "fedct-assignment": {"use_apcl": False, "use_mfa": False},
    "fedct-apcl": {"use_mfa": False},
    "fedct-mfa": {"use_apcl": False},
}
IN_NAME = ("kappa", "tau2", "eta", "lambda_hy", "lambda_mix", "local_lr")  # options in the name of a run's folder


@dataclass(frozen=True)
class Job:
    """One run: its label in the table and its options."""

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
        options = "-".join(f"{k}={v}" for k, v in sorted(self.settings.items()) if k in IN_NAME)
        return out / "-".join(filter(None, (self.label, options, f"seed{self.seed}")))


def experiment_of(job: Job, out: Path) -> Experiment:
    return Experiment(
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


def combinations(grid: Grid) -> list[dict[str, float]]:
    """Every point of a grid.

    >>> combinations({"kappa": (0.5, 1.0), "tau2": (0.05,)})
    [{'kappa': 0.5, 'tau2': 0.05}, {'kappa': 1.0, 'tau2': 0.05}]
    """
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def at_edges(chosen: dict[str, float], grids: list[Grid]) -> dict[str, str]:
    """The options whose chosen value is the smallest or largest of its grid: a better one may lie beyond it.

    >>> at_edges({"kappa": 0.1, "tau2": 0.1}, [CONTRAST])
    {'kappa': 'smallest of 0.1, 0.5, 1.0, 2.0, 5.0'}
    """
    found = {}
    for name, values in ((n, sorted(v)) for grid in grids for n, v in grid.items()):
        if name in chosen and chosen[name] in (values[0], values[-1]):
            end = "smallest" if chosen[name] == values[0] else "largest"
            found[name] = f"{end} of {', '.join(map(str, values))}"
    return found


def run_all(jobs: list[Job], out: Path, parallel: int) -> None:
    """Run each unfinished job in a process of its own, ``parallel`` of them at a time."""
    unfinished = [job for job in jobs if not (job.folder(out) / "result.json").exists()]
    started = time.perf_counter()

    def one(job: Job) -> None:
        command = [sys.executable, __file__, "--one", json.dumps(asdict(job)), "--out", str(out)]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{job.folder(out)} failed:\n{done.stderr[-2000:]}")
        score = load_result(job.folder(out)).intra_avg
        print(f"{time.perf_counter() - started:6.0f} s  {job.folder(out).name}: {score:.2f}", flush=True)

    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(one, unfinished))


class Comparison:
    """The jobs of both stages."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, Path(args.out)
        self.tried: list[dict[str, Any]] = []
        self.common: dict[str, Any] = {
            "clients": 10, "beta": 0.1, "local_batch": 64, "optimizer": "sgd", "momentum": 0.0,
            "local_weight_decay": 1e-5, "lr_schedule": "constant",
        }  # fmt: skip
        if args.private:
            self.common["private"] = [args.private]
        self.common |= dict(map(parse_setting, args.set))

    def job(self, label: str, method: str, seed: int, root: Path, *, rounds: int, **settings: Any) -> Job:
        a = self.args
        return Job(label, method, seed, str(root), rounds, {**self.common, **settings}, a.model, a.device, a.precision)

    def tune(self, method: str, fixed: dict[str, Any]) -> dict[str, Any]:
        """The options with the best mean validation accuracy, one grid after the other."""
        best: dict[str, Any] = {}
        for grid in GRIDS[method]:
            best = self.choose(method, fixed, [{**best, **options} for options in combinations(grid)])
        for name, where in at_edges(best, GRIDS[method]).items():
            print(f"  {method}: {name} = {best[name]} is at the edge of its grid ({where})", flush=True)
        return best

    def choose(self, method: str, fixed: dict[str, Any], candidates: list[dict[str, Any]]) -> dict[str, Any]:
        a = self.args
        split = {"test_split": "validation"}
        jobs = [
            [
                self.job(f"tune-{method}", method, seed, Path(a.data_root), rounds=a.tune_rounds, **split, **fixed, **c)
                for seed in a.tune_seeds
            ]
            for c in candidates
        ]
        run_all([job for group in jobs for job in group], self.out, a.jobs)
        scores = [statistics.mean(load_result(job.folder(self.out)).intra_avg for job in group) for group in jobs]
        for score, options in sorted(zip(scores, candidates, strict=True), key=lambda pair: -pair[0]):
            print(f"  validation {score:6.2f}  {method} {options}", flush=True)
            self.tried.append({"method": method, "options": options, "accuracy": score})
        return candidates[scores.index(max(scores))]

    def run(self) -> dict[str, Any]:
        a = self.args
        whole = {"local_epochs": a.epochs}
        half = {"local_epochs": a.epochs // 2, "cross_epochs": a.epochs // 2}
        rate = self.tune("fedavg", whole)
        chosen = {
            m: self.tune(m, {**half, **rate})
            for m in ("pgct", "fedct")
            if any(label.partition("-")[0] == m for label in a.methods)
        }
        exchanging = {"fedexg": {}, "pgct": {}, **FEDCT_VARIANTS}
        kinds = {
            "fedavg": ("fedavg", a.rounds, whole),
            "fedavg-twice": ("fedavg", 2 * a.rounds, {"local_epochs": a.epochs // 2}),
            **{
                label: (method := label.partition("-")[0], a.rounds, {**half, **chosen.get(method, {}), **options})
                for label, options in exchanging.items()
            },
        }
        jobs = {
            label: [self.job(label, method, s, Path(a.data_root), rounds=rounds, **rate, **options) for s in a.seeds]
            for label, (method, rounds, options) in kinds.items()
            if label in a.methods
        }
        run_all([job for seed in zip(*jobs.values(), strict=True) for job in seed], self.out, a.jobs)
        return self.summary(jobs, {"fedavg": rate, **chosen})

    def summary(self, jobs: dict[str, list[Job]], chosen: dict[str, Any]) -> dict[str, Any]:
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
                "messages": group[0].messages, "curve": curve([j.folder(self.out) for j in jobs[label]]),
                "visits": [visits(job, self.out) for job in jobs[label]],
                "rounds_to_target": reached, "seconds": [r.seconds["total"] for r in group],
            }  # fmt: skip
        return {
            "arguments": {k: v for k, v in vars(self.args).items() if k not in ("data_root", "out", "one")},
            "common": self.common, "chosen": chosen,
            "at_edges": {method: at_edges(options, GRIDS[method]) for method, options in chosen.items()},
            "validation": self.tried, "target": target, "target_of": first, "rows": rows,
            "device": results[first][0].device, "versions": results[first][0].versions,
        }  # fmt: skip


def curve(folders: list[Path]) -> list[float]:
    """Accuracy after each round, mean over the seeds."""
    runs = [[e["intra_avg"] for e in read_events(folder / "events.jsonl")] for folder in folders]
    return [round(statistics.mean(values), 2) for values in zip(*runs, strict=True)]


def visits(job: Job, out: Path) -> dict[str, float] | None:
    """Of a run that exchanges models: to how many clients each model went, how often to the most frequent one, and the
    overlap Σ_c min(p_c, q_c) of the class shares there and of any two clients."""
    events = read_events(job.folder(out) / "events.jsonl")
    rounds = [dict(pairs) for e in events for pairs in e["measures"].get("exchanges", ())]
    if not rounds:
        return None
    places = [Counter(sent[k] for sent in rounds if k in sent) for k in rounds[0]]
    labels = [client.train.labels for client in prepare(make_plan(experiment_of(job, out)))[1].clients]
    shares = [torch.bincount(own, minlength=10) / len(own) for own in labels]

    def overlap(pairs: Iterable[tuple[int, int]]) -> float:
        return statistics.mean(float(torch.minimum(shares[i], shares[j]).sum()) for i, j in pairs)

    return {
        "places": statistics.mean(len(c) for c in places),
        "favourite": statistics.mean(max(c.values()) / c.total() for c in places),
        "overlap": overlap(pair for sent in rounds for pair in sent.items()),
        "overlap_of_any_two": overlap(permutations(range(len(shares)), 2)),
    }


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
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--tune-rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=4, help="total epochs of a client in a round (even)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tune-seeds", type=int, nargs="+", default=[10, 11])
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["fedavg", "fedavg-twice", "fedexg", "pgct", "fedct"],
        choices=["fedavg", "fedavg-twice", "fedexg", "pgct", *FEDCT_VARIANTS],
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an option of all runs")
    parser.add_argument("--private", type=int, default=0, help="training images; 0: all")
    parser.add_argument("--model", default="resnet18@16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = options()
    if args.one:
        run(experiment_of(Job(**json.loads(args.one)), Path(args.out)), resume=True)
        return
    if not args.data_root or args.epochs % 2:
        raise SystemExit("--data-root is needed, and --epochs should be even")
    summary = Comparison(args).run()
    (Path(args.out) / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(table(summary))


if __name__ == "__main__":
    main()
