"""Notes of steps: what was read and left, whatever became of it since."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.pipeline import notes as module
from experiments.pipeline.notes import Notes, Step, entry
from study.errors import UserError


def step(folder: Path, **settings: object) -> Step:
    """Reads ``in`` and leaves ``out/*``."""

    def leaves():
        if not (folder / "out").is_dir():
            raise UserError("nothing was left")
        return list((folder / "out").iterdir())

    return Step("train", "train", ("x",), settings, lambda: [folder / "in"], leaves)


def made(folder: Path, text: str = "rows") -> Notes:
    """The notes of a step that was done."""
    (folder / "in").write_text(text)
    (folder / "out").mkdir(exist_ok=True)
    for name in ("a", "b"):
        (folder / "out" / name).write_bytes(f"{name} of {text}".encode())
    notes = Notes(folder)
    done = step(folder, seed=0)
    notes.begin(done, notes.look(done).reads)
    notes.end(done)
    return Notes(folder)  # as another process reads them


def test_a_step_is_done_once_and_without_its_input_not_begun_otherwise(tmp_path):
    assert not Notes(tmp_path).look(step(tmp_path, seed=0)).done
    notes = made(tmp_path)
    assert notes.look(step(tmp_path, seed=0)).done
    assert notes.command(step(tmp_path)) == ("x",)
    (tmp_path / "in").unlink()
    lacking = notes.look(step(tmp_path, seed=0))
    assert (lacking.done, lacking.other_files, lacking.damaged) == (False, False, ())


def test_other_settings_and_other_files_are_told_apart(tmp_path):
    notes = made(tmp_path)
    other = notes.look(step(tmp_path, seed=1))
    assert (other.done, other.other_settings, other.other_files) == (False, True, False)
    (tmp_path / "in").write_text("more")
    other = notes.look(step(tmp_path, seed=0))
    assert (other.done, other.other_settings, other.other_files) == (False, False, True)
    assert str(tmp_path / "in") in other.why
    other = notes.look(step(tmp_path, seed=1))
    assert (other.other_settings, other.other_files) == (True, True)


def test_a_step_that_was_begun_is_known_to_be(tmp_path):
    notes = made(tmp_path)
    begun = step(tmp_path, seed=0)
    notes.begin(begun, notes.look(begun).reads)
    again = Notes(tmp_path).look(begun)
    assert (again.done, again.other_files) == (False, False)
    (tmp_path / "in").write_text("others")
    assert Notes(tmp_path).look(begun).other_files  # begun on other rows


@given(place=st.integers(min_value=0), name=st.sampled_from("ab"), data=st.data())
def test_every_damage_is_noticed(tmp_path_factory, place, name, data):
    folder = tmp_path_factory.mktemp("damage")
    notes = made(folder)
    path = folder / "out" / name
    before, stat = path.read_bytes(), path.stat()
    place %= len(before)
    changed = before[:place] + bytes([before[place] ^ 0x10]) + before[place + 1 :]
    damaged = data.draw(st.sampled_from([changed, before[:place], before + b"!", None]))
    path.unlink() if damaged is None else path.write_bytes(damaged)
    if damaged is not None:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # nor does its time tell
    outcome = notes.look(step(folder, seed=0))
    assert (outcome.done, outcome.damaged) == (False, (path,))
    path.write_bytes(before)
    assert notes.look(step(folder, seed=0)).done


def test_a_large_file_is_not_read_while_its_size_and_time_stay(tmp_path, monkeypatch):
    path = tmp_path / "large"
    path.write_bytes(b"0123456789")
    before = entry(path)
    monkeypatch.setattr(module, "SMALL", 4)
    with monkeypatch.context() as blind:
        blind.setattr(module, "sha256", lambda path: pytest.fail(f"{path} was read"))
        assert entry(path, before) == before
    os.utime(path, ns=(1, 1))
    assert entry(path, before) == {**before, "mtime_ns": 1}  # the same by its hash
    path.write_bytes(b"9876543210")
    assert entry(path, before)["sha256"] != before["sha256"]


def test_what_should_have_been_left_and_is_not_is_an_error(tmp_path):
    (tmp_path / "in").write_text("rows")
    notes = Notes(tmp_path)
    empty = step(tmp_path)
    notes.begin(empty, notes.look(empty).reads)
    with pytest.raises(UserError, match="nothing was left"):
        notes.end(empty)
    gone = Step("train", "train", ("x",), {}, empty.reads, lambda: [tmp_path / "nowhere"])
    with pytest.raises(UserError, match="nowhere cannot be read"):
        notes.end(gone)
    assert not Notes(tmp_path).look(empty).done
