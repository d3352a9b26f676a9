"""A sweep that watches many cells reads what changed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from experiments.launch import watch
from experiments.launch.watch import Watch
from study import cells
from tests.experiments.fake_cells import laid


@pytest.fixture
def counted(monkeypatch) -> list[str]:
    """Names of the cells whose status was read."""
    names: list[str] = []
    read = watch.read_status

    def reading(folder):
        names.append(folder.name)
        return read(folder)

    monkeypatch.setattr(watch, "read_status", reading)
    return names


def shown(watched: Watch) -> Watch:
    watched._live = SimpleNamespace(update=lambda text: None)  # ty: ignore[invalid-assignment]
    return watched


def test_only_what_changed_is_read(tmp_path, counted) -> None:
    first, second, third = todo = laid(tmp_path, 3)
    watched = shown(Watch(todo))
    watched.tick()
    assert counted == []  # nothing was begun
    for cell in (first, second):
        assert not watched.skips(cell.dir)
        cells.set_status(cell.dir, state="running", step=1, phase="judging")
    watched.tick()
    watched.tick()
    assert sorted(counted) == sorted([first.name, second.name])
    assert watched.lines()[0] == f"{first.name}  step 1/2  judging"
    cells.set_status(second.dir, step=2)
    watched.tick()
    assert counted[2:] == [second.name]
    cells.set_status(first.dir, state="done", exit_code=0)
    (first.dir / "DONE").touch()
    watched.ended(first.dir, 0)
    del counted[:]
    watched.tick()
    assert counted == [] and [line.split()[0] for line in watched.lines()] == [second.name]
    assert third.name not in " ".join(watched.lines())


def test_of_many_cells_some_are_looked_at_in_turn(tmp_path, counted, monkeypatch) -> None:
    monkeypatch.setattr(watch, "LOOKS", 4)
    todo = laid(tmp_path, 10)
    watched = shown(Watch(todo))
    for cell in todo:
        watched.skips(cell.dir)
        cells.set_status(cell.dir, state="running")
    watched.tick()
    assert len(counted) == 4
    watched.tick()
    watched.tick()
    assert set(counted) == {cell.name for cell in todo} and len(counted) == 10
