"""Studies and cells on the disk: listed, shown, and cleaned."""

import dataclasses
import os
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments import ui
from experiments.studies import clean, show
from experiments.studies import list as listing
from experiments.studies.sizes import format_size, size
from experiments.sweep import cells_of
from judges.serving.book import BOOK, Book, Service
from judges.serving.server import Server, start_time
from study.cell import cells
from study.cell.folder import study_cells
from study.cell.study_file import read_study, write_study
from study.errors import UserError
from study.system.files import write_yaml
from tests.plain_user import plain_user
from tests.waiting import GENEROUS_S

Printed = Callable[..., str]


@pytest.fixture
def study(small_study: Path, tmp_path: Path) -> Path:
    """A copy of the small finished study."""
    return shutil.copytree(small_study, tmp_path / "runs" / small_study.name, symlinks=True)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """What a command prints that does what it was told."""

    def by(command: Callable[[list[str]], int], *words: str) -> str:
        assert command(list(words)) == 0
        return capsys.readouterr().out

    return by


def test_sizes_have_three_digits(tmp_path: Path) -> None:
    sizes = {0: "0 B", 999: "999 B", 1000: "1 kB", 1234567: "1.23 MB", 5e15: "5e+03 TB"}
    assert {n: format_size(n) for n in sizes} == sizes
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"123")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert size(tmp_path / "a") == 3 and size(tmp_path / "gone") == 0
    assert size(tmp_path / "link") == (tmp_path / "link").lstat().st_size


def test_studies_are_listed_with_state_arms_and_size(study: Path, printed: Printed) -> None:
    shown = printed(listing.main, f"runs_dir={study.parent}")
    assert study.name in shown and "4 done" in shown and format_size(size(study)) in shown
    shown = printed(listing.main, f"runs_dir={study.parent}", f"study={study.name}")
    held = study_cells(study)
    assert len(held) == 4 and all(cell.name in shown for cell in held)
    assert shown.count("2/2") == 4 and "sim-flaky" in shown


def test_no_study_says_how_to_make_one(tmp_path: Path, printed: Printed) -> None:
    assert "holds no study" in printed(listing.main, f"runs_dir={tmp_path}")


def test_a_cell_is_shown_with_the_command_that_makes_it_again(study, printed) -> None:
    for cell in study_cells(study):
        shown = printed(show.main, f"cell={cell.name}", f"runs_dir={study.parent}")
        for part in ("done, step 2 of 2", "judge/mean", "rollouts/", "time/step_s"):
            assert part in shown
        words = shlex.split(shown.splitlines()[-1])
        assert words[:2] == ["judgedrift", "sweep"]
        (made,) = cells_of(words[2:])
        assert made.folder == cell and made.id == cells.load_cell(cell).id


def test_a_cell_of_another_version_is_run_from_its_folder(study: Path) -> None:
    folder = study_cells(study)[0]
    config = folder.config()
    config["trainer"]["max_grad_norm"] = 0.5
    write_yaml(folder / "config.yaml", config)
    cell = cells.load_cell(folder)
    assert show.arguments_of(cell)  # a setting is typed
    lost = dataclasses.replace(cell, id="0123456789")
    assert show.again(lost) == f"python -m experiments.train cell={folder}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"), (True, "true"), (0.5, "0.5"), ("a-b/c.d", "a-b/c.d"), ("3", "'3'"),
        ("true", "'true'"), ("", "''"), ("it's, a \\ b", "'it\\'s, a \\ b'"),
        ("a\\'b\\", "'a\\\\\\'b\\\\'"), (["a", 1], "[a,1]"),
        ({"x": [0.5], "y": ""}, "{x:[0.5],y:''}"),
    ],
)  # fmt: skip
def test_values_are_typed_as_hydra_reads_them(value, text) -> None:
    assert show.value_text(value) == text
    assert OverridesParser.create().parse_override(f"key={text}").value() == value


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sim-fare", "The nearest are sim-fair-s"),
        ("sim-f", "is the beginning of"),
        ("nothing", "judgedrift list runs_dir="),
    ],
)
def test_a_cell_that_is_not_there_is_said_with_the_nearest(study, name, words) -> None:
    with pytest.raises(UserError, match=f"cell={name} is") as refused:
        show.find(name, study.parent)
    assert words in str(refused.value)


def litter(study: Path) -> list[Path]:
    """What writers that were killed leave."""
    cell = study_cells(study)[0]
    old = study / ".study.json.abcd1234"
    old.write_text("half")
    os.utime(old, (time.time() - 2 * clean.OLD_S,) * 2)
    (study / ".fresh.json.abcd1234").write_text("somebody writes it now")
    left = [cell / ".status.json.abcd1234", study.parent / ".write-999999999", old]
    for path in left[:2]:
        path.write_text("half")
    return left


def records(study: Path) -> dict[str, int]:
    files = [path for path in study.rglob("*") if path.is_file()]
    kept = [path for path in files if "checkpoints" not in path.parts]
    return {path.relative_to(study).as_posix(): path.stat().st_size for path in kept}


def test_clean_says_first_and_takes_only_what_may_go(study: Path, printed: Printed) -> None:
    before = records(study)
    left = litter(study)
    runs = f"runs_dir={study.parent}"
    assert "No file was removed" in printed(clean.main, runs)
    assert all(path.exists() for path in left) and len(list(study.glob("*/checkpoints"))) == 4
    assert "Removed: 7 of 7" in printed(clean.main, runs, "yes=true")
    assert not any(path.exists() for path in left) and not list(study.glob("*/checkpoints"))
    after = records(study)
    assert after.pop(".fresh.json.abcd1234") and after == before
    assert "holds nothing to remove." in printed(clean.main, runs)


def test_a_cell_that_is_not_done_keeps_its_checkpoints(study: Path) -> None:
    first, second, *_ = study_cells(study)
    (first / "DONE").unlink()
    with second.lock() or pytest.fail("the cell is held"):
        places = [each.path for each in clean.of_study(study)]
        assert first / "checkpoints" not in places and len(places) == 3
        each = clean.Removable(second / "checkpoints", clean.CHECKPOINTS, second)
        assert clean.remove(each) is False
    assert (second / "checkpoints").is_dir()


def test_checkpoints_without_a_final_policy_stay(study: Path) -> None:
    first, *others = study_cells(study)
    shutil.rmtree(first / "policy")
    places = {each.path for each in clean.of_study(study)}
    assert places == {cell / "checkpoints" for cell in others}
    each = clean.Removable(first / "checkpoints", clean.CHECKPOINTS, first)
    assert clean.remove(each) is False and (first / "checkpoints").is_dir()


Left = tuple[Service, subprocess.Popen[bytes]]


@pytest.fixture
def left_server(tmp_path: Path) -> Iterator[Left]:
    """A service whose owner is gone, and its server, which still runs."""
    service = Service(tmp_path / "runs" / "servers" / "tiny")
    service.prepare()
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    started = start_time(process.pid) or ""
    log = service.folder / "a.log"
    log.write_text("what it said")
    replica = Server(process.pid, started, "http://127.0.0.1:1/v1", str(log), state="ready")
    owner = dataclasses.replace(service.this_process(), pid=2**22 + 1)
    service.write(Book(1, "tiny", "ready", 0.0, owner, [replica]))
    yield service, process
    process.kill()
    process.wait()


def test_a_server_without_owner_is_stopped_before_its_book_goes(left_server, printed) -> None:
    service, process = left_server
    runs, book = f"runs_dir={service.folder.parent.parent}", service.folder / BOOK
    shown = printed(clean.main, runs)
    assert str(book) in shown and f"can be removed: {format_size(size(book))}" in shown
    assert process.poll() is None
    reaper = threading.Thread(target=process.wait, daemon=True)  # as init does for an orphan
    reaper.start()
    assert "Removed: 1 of 1" in printed(clean.main, runs, "yes=true")
    assert service.read() is None
    reaper.join(GENEROUS_S)
    assert process.returncode is not None
    assert (service.folder / "a.log").exists()


def test_a_service_without_owner_that_is_used_stays(left_server: Left) -> None:
    service, process = left_server
    (found,) = clean.of_folder(service.folder.parent.parent)
    service.add_user()
    assert list(clean.of_folder(service.folder.parent.parent)) == []
    assert clean.remove(found) is False
    assert service.read() is not None and process.poll() is None


def test_what_may_not_be_taken_away_is_said(study: Path, printed: Printed) -> None:
    folders = [study, *(path for path in study.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    with plain_user():
        shown = printed(clean.main, f"runs_dir={study.parent}", "yes=true")
    for folder in folders:
        folder.chmod(0o700)
    assert "checkpoints stays: Permission denied" in shown and "Removed: 0 of 4, 0 B." in shown


def test_a_study_that_was_not_tracked_says_how_to(study: Path) -> None:
    write_study(study, {**read_study(study), "mlflow": {}})
    with pytest.raises(UserError, match=f"tracking rebuild study={study.name}"):
        ui.tracked(study.parent, study.name)
    with pytest.raises(UserError, match=f"its studies: {study.name}"):
        ui.tracked(study.parent, None)
