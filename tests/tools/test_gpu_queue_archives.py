"""Archives of the queue: damage is named and never read as a shorter archive, and no save removes another."""

from __future__ import annotations

import lzma
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from tests.tools.test_gpu_queue_travel import contents, run_to, save
from tools.gpu_queue import archives
from tools.gpu_queue.__main__ import main
from tools.gpu_queue.archives import END, packed, read_archives
from tools.gpu_queue.tasks import Task, progress, read_queue, tasks_of
from tools.gpu_queue.travel import load_state, state_groups

from fedchoir.utils.errors import UsageError


@pytest.fixture
def tasks(queue_file: Path, tmp_path: Path) -> list[Task]:
    return tasks_of(read_queue(queue_file), tmp_path / "state")


def ends_of_pieces(content: bytes) -> list[int]:
    ends, rest = [], content
    while rest:
        piece = lzma.LZMADecompressor()
        piece.decompress(rest)
        rest = piece.unused_data
        ends.append(len(content) - len(rest))
    return ends


@pytest.mark.parametrize("damage", ["two bytes", "cut inside", "cut before", "cut after", "header", "end"])
def test_damage_behind_an_intact_run_is_named(
    damage: str, tasks: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each run is a piece of its own. What is left without the damaged one is a valid archive of fewer runs."""
    for task in tasks:
        run_to(task, 4)
    save(tasks, tmp_path / "back")
    (path,) = (tmp_path / "back").iterdir()
    content = path.read_bytes()
    first, second, whole = ends_of_pieces(content)
    middle = (first + second) // 2
    changed = bytes(255 - byte for byte in content[middle : middle + 2])
    path.write_bytes({
        "two bytes": content[:middle] + changed + content[middle + 2 :],
        "cut inside": content[:middle],
        "cut before": content[:first],
        "cut after": content[:second],
        "header": content[:first] + b"\0" + content[first + 1 :],
        "end": content[: whole - 3],
    }[damage])  # fmt: skip
    saves, (problem,) = read_archives(tmp_path / "back")
    assert saves == []
    assert problem.startswith(path.name.removesuffix("-1-of-1.tar.xz"))
    assert "which is damaged: " in problem
    with pytest.raises(SystemExit) as error:
        main(["load", str(tmp_path / "back"), "--state", str(tmp_path / "there")])
    assert error.value.code == 1
    assert "left out: results-" in capsys.readouterr().out


def test_saves_of_two_states_in_one_folder(
    queue_file: Path, tasks: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full one, one of fewer rows, one of an earlier state, and the user's own files. Nothing is lost."""
    back = tmp_path / "back"
    back.mkdir()
    own = {name: name.encode() for name in ("results-of-my-thesis.tar.xz", "bundle-of-mine.tar.xz")}
    for name, content in own.items():
        (back / name).write_bytes(content)
    command = ["save", "--queue", str(queue_file), "--state", str(tmp_path / "state"), "--out", str(back)]
    finished = {task.job.out.name: contents(run_to(task, 4)) for task in tasks}
    main(command)
    assert "stay" not in capsys.readouterr().out
    main([*command, "--first", "1"])
    assert f"1 files of earlier archives stay in {back}" in capsys.readouterr().out
    run_to(tasks[0], 2, saved=2)  # on a machine that began again
    main(command)
    assert f"2 files of earlier archives stay in {back}" in capsys.readouterr().out
    assert {name: (back / name).read_bytes() for name in own} == own
    there = tmp_path / "there"
    main(["load", str(back), "--state", str(there)])
    assert {folder.parent.name: contents(folder.parent) for folder in there.rglob("result.json")} == finished


def test_a_link_travels_as_what_it_leads_to(tasks: list[Task], tmp_path: Path) -> None:
    """To a folder, to a file, and to a file of the same archive, as checkpoints have them."""
    real, root = tmp_path / "real", tmp_path / "root"
    for folder in (real, root / "set"):
        folder.mkdir(parents=True)
    (real / "a.npz").write_bytes(b"content")
    (root / "set" / "linked.npz").symlink_to(real / "a.npz")
    (root / "set" / "same.npz").hardlink_to(real / "a.npz")
    (root / "set" / "folder").symlink_to(real)
    (root / "whole").symlink_to(root / "set")
    content = lzma.decompress(packed([(root / "whole", "data/whole"), (root / "set", "data/set")]) + END)
    with tarfile.open(fileobj=BytesIO(content)) as archive:
        archive.extractall(tmp_path / "there", filter="data")
    names = {"linked.npz": b"content", "same.npz": b"content", "folder/a.npz": b"content"}
    assert contents(tmp_path / "there" / "data" / "whole") == contents(tmp_path / "there" / "data" / "set") == names
    (root / "set" / "gone.npz").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"gone\.npz cannot be packed: No such file"):
        packed([(root / "set", "data/set")])


def made_by_hand(folder: Path, name: str, kind: bytes = tarfile.REGTYPE) -> Path:
    member = tarfile.TarInfo(name)
    member.type = kind
    header = member.tobuf(tarfile.USTAR_FORMAT)
    (folder / "results-00000000-1-of-1.tar.xz").write_bytes(lzma.compress(header) + END)
    return folder


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "src/evil.py", "state/../../evil", ".", "./", "", "state"])
def test_an_archive_writes_nothing_outside_the_state(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a file of the state"):
        load_state(made_by_hand(tmp_path, name), tmp_path / "state")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_an_archive_has_only_files(kind: bytes, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'state/a/b/c' is not a file of the state"):
        load_state(made_by_hand(tmp_path, "state/a/b/c", kind), tmp_path / "state")


def test_an_archive_that_unpacks_to_more_than_the_limit(
    tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_to(tasks[0], 4)
    save(tasks, tmp_path / "back")
    (group,) = (group for group in state_groups(tasks, tmp_path / "state") if group.files)
    size = len(lzma.decompress(packed((path, f"state/{path.parent.name}/{path.name}") for path in group.files) + END))
    monkeypatch.setattr(archives, "MAX_UNPACKED", size - 1)
    saves, (problem,) = read_archives(tmp_path / "back")
    assert (saves, "GiB when unpacked" in problem) == ([], True)
    monkeypatch.setattr(archives, "MAX_UNPACKED", size)
    assert read_archives(tmp_path / "back")[1] == []


DEEP = "[" * 100_000


@pytest.mark.parametrize("pointer", ['{"round": 1e999}', DEEP, "[]", '{"round": NaN}', '{"round": ' + "9" * 5000 + "}"])
def test_a_damaged_pointer_to_a_checkpoint_is_none(pointer: str) -> None:
    files = {"checkpoint/latest.json": pointer.encode(), "events.jsonl": b"{}\n"}
    assert progress(files.get) == (False, 0, 1)


@pytest.mark.parametrize("labels", [DEEP, "[]", "{"])
@pytest.mark.parametrize("known", [True, False])
def test_damaged_labels_are_left_out(labels: str, known: bool, tasks: list[Task], tmp_path: Path) -> None:
    folder = run_to(tasks[0], 4).parent
    (folder / "sweep.json").write_text(labels)
    save(tasks, tmp_path / "back")
    there = tmp_path / "there" / folder.name / "sweep.json"
    if known:
        there.parent.mkdir(parents=True)
        there.write_text('{"runs": {"a": "b"}}')
    assert len(load_state(tmp_path / "back", tmp_path / "there").taken) == 1
    assert (there.read_text() if there.exists() else None) == ('{"runs": {"a": "b"}}' if known else None)
