"""A disk that is full or may only be read: one paragraph, one step lost, and the run goes on."""

import contextlib
import errno
import json
import os
import sqlite3
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import train
from experiments.launch.pool import _Log
from judges.endpoint.failures import EndpointRefused
from study.cell.cells import REFUSED
from study.cell.folder import LOCK, CellFolder, study_cells
from study.cell.records import ROLLOUT, VERDICT, Recorder, rollout_id
from study.system import files, locks, storage
from tests.conftest import SLOWLY, python
from tests.faults import lives
from tests.waiting import GENEROUS_S, wait_for

RUN = (*lives.TINY, *lives.FLAKY, "tracking=none")


def write(recorder: Recorder, step: int) -> None:
    rollout = dict.fromkeys(ROLLOUT) | {"rollout_id": rollout_id(step, 0), "step": step}
    verdict = dict.fromkeys(VERDICT) | {"rollout_id": rollout_id(step, 0), "step": step}
    recorder.write_step(step, [rollout], [verdict], {"reward/mean": 0.5})
    recorder.sync()


def contents(folder: Path) -> dict[str, bytes]:
    lines = [{**line, "time_ms": 0, "digest": ""} for line in CellFolder(folder).lines()]
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("step-*.parquet")}
    return {**found, "metrics": json.dumps(lines).encode()}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_step_that_cannot_be_written_costs_itself_and_nothing_else(tmp_path, monkeypatch, number):
    """Every call to the system that a step makes fails once, in turn."""
    straight = tmp_path / "straight" / "cell"
    recorder = Recorder(straight)
    write(recorder, 1), write(recorder, 2)
    for name in ("mkstemp", "replace", "fsync", "open"):
        for turn in range(20):
            folder = tmp_path / f"{name}{turn}" / "cell"
            recorder = Recorder(folder)
            write(recorder, 1)
            before = contents(folder)
            owner = files.tempfile if name == "mkstemp" else os
            real, calls = getattr(owner, name), []

            def fails(*given, real=real, calls=calls, turn=turn, **more):
                calls.append(given)
                if len(calls) == turn + 1:
                    raise OSError(number, os.strerror(number), str(folder))  # noqa: B023
                return real(*given, **more)

            monkeypatch.setattr(owner, name, fails)
            with contextlib.suppress(OSError):
                write(recorder, 2)
            failed = len(calls) > turn
            monkeypatch.setattr(owner, name, real)
            assert before.items() - {("metrics", before["metrics"])} <= contents(folder).items()
            assert not [path for path in folder.rglob(".*") if path.is_file()]
            again = Recorder(folder, after_step=1)
            assert contents(folder) == before
            write(again, 2)
            assert contents(folder) == contents(straight)
            if not failed:
                break
        assert turn, f"{name} was never called"


def test_a_metrics_line_that_does_not_fit_leaves_nothing(tmp_path):
    path = tmp_path / "lines"
    files.append_line(path, "whole")
    code = (
        "import resource, sys\nsys.dont_write_bytecode = True  # else it is cut short, too\n"
        "from pathlib import Path\nfrom study.system import files\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))\n"
        "try:\n files.append_line(Path(sys.argv[1]), 'x' * 100)\nexcept OSError as e:\n"
        " from study.system.storage import explained\n print(explained(e, Path(sys.argv[1])))\n"
    )
    said, _ = python(code, path).communicate()
    assert "largest size that is allowed" in said and "ulimit -f" in said
    assert path.read_text() == "whole\n"


def test_what_a_checkpoint_meets_is_known_wherever_in_a_file_it_is_met(tmp_path):
    """Files of at most so many bytes: each library fails at its own place, in its own words."""
    code = (
        "import resource, sys\nsys.dont_write_bytecode = True  # else it is cut short, too\n"
        "from pathlib import Path\nimport torch\n"
        "from safetensors.torch import save_file\n"
        "from tokenizers import Tokenizer, models\nfrom study.system.storage import explained\n"
        "folder = Path(sys.argv[1])\ntensor = {'weight': torch.zeros(500)}\n"
        "words = Tokenizer(models.WordLevel({str(i): i for i in range(500)}))\n"
        "savers = dict(torch=lambda path: torch.save(tensor, path),\n"
        "    safetensors=lambda path: save_file(tensor, path),\n"
        "    tokenizers=lambda path: words.save(str(path)))\n"
        "for name, save in savers.items():\n"
        "    save(folder / name)\n"
        "    size = (folder / name).stat().st_size\n"
        "    for limit in range(0, size, 100):\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))\n"
        "        error = trouble = None\n"
        "        try:\n            save(folder / name)\n"
        "        except Exception as raised:\n            error = raised\n"
        "        if error: trouble = explained(error, folder)\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "        if 'largest size' not in str(trouble):\n"
        "            print(name, size, limit, repr(error), trouble)\n"
    )
    said, _ = python(code, tmp_path).communicate()
    assert said == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "safetensors",
        "tokenizers",
        "torch",
    ]


def test_a_full_log_does_not_end_the_run_that_talks_to_it():
    with open("/dev/full", "wb", buffering=0) as full:
        log = _Log(full.fileno(), "w", closefd=False)
        assert log.write(b"step 1") == 6
    assert isinstance(log, _Log)


class SafetensorError(Exception):
    """As the library of this name raises."""


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("[Errno 28] Error writing bytes to file. Detail: No space left on device"),
        sqlite3.OperationalError("database or disk is full"),
        SafetensorError("Error while serializing: I/O error: No space left (os error 28)"),
        Exception("No space left on device (os error 28)"),
    ],
)
def test_the_disk_is_known_by_what_libraries_say(error, tmp_path):
    try:
        raise ValueError("while saving") from error
    except ValueError as raised:
        trouble = storage.explained(raised, tmp_path)
    said = str(trouble)
    assert "no space is left" in said and " bytes are free" in said and "\n" not in said
    assert "Free space there, then rerun the command" in said


def test_a_cell_whose_lock_finds_no_room_says_so(tmp_path, monkeypatch, capsys):
    def fails(path, *given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(locks.os, "open", fails)
    assert train.run_cell(CellFolder(tmp_path)) == storage.EXIT
    said = capsys.readouterr()
    assert f"{tmp_path / LOCK} cannot be written" in said.out and not said.err


def test_a_judge_whose_own_disk_is_full_is_not_taken_for_ours(tmp_path, capsys):
    refused = EndpointRefused(500, "refused", "No space left on device (os error 28)")
    assert train._failure(refused, CellFolder(tmp_path)) == (REFUSED, str(refused))
    assert "cannot be written" not in capsys.readouterr().out


@pytest.mark.parametrize(("cause", "inodes"), [(errno.ENOSPC, True), (errno.EROFS, False)])
def test_a_disk_without_inodes_is_full_with_room_on_it(cause, inodes, tmp_path, monkeypatch):
    stats = SimpleNamespace(f_bavail=5, f_frsize=4096, f_files=9, f_favail=0, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda place: stats)
    trouble = storage.paragraph(cause, tmp_path)
    assert ("no free inodes" in trouble) is inodes and "20480 bytes are free" in trouble


def test_other_errors_are_none_of_the_disk(tmp_path):
    for error in (ValueError("28"), OSError(errno.ENOENT, "gone"), RuntimeError("file write")):
        assert storage.explained(error, tmp_path) is None


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own of 24 MB; the test is skipped where none may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    filler = place / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass
    return filler


@pytest.mark.slow
def test_a_run_goes_on_where_the_disk_stopped_it(
    small_disk, small_study, trained, warmed, tmp_path
):
    runs_dir = warmed(small_disk / "runs")

    def again(*more: str) -> tuple[int, str]:
        done = trained(runs_dir, *RUN, *more)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    with ThreadPoolExecutor(1) as beside:
        sweep = beside.submit(again, SLOWLY)
        reached(runs_dir, 1, sweep)
        filler = fill(small_disk)
        code, said = sweep.result(timeout=GENEROUS_S)
    (folder,) = study_cells(runs_dir / "debug")
    assert code == 2 and "no space is left" in said, said
    assert "rerun the command" in said
    assert "Traceback" not in said + (folder / "log.txt").read_text()

    code, said = again()
    assert code == 2 and "no space is left" in said and "Traceback" not in said, said
    remount(small_disk, "ro")
    code, said = again()
    assert code == 2 and "it may only be read" in said and "Traceback" not in said, said
    remount(small_disk, "rw")
    filler.unlink()
    code, said = again()
    assert code == 0, said
    assert lives.differences(folder.path, small_study / folder.name) == []


def reached(runs_dir: Path, step: int, sweep: Future[tuple[int, str]]) -> None:
    def is_reached() -> bool:
        assert not sweep.done(), f"the sweep ended before its disk did: {sweep.result()}"
        folders = study_cells(runs_dir / "debug")
        return any(line["step"] >= step for folder in folders for line in folder.lines())

    wait_for(is_reached, f"step {step}")


def remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)
