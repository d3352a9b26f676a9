"""A cell of a URL, run by `experiments.train` with a stand-in for the training."""

import pytest

from experiments import train
from experiments.launch.watch import Watch
from study.cell import cells, exchange, lease, places
from study.cell.exchange import fetch, folder_of
from study.cell.folder import CellFolder
from study.cell.places import StorageError, local
from study.cell.records import Recorder
from study.errors import UserError
from tests.experiments.fake_cells import laid


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes this process another machine; returns the study's folder there."""

    def become(name):
        monkeypatch.setenv(places.VARIABLE, str(tmp_path / name))
        return local(f"file://{tmp_path}/far") / "fake"

    return become


@pytest.fixture
def cell(machine, tmp_path, monkeypatch):
    """Laid by a sweep on machine one."""
    monkeypatch.setattr(lease, "SETTLES_S", 0.01)
    monkeypatch.setattr(train, "train", body)
    machine("one")
    (cell,) = laid(f"file://{tmp_path}/far", 1)
    cell.folder.push_if_new()
    return cell


def body(cell, threads, spent):
    Recorder(cell.folder).write_step(1, [], [], {"reward/mean": 0.5})


def test_a_cell_of_a_url_is_laid_in_its_copy(cell, tmp_path):
    assert cell.folder.path.is_relative_to(tmp_path / "one")
    (config,) = (tmp_path / "far" / "fake" / cell.name).glob("config.*.yaml")
    assert config.read_text() == (cell.folder / "config.yaml").read_text()


def test_another_machine_runs_it_and_the_first_has_nothing_to_do(cell, machine, tmp_path, capsys):
    study = machine("two")
    CellFolder(study / cell.name).find()
    assert train.run_cell(CellFolder(study / cell.name)) == 0
    assert train.run_cell(CellFolder(machine("three") / cell.name)) == 0
    assert "was ended by another machine" in capsys.readouterr().out
    machine("one")
    assert cell.folder.state() == "new"
    Watch([cell]).ended(cell.folder, 0)
    assert f"{cell.name}: done after " in capsys.readouterr().out
    assert train.run_cell(cell.folder) == 0
    assert cell.folder.is_done() and [part.step for part in cell.folder.parts("rollouts")] == [1]
    study = machine("four")
    assert folder_of(f"file://{tmp_path}/far/fake") == study
    assert CellFolder(study / cell.name).state() == "done"


def test_a_cell_that_another_machine_runs_is_busy(cell, machine, capsys):
    with lease.held(cell.folder):
        study = machine("two")
        CellFolder(study / cell.name).find()
        assert train.run_cell(CellFolder(study / cell.name)) == cells.BUSY
    assert "is being run by process" in capsys.readouterr().out


def test_an_end_that_cannot_be_sent_is_no_end(cell, machine, monkeypatch, capsys):
    def dropped(fs, path, data):
        raise ConnectionResetError("the other side hung up")

    with monkeypatch.context() as patch:
        patch.setattr(exchange, "put", dropped)
        assert train.run_cell(cell.folder) == 2
    assert "the connection broke off" in capsys.readouterr().out
    assert cell.folder.state() == "killed"
    study = machine("two")
    fetch(study)
    assert CellFolder(study / cell.name).state() == "new"
    machine("one")
    assert train.run_cell(cell.folder) == 0 and cell.folder.state() == "done"


def test_a_run_that_failed_says_so_elsewhere(cell, machine, monkeypatch):
    def fails(cell, threads, spent):
        raise UserError("the judge is gone")

    monkeypatch.setattr(train, "train", fails)
    assert train.run_cell(cell.folder) == 2
    study = machine("two")
    fetch(study)
    assert CellFolder(study / cell.name).state() == "failed"


def test_a_cell_can_be_named_by_its_url(cell, machine, tmp_path, capsys):
    machine("two")
    word = f"cell=file://{tmp_path}/far/fake/{cell.name}"
    assert train.main([word, "threads=1"]) == 0
    assert train.main([f"{word}x"]) == 2
    assert f"but {word}x is not one" in capsys.readouterr().err


def test_a_place_that_may_not_be_written_is_refused_before_anything_runs(machine, tmp_path):
    study = machine("one")
    (tmp_path / "far").write_text("a file")
    with pytest.raises(StorageError, match="could not be used"):
        exchange.check(study.parent)
