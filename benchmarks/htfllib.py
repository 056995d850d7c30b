"""Methods that fedchoir and HtFLlib both have, on one partition, in one run: seconds per round, accuracy, memory.

    git clone https://github.com/TsingZ0/HtFLlib               # its code is not part of fedchoir
    python -m venv htfenv && htfenv/bin/pip install torch torchvision scikit-learn h5py calmsize click higher
    python benchmarks/htfllib.py --htfllib HtFLlib --python htfenv/bin/python --data-root DATA --device cuda

The data are CIFAR-10 (DATA/cifar10.npz), or with ``--data generated`` the images of digits-lite. The partition is
Dirichlet, a client's test images have its label distribution, and both sides get the same images in float32. Clients
have torchvision's resnet18 and resnet34 in turn. Both take the same number of SGD steps with equal batch size and
learning rate: a client's images are a multiple of the batch. `htfllib_methods.METHODS` maps names and options, and says
what still differs. HtFLlib does not shuffle, fedchoir does; initial weights differ.

A round is training, exchange, evaluation and what is written to disk in it. The first one does not count. HtFLlib reads
its data again in every round; *without reading* leaves that out. It evaluates before it trains, so it takes one round
more, and its last accuracy is after as many rounds as ours. Each side has its own process for every method;
memory is the peak of the process, on a GPU that of torch's allocator. Nothing is downloaded, and nothing is written
into the checkout.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedchoir import methods
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.server import Server
from fedchoir.data import partition
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.label_skew import own_tests
from fedchoir.data.options import DataOptions
from fedchoir.data.scenario import ClientData, Scenario, load_scenario
from fedchoir.engines.local.engine import STATE_BUDGET, LocalEngine
from fedchoir.experiments.budget import client_sizes
from fedchoir.experiments.checkpoints import Checkpoints, read_every
from fedchoir.utils.errors import QuorumError, UsageError
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.rng import generator
from htfllib_methods import METHODS, NETS, WIDTH
from synthetic_federation import timed_rounds

CLASSES, DATA, MARK = 10, "contest", "contest:"


def peak_memory() -> float:
    """MB. What getrusage says includes the process that started this one, so it is the second choice."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024


# What HtFLlib's interpreter runs. It chooses the architectures, for which main.py has no family, and marks the time.
DRIVER = """
import json, runpy, sys, time
main, nets, mark, sys.argv = sys.argv[1], sys.argv[2].split(","), sys.argv[3], sys.argv[1:2] + sys.argv[4:]
sys.path[0] = main.rsplit("/", 1)[0]
import torch
from flcore.clients import clientbase
from flcore.servers import serverbase
from flcore.trainmodel import models
spent = [0.0]
def timed(*args, read=clientbase.read_client_data, **named):
    start = time.time()
    data = read(*args, **named)
    spent[0] += time.time() - start
    return data
def marked(function):
    def inner(*args, **named):
        print(mark, json.dumps({"reading": spent[0], "cpu": time.process_time()}), flush=True)
        return function(*args, **named)
    return inner
def chosen(self, args, *more, init=models.BaseHeadSplit.__init__, **named):
    args.models = [f"torchvision.models.{net}(num_classes=args.num_classes)" for net in nets]
    init(self, args, *more, **named)
clientbase.read_client_data = timed
serverbase.Server.evaluate = marked(serverbase.Server.evaluate)
serverbase.Server.save_results = marked(serverbase.Server.save_results)
models.BaseHeadSplit.__init__ = chosen
runpy.run_path(main, run_name="__main__")
gpu = torch.cuda.max_memory_reserved() / 2**20 if torch.cuda.is_available() else 0
print(mark, json.dumps({"peak": peak_memory(), "gpu": gpu}), flush=True)
"""
DRIVER = "import resource\nfrom pathlib import Path\n" + inspect.getsource(peak_memory) + DRIVER


@dataclass(frozen=True)
class Measured:
    """Rounds of one side: seconds of those after the first, accuracies in % after every round, peak memory in MB."""

    wall: list[float]
    cpu: list[float]
    reading: list[float]
    accuracy: list[float]
    peak: float
    gpu: float

    def line(self, name: str) -> str:
        wall, cpu = statistics.median(self.wall), statistics.median(self.cpu)
        without = statistics.median(w - r for w, r in zip(self.wall, self.reading, strict=True))
        gpu = f", GPU {self.gpu:.0f} MB" if self.gpu else ""
        return (
            f"  {name:8s} {wall:8.2f} s per round, {without:8.2f} without reading, CPU {cpu:8.2f} s; accuracy "
            f"{self.accuracy[-1]:5.1f} % last round, {max(self.accuracy):5.1f} best test round; peak "
            f"{self.peak:.0f} MB{gpu}"
        )


Parts = list[tuple[ImageSet, ImageSet]]
"""Every client's training and test images."""


def draw_parts(o: argparse.Namespace) -> Parts:
    """The partition: numbers of training images are multiples of the batch."""
    if o.data == "generated":
        scenario = load_scenario("digits-lite", options=DataOptions(private=(1.0,)))
    else:
        if not o.data_root or not (o.data_root / "cifar10.npz").is_file():
            raise UsageError(f"data_root: {o.data_root} has no cifar10.npz; --data generated needs no files")
        scenario = load_scenario("cifar10", root=o.data_root, options=DataOptions(clients=1, partition="iid"))
    drawn = []
    sources = ([client.train for client in scenario.clients], list(scenario.tests.values()))
    for (first, *others), each, kind in zip(sources, (o.private, o.tests), ("private", "tests"), strict=True):
        whole = first.joined(*others)
        if (wanted := each * o.clients) > len(whole):
            raise UsageError(
                f"{kind}: {each} images for each of {o.clients} clients, but there are {len(whole)} in all"
            )
        drawn.append(whole.subset(torch.randperm(len(whole), generator=generator(o.seed, "contest", kind))[:wanted]))
    pool, test = drawn
    positions = partition.dirichlet(pool.labels, o.clients, o.beta, o.seed, least=o.batch).positions
    trains = []
    for k, index in enumerate(positions):
        mixed = index[torch.randperm(len(index), generator=generator(o.seed, "contest order", k))]
        trains.append(pool.subset(mixed[: len(mixed) // o.batch * o.batch]))
    return list(zip(trains, own_tests(test, [t.labels for t in trains], CLASSES, o.seed), strict=True))


def write_parts(parts: Parts, folder: Path) -> None:
    """The partition in HtFLlib's format: ``train/K.npz`` and ``test/K.npz`` with a pickled dict of x and y."""
    for k, pair in enumerate(parts):
        for kind, images in zip(("train", "test"), pair, strict=True):
            path = folder / kind / f"{k}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            x = images.transform(images.inputs).contiguous().numpy()
            np.savez(path, data=np.array({"x": x, "y": images.labels.numpy()}, dtype=object))


def check_checkout(folder: Path, names: list[str]) -> None:
    """Refuse a folder that is no checkout of HtFLlib, or has not all methods."""
    main = folder / "system" / "main.py"
    if not main.is_file() or not (folder / "system" / "flcore").is_dir():
        raise UsageError(f"htfllib: {folder} is not a checkout of HtFLlib (github.com/TsingZ0/HtFLlib): no {main}")
    known = set(re.findall(r"""args\.algorithm == ["']([^"']+)["']""", main.read_text(encoding="utf-8")))
    for name in names:
        if METHODS[name].theirs not in known:
            raise UsageError(f"methods: {name} is {METHODS[name].theirs} in HtFLlib, which {main} does not have")


def filled(values: dict[str, Any], o: argparse.Namespace) -> dict[str, Any]:
    """The values of a `Pair`, with the script's options in place of ``{name}``."""
    return {k: getattr(o, v[1:-1]) if isinstance(v, str) and v.startswith("{") else v for k, v in values.items()}


def arguments(name: str, o: argparse.Namespace) -> list[str]:
    """The command line of HtFLlib's main.py. It evaluates before a round, so it needs one more than ``-gr``."""
    flags = {
        "-go": "contest", "-dev": o.device, "-data": DATA, "-ncl": CLASSES, "-m": "HtFE-img-3", "-lbs": o.batch,
        "-lr": o.lr, "-gr": o.rounds, "-ls": o.epochs, "-nc": o.clients, "-jr": 1.0, "-eg": 1, "-t": 1, "-fd": WIDTH,
        "-algo": METHODS[name].theirs, **filled(METHODS[name].flags, o),
    }  # fmt: skip
    return [str(part) for pair in flags.items() for part in pair]


def theirs(name: str, o: argparse.Namespace, parts: Parts) -> Measured:
    """Run HtFLlib's main.py in a temporary folder that links to the checkout."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary) / "system"
        work.mkdir()
        for entry in (o.htfllib / "system").resolve().iterdir():
            if entry.name != "temp":  # its models go there
                (work / entry.name).symlink_to(entry)
        write_parts(parts, Path(temporary) / "dataset" / DATA)
        main = (o.htfllib / "system" / "main.py").resolve()
        # its own files of models are pickled modules, which newer versions of torch refuse by default
        more = {"OMP_NUM_THREADS": str(o.threads), "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", "HF_HUB_OFFLINE": "1"}
        more["PYTHONDONTWRITEBYTECODE"] = "1"
        try:
            done = subprocess.run(
                [str(o.python), "-c", DRIVER, str(main), ",".join(NETS), MARK, *arguments(name, o)],
                cwd=work, capture_output=True, text=True, timeout=o.timeout,
                env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **more},
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            ended = ", ".join(ROUND.findall((late.stdout or b"").decode(errors="replace"))) or "none"
            raise UsageError(
                f"timeout: HtFLlib's {name} took more than {o.timeout} s (seconds of its rounds: {ended})"
            ) from None
        except OSError as error:
            raise UsageError(f"python: {o.python} cannot be started: {error.strerror}") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise UsageError(f"HtFLlib's {name} ended with status {done.returncode}: {last}")
    if o.device == "cuda" and "cuda is not avaiable" in done.stdout:  # as HtFLlib spells it
        raise UsageError(f"device: {o.python} finds no GPU")
    return parse(done.stdout, o.rounds, name)


ROUND = re.compile(r"^-{25,}(?: time cost -+)? ([0-9.e+-]+)$", re.MULTILINE)
ACCURACY = re.compile(r"^Averaged Test Accuracy: (\S+)$", re.MULTILINE)


def parse(output: str, rounds: int, name: str = "method") -> Measured:
    """What HtFLlib printed. Its first evaluation is of untrained models, its last round is not evaluated."""
    wall = [float(seconds) for seconds in ROUND.findall(output)]
    accuracy = [100 * float(share) for share in ACCURACY.findall(output)]
    marks = [json.loads(line.removeprefix(MARK)) for line in output.splitlines() if line.startswith(MARK)]
    times, memory = [mark for mark in marks if "cpu" in mark], [mark for mark in marks if "peak" in mark]
    if not len(wall) == len(accuracy) == len(times) - 1 == rounds + 1 or len(memory) != 1:
        raise UsageError(
            f"HtFLlib's {name} printed {len(wall)} rounds and {len(accuracy)} accuracies, not {rounds + 1}: this "
            "checkout has another format"
        )
    cpu, reading = ([b[key] - a[key] for a, b in pairwise(times)][1:] for key in ("cpu", "reading"))
    return Measured(wall[1:], cpu, reading, accuracy[1:], memory[0]["peak"], memory[0]["gpu"])


def ours(name: str, o: argparse.Namespace, parts: Parts) -> Measured:
    """Run fedchoir in this process. The last round includes the last checkpoint."""
    torch.set_num_threads(o.threads)
    device, cls, classes = torch.device(o.device), methods.get(name), tuple(map(str, range(CLASSES)))
    data = tuple(ClientData(f"client-{k}", train, "own") for k, (train, _) in enumerate(parts))
    sizes = [len(test) for _, test in parts]
    infos = tuple(
        ClientInfo(d.name, f"torchvision.models:{NETS[k % len(NETS)]}", len(d.train), sizes[k], "own")
        for k, d in enumerate(data)
    )
    side = parts[0][0].inputs.shape[-1]
    spec = FederationSpec(classes, infos, o.rounds, o.seed, inputs=InputSpec.image(side))
    params = cls.Params(
        image_size=side, lr_schedule="constant", optimizer="sgd", local_epochs=o.epochs, local_batch=o.batch,
        local_lr=o.lr, average="never", **filled(METHODS[name].ours, o),
    )  # fmt: skip
    tests = {d.name: test for d, (_, test) in zip(data, parts, strict=True)}
    with tempfile.TemporaryDirectory() as temporary:
        method, folder = cls(params, spec), Path(temporary)
        engine = LocalEngine(
            method, Scenario(DATA, classes, data, {}, tests), None, device=device, folder=folder / "state_cache"
        )
        server = Server(method, engine, (), folder=folder / "checkpoint")
        size = 4 * sum(map(sum, client_sizes(method, engine)))
        every = Checkpoints(server, read_every(o.checkpoint_every), memory=STATE_BUDGET, size=size)
        rounds = list(timed_rounds(server, every))
    accuracy = [float(np.average(event["own"], weights=sizes)) for _, event in rounds]
    wall, cpu = ([getattr(seconds, kind) for seconds, _ in rounds[1:]] for kind in ("wall", "cpu"))
    gpu = torch.cuda.max_memory_reserved() / 2**20 if device.type == "cuda" else 0.0
    return Measured(wall, cpu, [0.0] * len(wall), accuracy, peak_memory(), gpu)


def in_new_process(name: str, o: argparse.Namespace, parts: Parts) -> Measured:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(ours, name, o, parts).result()


def interpreter(text: str) -> Path:
    """A name without a separator is looked up in PATH, as in a shell. HtFLlib runs in another folder: absolute."""
    found = text if os.sep in text else shutil.which(text)
    return Path(found).absolute() if found else Path(text)


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--htfllib", type=Path, required=True, help="a checkout of github.com/TsingZ0/HtFLlib")
    parser.add_argument(
        "--python", type=interpreter, default=Path(sys.executable), help="interpreter that runs HtFLlib"
    )
    parser.add_argument("--methods", default="solo,fedproto,lg-fedavg,fml,fedtgp,fd", help=", ".join(METHODS))
    parser.add_argument("--data", choices=("cifar10", "generated"), default="cifar10")
    parser.add_argument("--data-root", type=Path, help="folder with cifar10.npz")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--private", type=int, default=500, help="training images per client, on average")
    parser.add_argument("--tests", type=int, default=100, help="test images per client, on average")
    parser.add_argument("--beta", type=float, default=0.1, help="of the Dirichlet partition")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--lamda", type=float, default=1.0, help="weight of prototypes (fedproto, fedtgp) and of fd")
    parser.add_argument("--server-epochs", type=int, default=100, help="fedtgp, fedgh")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-every", default="auto", help="of fedchoir: auto, N or never")
    parser.add_argument("--timeout", type=float, default=24 * 3600, help="seconds for one method of HtFLlib")
    o = parser.parse_args(arguments)
    o.names = o.methods.split(",")
    return o


def check(o: argparse.Namespace) -> None:
    for name in o.names:
        if name not in METHODS:
            raise UsageError(f"methods: {name!r} is not in the contest; choose from {', '.join(METHODS)}")
    for name, least in (("rounds", 2), ("clients", 2), ("batch", 2), ("tests", 1)):
        if getattr(o, name) < least:
            raise UsageError(f"{name} = {getattr(o, name)}: it should be at least {least}")
    if o.private < 2 * o.batch:
        raise UsageError(f"private = {o.private}: it should be at least two batches, {2 * o.batch}")
    if o.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device: torch finds no GPU here")
    check_checkout(o.htfllib, o.names)


def contest(o: argparse.Namespace) -> None:
    check(o)
    os.environ["OMP_NUM_THREADS"] = str(o.threads)
    parts = draw_parts(o)
    sizes = [len(train) for train, _ in parts]
    steps, device = o.epochs * sum(sizes) // o.batch, f"{o.device}, threads: {o.threads}"
    print(f"{o.data}: {o.clients} clients with {min(sizes)} to {max(sizes)} images, {' and '.join(NETS)} in turn;")
    print(f"{o.rounds} rounds of {steps} steps, batches of {o.batch}, SGD with lr {o.lr:g}; {device}", flush=True)
    stopped = []
    for name in o.names:
        print(f"{name} ({METHODS[name].theirs} in HtFLlib){'; ' * bool(METHODS[name].differs)}{METHODS[name].differs}")
        try:
            compare(name, o, parts)
        except (UsageError, QuorumError) as error:  # the other methods still run
            print(f"  stopped: {error}", flush=True)
            stopped.append(name)
    if stopped:
        raise UsageError(f"not compared: {', '.join(stopped)}")


def compare(name: str, o: argparse.Namespace, parts: Parts) -> None:
    a = in_new_process(name, o, parts)
    print(a.line("fedchoir"))
    print(f"           checkpoints: {o.checkpoint_every}; last round with the final one {a.wall[-1]:.2f} s", flush=True)
    b = theirs(name, o, parts)
    print(b.line("HtFLlib"))
    wall, cpu = (statistics.median(x) / statistics.median(y) for x, y in ((b.wall, a.wall), (b.cpu, a.cpu)))
    print(f"  HtFLlib / fedchoir: {wall:.2f} in wall-clock time, {cpu:.2f} in CPU time", flush=True)


def main() -> None:
    try:
        contest(options())
    except UsageError as error:
        raise SystemExit(f"htfllib.py: {error}") from None


if __name__ == "__main__":
    main()
