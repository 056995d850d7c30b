"""The suite of GPU benchmarks keeps what every part prints, and ends parts that take too long."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.benchmarks.conftest import BENCHMARKS

import gpu_suite

SLEEPS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("begun", child.pid, flush=True)
time.sleep(60)
"""


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the state of a process from /proc")


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    monkeypatch.setattr(gpu_suite, "BENCHMARKS", tmp_path)
    monkeypatch.setattr(gpu_suite.shutil, "which", lambda name: None)  # no MPS
    (tmp_path / "short.py").write_text("import os, sys; print(sys.argv[1:], os.environ['FEDCHOIR_CACHE'])")
    (tmp_path / "fails.py").write_text("raise SystemExit('no such device')")
    (tmp_path / "long.py").write_text(SLEEPS)
    return argparse.Namespace(
        minutes=10.0, record=tmp_path / "kept" / "record.txt", data_root=tmp_path, htfllib=None, python=None
    )


def part(script: str, arguments: list[str] | None = None, limit: float = 30.0, least: float = 1.0) -> gpu_suite.Part:
    return gpu_suite.Part(script.removesuffix(".py"), script, arguments or [], limit, "a test", least)


def is_running(process: int) -> bool:
    """Whether it still does anything; one that was killed may wait for its parent to notice."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.1)
    return True


def test_the_record_has_every_part_and_no_path_of_the_machine(options: argparse.Namespace, tmp_path: Path) -> None:
    data = ["--data-root", "{data_root}"]
    parts = [part("short.py", [*data, "--rounds", "2"]), part("fails.py"), part("short.py", ["{htfllib}"])]
    gpu_suite.suite(parts, options, tmp_path / "cache")
    text = options.record.read_text()
    assert "$ python benchmarks/short.py --data-root DATA --rounds 2\n" in text
    assert f"['--data-root', '{tmp_path}', '--rounds', '2'] {tmp_path / 'cache'}" in text  # what the part printed
    assert "no such device\n-- ended with exit code 1" in text
    assert text.endswith("$ python benchmarks/short.py HtFLlib\n-- not run: --htfllib was not given\n")


@linux
def test_a_part_that_takes_too_long_is_killed_with_its_processes(options: argparse.Namespace, tmp_path: Path) -> None:
    start = time.monotonic()
    gpu_suite.suite([part("long.py", limit=3.0), part("short.py")], options, tmp_path / "cache")
    assert time.monotonic() - start < 20
    text = options.record.read_text()
    assert "-- killed after 3 s" in text
    child = int(text.partition("begun ")[2].split()[0])
    assert not is_running(child)
    assert "-- short: a test" in text  # the next part still ran


def test_no_part_begins_when_the_time_is_over(options: argparse.Namespace, tmp_path: Path) -> None:
    options.minutes = 0.5
    gpu_suite.suite([part("short.py", least=31.0), part("short.py", least=5.0)], options, tmp_path / "cache")
    text = options.record.read_text()
    assert text.count("-- not run: it needs 31 s, and 30 s were left") == 1
    assert text.count("s in all, without MPS,") == 1


def test_a_part_knows_how_long_it_has(options: argparse.Namespace, tmp_path: Path) -> None:
    gpu_suite.suite([part("short.py", ["--seconds", "{seconds}"], limit=400.0)], options, tmp_path / "cache")
    text = options.record.read_text()
    assert "$ python benchmarks/short.py --seconds 380\n" in text
    assert "['--seconds', '380']" in text


def test_a_part_leaves_time_to_those_after_it(options: argparse.Namespace, tmp_path: Path) -> None:
    options.minutes = 2.0
    parts = [part("short.py", ["{seconds}"], limit=400.0), part("short.py", least=40.0)]
    gpu_suite.suite(parts, options, tmp_path / "cache")
    (seconds,) = re.findall(r"^\['(\d+)'\]", options.record.read_text(), re.MULTILINE)
    assert 40 < int(seconds) <= 120 - 40 - gpu_suite.BETWEEN - gpu_suite.MARGIN


def test_parts_that_need_more_time_than_there_is_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_suite.py", "--minutes", "9", "--data-root", "data"])
    with pytest.raises(
        SystemExit, match=r"need .* s, and --minutes 9 is 540; .* cold 60 .* architectures 300"
    ) as error:
        gpu_suite.main()
    assert "\n" not in str(error.value)
    assert "contest" not in str(error.value)  # it would not run without HtFLlib


def test_the_commands_of_the_docstring_have_time_for_all_parts() -> None:
    commands = [line.split() for line in (gpu_suite.__doc__ or "").splitlines() if "$suite" in line]
    names = [words[words.index("--only") + 1] for words in commands]
    assert sorted(",".join(names).split(",")) == sorted(part.name for part in gpu_suite.PARTS)
    for only in names:
        o = argparse.Namespace(only=only, minutes=9.0, data_root="data", htfllib="HtFLlib", python="python")
        gpu_suite.check_time(gpu_suite.chosen(o), o)


STOPPED = """
import sys, pathlib, gpu_suite
gpu_suite.torch.cuda.is_available = lambda: True
gpu_suite.torch.cuda.get_device_name = lambda: "a GPU"
gpu_suite.shutil.which = lambda name: None
gpu_suite.BENCHMARKS = pathlib.Path(sys.argv.pop(1))
gpu_suite.PARTS = [gpu_suite.Part("long", "long.py", [], 60.0, "a test", 1.0)]
gpu_suite.main()
"""


@linux
def test_a_suite_that_is_stopped_ends_its_part_whose_output_is_kept(
    options: argparse.Namespace, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", STOPPED, str(tmp_path), "--record", str(options.record)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(BENCHMARKS)}) as suite:
        for _ in range(600):
            if options.record.exists() and (begun := re.search(r"begun (\d+)\n", options.record.read_text())):
                break  # it is in the record while the part runs
            time.sleep(0.1)
        suite.terminate()
        assert suite.wait(20) == 143
    assert begun
    assert not is_running(int(begun[1]))


CONTROL = """#!/bin/sh
echo "$1$(if [ -z "$1" ]; then cat; fi)" >> {log}
if [ "$1" = -d ]; then
    if [ -e {daemon} ] || [ -e {daemon}.broken ]; then exit 1; fi
    touch {daemon}
elif [ ! -e {daemon} ]; then exit 1
elif [ "$(tail -n 1 {log})" = quit ]; then rm {daemon}
fi
"""


@pytest.fixture
def daemon(options: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there while MPS's daemon runs. Its control program keeps what it was asked in mps.log."""
    control, running = tmp_path / "control", tmp_path / "daemon"
    control.write_text(CONTROL.format(log=tmp_path / "mps.log", daemon=running))
    control.chmod(0o755)
    monkeypatch.setattr(gpu_suite.shutil, "which", lambda name: str(control))
    return running


def test_mps_runs_for_parts_that_share_the_gpu(daemon: Path, options: argparse.Namespace, tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text(f"import os; print('daemon', os.path.exists({str(daemon)!r}))")
    gpu_suite.suite([part("short.py"), part("short.py", gpu_suite.FOUR)], options, tmp_path / "cache")
    alone, shared = options.record.read_text().split("-- short")[1:]
    assert "daemon False" in alone
    assert "s in all, without MPS," in alone
    assert "daemon True" in shared
    assert "s in all, with MPS," in shared
    assert not daemon.exists()


def test_a_daemon_that_runs_already_serves_all_parts_and_stays(
    daemon: Path, options: argparse.Namespace, tmp_path: Path
) -> None:
    daemon.touch()
    gpu_suite.suite([part("short.py"), part("short.py", gpu_suite.FOUR)], options, tmp_path / "cache")
    assert options.record.read_text().count("s in all, with MPS (its daemon ran already),") == 2
    assert daemon.exists()


def test_the_record_does_not_claim_mps_where_it_cannot_start(
    daemon: Path, options: argparse.Namespace, tmp_path: Path
) -> None:
    daemon.with_suffix(".broken").touch()
    gpu_suite.suite([part("short.py", gpu_suite.FOUR)], options, tmp_path / "cache")
    assert "s in all, without MPS (its daemon does not start)," in options.record.read_text()


def test_the_kernel_cache_is_the_one_of_the_suite_and_its_state_is_recorded(
    options: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the user's, which would make a cold start a warm one."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "of-the-user"))
    (tmp_path / "compiles.py").write_text(
        "import os, pathlib\n"
        "print('own cache' if 'TRITON_CACHE_DIR' in os.environ else 'cache of the suite')\n"
        "folder = pathlib.Path(os.environ['FEDCHOIR_CACHE'], 'kernels', 'versions', 'key')\n"
        "folder.mkdir(parents=True, exist_ok=True)\n"
        "(folder / 'moments.cubin').touch()\n"
    )
    gpu_suite.suite([part("compiles.py"), part("compiles.py")], options, tmp_path / "cache")
    cold, warm = options.record.read_text().split("-- compiles")[1:]
    assert "cache of the suite" in cold
    assert ", kernels in the cache: 0 before, 1 after\n" in cold
    assert ", kernels in the cache: 1 before, 1 after\n" in warm


def test_every_command_of_the_suite_has_options_of_its_script() -> None:
    for each in gpu_suite.PARTS:
        script = Path(gpu_suite.__file__).parent / each.script
        source = script.read_text()
        for option in (word for word in each.arguments if word.startswith("--")):
            assert f'"{option}"' in source, f"{each.script} has no {option}"


def test_an_unknown_part_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_suite.py", "--only", "wram"])
    with pytest.raises(SystemExit, match="'wram' is no part; parts: cold, warm"):
        gpu_suite.main()
