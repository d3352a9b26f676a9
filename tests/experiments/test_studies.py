"""Studies and cells on the disk: listed, shown, and cleaned."""

import dataclasses
import os
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments import ui
from experiments.studies import again, clean, show
from experiments.studies import list as listing
from experiments.studies.sizes import said, size
from experiments.sweep import cells_of
from judges.serving.book import BOOK, Book, Replica, Service
from judges.serving.server import start_time
from study import cells
from study.errors import UserError
from study.study_file import read_study, write_study


@pytest.fixture
def study(small_study: Path, tmp_path: Path) -> Path:
    """A copy of the small finished study."""
    shutil.copytree(small_study, tmp_path / "runs" / small_study.name, symlinks=True)
    return tmp_path / "runs" / small_study.name


def test_sizes_have_three_digits(tmp_path: Path) -> None:
    assert [said(n) for n in (0, 999, 1000, 1234567, 5e15)] == [
        *("0 B", "999 B", "1 kB", "1.23 MB", "5e+03 TB")
    ]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"123")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert size(tmp_path / "a") == 3 and size(tmp_path / "gone") == 0
    assert size(tmp_path / "link") == (tmp_path / "link").lstat().st_size


def test_studies_are_listed_with_state_arms_and_size(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listing.main([f"runs_dir={study.parent}"]) == 0
    printed = capsys.readouterr().out
    assert study.name in printed and "4 done" in printed and said(size(study)) in printed
    assert listing.main([f"runs_dir={study.parent}", f"study={study.name}"]) == 0
    printed = capsys.readouterr().out
    held = cells.study_cells(study)
    assert len(held) == 4 and all(cell.name in printed for cell in held)
    assert printed.count("2/2") == 4 and "sim-flaky" in printed


def test_no_study_says_how_to_make_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listing.main([f"runs_dir={tmp_path}"]) == 0
    assert "holds no study" in capsys.readouterr().out


def test_a_cell_is_shown_with_the_command_that_makes_it_again(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for cell in cells.study_cells(study):
        assert show.main([f"cell={cell.name}", f"runs_dir={study.parent}"]) == 0
        printed = capsys.readouterr().out
        assert "done, step 2 of 2" in printed and "judge/mean" in printed and "rollouts/" in printed
        assert "time/step_s" in printed
        words = shlex.split(printed.splitlines()[-1])
        assert words[:2] == ["judgedrift", "sweep"]
        (made,) = cells_of(words[2:])
        assert made.dir == cell and made.id == cells.load_cell(cell).id


def test_a_cell_of_another_version_is_run_from_its_folder(study: Path) -> None:
    folder = cells.study_cells(study)[0]
    text = (folder / "config.yaml").read_text().replace("max_grad_norm: 1.0", "max_grad_norm: .5")
    (folder / "config.yaml").write_text(text + "\n")
    cell = cells.load_cell(folder)
    assert again.arguments_of(cell)  # a setting is typed
    lost = dataclasses.replace(cell, id="0123456789")
    assert show.again(lost) == f"python -m experiments.train cell={folder}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0.5, "0.5"),
        ("a-b/c.d", "a-b/c.d"),
        ("3", "'3'"),
        ("true", "'true'"),
        ("", "''"),
        ("it's, a \\ b", "'it\\'s, a \\ b'"),
        ("a\\'b\\", "'a\\\\\\'b\\\\'"),
        (["a", 1], "[a,1]"),
        ({"x": [0.5], "y": ""}, "{x:[0.5],y:''}"),
    ],
)
def test_values_are_typed_as_hydra_reads_them(value, text) -> None:
    assert again.value_text(value) == text
    parsed = OverridesParser.create().parse_override(f"key={text}").value()
    assert parsed == value


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sim-fare", "The nearest are sim-fair-s"),
        ("sim-f", "is the beginning of"),
        ("nothing", "judgedrift list runs_dir="),
    ],
)
def test_a_cell_that_is_not_there_is_said_with_the_nearest(
    study: Path, name: str, words: str
) -> None:
    with pytest.raises(UserError, match=f"cell={name} is") as refused:
        show.find(name, study.parent)
    assert words in str(refused.value)


def litter(study: Path) -> list[Path]:
    """What writers that were killed leave."""
    cell = cells.study_cells(study)[0]
    old = study / ".study.json.abcd1234"
    old.write_text("half")
    os.utime(old, (time.time() - 2 * clean.OLD_S,) * 2)
    (study / ".fresh.json.abcd1234").write_text("somebody writes it now")
    left = [cell / ".status.json.abcd1234", study.parent / ".write-999999999", old]
    for path in left[:2]:
        path.write_text("half")
    return left


def records(study: Path) -> dict[str, int]:
    return {
        path.relative_to(study).as_posix(): path.stat().st_size
        for path in study.rglob("*")
        if path.is_file() and "checkpoints" not in path.parts
    }


def test_clean_says_first_and_takes_only_what_may_go(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = records(study)
    left = litter(study)
    arguments = [f"runs_dir={study.parent}"]
    assert clean.main(arguments) == 0
    assert "Nothing was touched" in capsys.readouterr().out
    assert all(path.exists() for path in left)
    assert len(list(study.glob("*/checkpoints"))) == 4
    assert clean.main([*arguments, "yes=true"]) == 0
    assert "Gone: 7 of 7" in capsys.readouterr().out
    assert not any(path.exists() for path in left) and not list(study.glob("*/checkpoints"))
    after = records(study)
    assert after.pop(".fresh.json.abcd1234") and after == before
    assert clean.main(arguments) == 0
    assert "may go." in capsys.readouterr().out


def test_a_cell_that_is_not_done_keeps_its_checkpoints(study: Path) -> None:
    first, second, *_ = cells.study_cells(study)
    (first / "DONE").unlink()
    held = cells.lock(second)
    assert held is not None
    with held:
        places = [each.path for each in clean.of_study(study)]
        assert first / "checkpoints" not in places and len(places) == 3
        assert clean.remove(clean.Removable(second / "checkpoints", clean.CHECKPOINTS, second)) is (
            False
        )
    assert (second / "checkpoints").is_dir()


def test_checkpoints_without_a_final_policy_stay(study: Path) -> None:
    first, *others = cells.study_cells(study)
    shutil.rmtree(first / "policy")
    places = {each.path for each in clean.of_study(study)}
    assert places == {cell / "checkpoints" for cell in others}
    each = clean.Removable(first / "checkpoints", clean.CHECKPOINTS, first)
    assert clean.remove(each) is False and (first / "checkpoints").is_dir()


@pytest.fixture
def left_server(tmp_path: Path) -> Iterator[tuple[Service, subprocess.Popen[bytes]]]:
    """A service whose owner is gone, and its server, which still runs."""
    service = Service(tmp_path / "runs" / "servers" / "tiny")
    service.prepare()
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    started = start_time(process.pid) or ""
    url, log = "http://127.0.0.1:1/v1", service.folder / "a.log"
    log.write_text("what it said")
    replica = Replica(url, process.pid, started, "ready", 0, str(log))
    owner = dataclasses.replace(service.me(), pid=2**22 + 1)
    service.write(Book(1, "tiny", "ready", 0.0, owner, [replica]))
    yield service, process
    process.kill()
    process.wait()


def test_a_server_without_owner_is_stopped_before_its_book_goes(
    left_server: tuple[Service, subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    service, process = left_server
    arguments = [f"runs_dir={service.folder.parent.parent}"]
    assert clean.main(arguments) == 0
    printed = capsys.readouterr().out
    book = service.folder / BOOK
    assert str(book) in printed and f"may go: {said(size(book))}" in printed
    assert process.poll() is None
    threading.Thread(target=process.wait, daemon=True).start()  # as init does for an orphan
    assert clean.main([*arguments, "yes=true"]) == 0
    assert "Gone: 1 of 1" in capsys.readouterr().out
    assert process.poll() is not None and service.read() is None
    assert (service.folder / "a.log").exists()


def test_a_service_without_owner_that_is_used_stays(
    left_server: tuple[Service, subprocess.Popen[bytes]],
) -> None:
    service, process = left_server
    (found,) = clean.of_folder(service.folder.parent.parent)
    service.enter()
    assert list(clean.of_folder(service.folder.parent.parent)) == []
    assert clean.remove(found) is False
    assert service.read() is not None and process.poll() is None


def test_what_may_not_be_taken_away_is_said(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(1, "not yours", str(path))

    monkeypatch.setattr(clean.shutil, "rmtree", refused)
    assert clean.main([f"runs_dir={study.parent}", "yes=true"]) == 0
    printed = capsys.readouterr().out
    assert "checkpoints stays: not yours" in printed and "Gone: 0 of 4, 0 B." in printed


def test_mlflow_is_opened_on_the_store_of_the_study(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [f"runs_dir={study.parent}", f"study={study.name}"]
    assert ui.main([*arguments, "print_only=true"]) == 0
    printed = capsys.readouterr().out
    uri = read_study(study)["mlflow"]["uri"]
    assert f"--backend-store-uri {uri}" in printed and "compareRunsMode=CHART" in printed
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execvpe", lambda file, words, env: started.append((words, env)))
    ui.main(arguments)
    ((words, variables),) = started
    assert words[1:4] == ["-m", "mlflow", "ui"] and uri in words
    assert variables["MLFLOW_DISABLE_TELEMETRY"] == "true" and "PATH" in variables


def test_a_study_that_was_not_tracked_says_how_to(tmp_path: Path, study: Path) -> None:
    described = {**read_study(study), "mlflow": {}}
    write_study(study, described)
    with pytest.raises(UserError, match=f"tracking rebuild study={study.name}"):
        ui.tracked(study.parent, study.name)
    with pytest.raises(UserError, match=f"its studies: {study.name}"):
        ui.tracked(study.parent, None)
