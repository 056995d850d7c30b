"""The contest with HtFLlib: its method table, its partition on disk, its output, and its errors.

None of HtFLlib's code is here. The checkout in these tests is a small program that prints in the same format.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import htfllib
from fedchoir import methods
from fedchoir.data.image.pixels import denormalise
from fedchoir.utils.errors import QuorumError, UsageError

MAIN = """
import sys, time
from flcore.clients import clientbase
from flcore.servers.serverbase import Server
from flcore.trainmodel.models import BaseHeadSplit
argv = dict(zip(sys.argv[1::2], sys.argv[2::2]))
class args:
    algorithm, num_classes, models = argv["-algo"], 10, ["none"]
if args.algorithm == "Local":
    line = "-" * 25 + " time cost " + "-" * 25
elif args.algorithm == "FedProto":
    line = "-" * 50
else:
    raise NotImplementedError
BaseHeadSplit(args, 0)
print("arguments", sorted(argv.items()))
server = Server()
for i in range(int(argv["-gr"]) + 1):
    print(f"\\n-------------Round number: {i}-------------")
    server.evaluate(i / 10, argv["-lbs"])
    data = [clientbase.read_client_data(argv["-data"], k) for k in range(int(argv["-nc"]))]
    print(line, 100.0 if i == 0 else 2.0 + i)
print("\\nBest accuracy.")
server.save_results()
"""
FILES = {
    "main.py": MAIN,
    "flcore/clients/clientbase.py": """
import numpy as np
def read_client_data(dataset, k):
    with open(f"../dataset/{dataset}/train/{k}.npz", "rb") as file:
        data = np.load(file, allow_pickle=True)["data"].tolist()
    assert len(data["x"]) == len(data["y"]) and data["x"].dtype == "float32"
""",
    "flcore/servers/serverbase.py": """
class Server:
    def evaluate(self, accuracy, batch):
        print(f"Averaged Test Accuracy: {accuracy:.4f}")
        print("Std Test Accuracy: 0.5000")
    def save_results(self):
        open("temp.txt", "w").write("results")
        print("File path: ../results/")
""",
    "flcore/trainmodel/models.py": """
class BaseHeadSplit:
    def __init__(self, args, cid=0):
        print("models", args.models)
""",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "HtFLlib" / "system" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "HtFLlib"


def small(checkout: Path, *more: str) -> argparse.Namespace:
    sizes = ["--clients", "3", "--private", "24", "--tests", "10", "--batch", "8", "--beta", "1", "--rounds", "2"]
    given = ["--htfllib", str(checkout), "--data", "generated", "--methods", "solo,fedproto", *sizes, *more]
    return htfllib.options(given)


def test_the_table_names_methods_and_options_that_exist(checkout: Path) -> None:
    expected = {"solo", "fedproto", "lg-fedavg", "fml", "fedtgp", "fd", "fedgh", "fedkd"}
    assert set(htfllib.METHODS) == expected
    o = small(checkout, "--lamda", "3", "--lr", "0.05")
    for name, pair in htfllib.METHODS.items():
        given = htfllib.filled(pair.ours, o)
        params = methods.get(name).Params(**given).model_dump()  # an unknown option is refused
        assert {key: params[key] for key in given} == given
        flags = htfllib.arguments(name, o)
        assert flags[flags.index("-algo") + 1] == pair.theirs
        assert not any("{" in flag for flag in flags)
    flags = htfllib.arguments("fedproto", o)
    assert [flags[flags.index(f) + 1] for f in ("-lam", "-lr", "-lbs", "-gr", "-nc")] == ["3.0", "0.05", "8", "2", "3"]
    assert htfllib.filled(htfllib.METHODS["fedproto"].ours, o)["prototype_weight"] == 3.0


def test_the_partition_has_equal_steps_and_is_written_as_it_is(checkout: Path, tmp_path: Path) -> None:
    o = small(checkout)
    parts = htfllib.draw_parts(o)
    assert len(parts) == 3
    assert all(len(train) >= 8 and len(train) % 8 == 0 and len(test) for train, test in parts)
    htfllib.write_parts(parts, tmp_path / "data")
    for k, pair in enumerate(parts):
        for kind, images in zip(("train", "test"), pair, strict=True):
            with np.load(tmp_path / "data" / kind / f"{k}.npz", allow_pickle=True) as file:
                data = file["data"].tolist()
            assert data["x"].shape == (len(images), 3, 32, 32)
            assert data["y"].tolist() == images.labels.tolist()
            pixels = (denormalise(torch.from_numpy(data["x"]), images.mean, images.std) * 255).round()
            assert torch.equal(pixels.to(torch.uint8), images.inputs)
    again = htfllib.draw_parts(o)
    assert all(torch.equal(a.inputs, b.inputs) for (a, _), (b, _) in zip(parts, again, strict=True))


@pytest.mark.parametrize("name", ["solo", "fedproto"])  # they print a round's time in different lines
def test_a_checkout_is_run_and_its_output_parsed(checkout: Path, name: str) -> None:
    o = small(checkout)
    before = sorted(path for path in checkout.rglob("*"))
    found = htfllib.theirs(name, o, htfllib.draw_parts(o))
    assert found.wall == [3.0, 4.0]  # without the first round
    assert found.accuracy == pytest.approx([10, 20])  # without that of untrained models
    assert len(found.cpu) == len(found.reading) == 2
    assert all(0 < seconds < 60 for seconds in found.reading)
    assert found.peak > 50
    assert "20.0 % last round,  20.0 best test round" in found.line("HtFLlib")
    assert sorted(path for path in checkout.rglob("*")) == before  # nothing is written into it


def test_the_architectures_are_chosen_for_it(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = []
    monkeypatch.setattr(htfllib, "parse", lambda output, rounds, name: printed.append(output))
    o = small(checkout)
    htfllib.theirs("solo", o, htfllib.draw_parts(o))
    (line,) = (line for line in printed[0].splitlines() if line.startswith("models"))
    assert line.index("torchvision.models.resnet18(") < line.index("torchvision.models.resnet34(")
    assert "pretrained" not in line


def test_the_last_round_and_the_best_test_round_are_told_apart() -> None:
    rounds = [(0.1, 9.0), (0.6, 3.0), (0.4, 1.0)]
    text = "".join(
        f"contest: {{\"reading\": {i}.5, \"cpu\": {10 * i}}}\nAveraged Test Accuracy: {accuracy:.4f}\n"
        f"Std Test Accuracy: 0.9\n{'-' * 50} {seconds}\n" for i, (accuracy, seconds) in enumerate(rounds)
    )  # fmt: skip
    end = 'contest: {"reading": 4.5, "cpu": 50}\ncontest: {"peak": 700.0, "gpu": 0}\n'
    found = htfllib.parse(text + end, 2)
    assert (found.wall, found.cpu, found.reading) == ([3.0, 1.0], [10, 30], [1.0, 2.0])
    assert found.accuracy == pytest.approx([60, 40])
    assert "40.0 % last round,  60.0 best test round; peak 700 MB" in found.line("HtFLlib")
    with pytest.raises(UsageError, match="printed 3 rounds and 3 accuracies, not 6"):
        htfllib.parse(text + end, 5)


def test_what_is_wrong_is_said_in_one_line(checkout: Path, tmp_path: Path) -> None:
    def said(message: str, *more: str, folder: Path = checkout) -> None:
        with pytest.raises(UsageError, match=message) as error:
            htfllib.contest(small(folder, *more))
        assert "\n" not in str(error.value)

    said("is not a checkout of HtFLlib", folder=tmp_path / "elsewhere")
    said("fedtgp is FedTGP in HtFLlib, which .* does not have", "--methods", "solo,fedtgp")
    said("'fedavg' is not in the contest; choose from solo, fedproto", "--methods", "fedavg")
    said("rounds = 1: it should be at least 2", "--rounds", "1")
    said("private = 10: it should be at least two batches, 16", "--private", "10")
    said("has no cifar10.npz", "--data", "cifar10", "--data-root", str(tmp_path))
    said("there are .* in all", "--private", "1000000")
    if not torch.cuda.is_available():
        said("torch finds no GPU", "--device", "cuda")


def test_a_checkout_that_fails_is_named(checkout: Path, tmp_path: Path) -> None:
    o = small(checkout)
    parts = htfllib.draw_parts(o)
    with pytest.raises(UsageError, match="HtFLlib's fedtgp ended with status 1: NotImplementedError"):
        htfllib.theirs("fedtgp", o, parts)
    with pytest.raises(UsageError, match=r"took more than 0\.01 s"):
        htfllib.theirs("solo", small(checkout, "--timeout", "0.01"), parts)
    with pytest.raises(UsageError, match="cannot be started"):
        htfllib.theirs("solo", small(checkout, "--python", str(tmp_path / "python")), parts)


def test_rounds_that_ended_before_the_time_are_named(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "".join(f"{'-' * 25} time cost {'-' * 25} {seconds}\n" for seconds in (11.5, 9.25))

    def run(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 30, output=printed.encode())

    monkeypatch.setattr(htfllib.subprocess, "run", run)
    o = small(checkout, "--timeout", "30")
    with pytest.raises(UsageError, match=r"took more than 30\.0 s \(seconds of its rounds: 11\.5, 9\.25\)"):
        htfllib.theirs("solo", o, htfllib.draw_parts(o))


@pytest.mark.slow
def test_both_sides_are_compared(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--clients", "2", "--private", "16", "--batch", "8", "--tests", "8", "--methods", "fedproto"]
    given += ["--data", "generated", "--rounds", "2", "--beta", "5", "--python", sys.executable]
    monkeypatch.setattr("sys.argv", ["htfllib", "--htfllib", str(checkout), *given])
    htfllib.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("generated: 2 clients with 8 to ")
    assert [line.split()[0] for line in lines[3:6]] == ["fedchoir", "checkpoints:", "HtFLlib"]
    assert "3.50 s per round" in lines[5]
    assert "in wall-clock time" in lines[6]


def test_a_method_that_stops_does_not_stop_the_others(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compare(name: str, *rest: object) -> None:
        if name == "solo":
            raise QuorumError("payloads of 1e+13")
        print("compared")

    monkeypatch.setattr(htfllib, "compare", compare)
    with pytest.raises(UsageError, match="not compared: solo"):
        htfllib.contest(small(checkout))
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "  stopped: payloads of 1e+13"
    assert lines[-1] == "compared"


def test_the_interpreter_is_found_as_a_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HtFLlib runs in another folder, so a path from here would not be found there."""
    program = tmp_path / "bin" / "htf-python"
    program.parent.mkdir()
    program.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.chdir(tmp_path)
    for text in ("htf-python", "bin/htf-python", str(program)):
        assert htfllib.options(["--htfllib", "HtFLlib", "--python", text]).python == program  # the link, of a venv
    assert htfllib.options(["--htfllib", "HtFLlib", "--python", "./htf-python"]).python == tmp_path / "htf-python"
    assert htfllib.options(["--htfllib", "HtFLlib", "--python", "none"]).python == Path("none")  # for the error
    assert htfllib.options(["--htfllib", "HtFLlib"]).python == Path(sys.executable)
