"""A checkpoint counts while it is what was written; the policy is that of the last one."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.policies import checkpoints
from experiments.policies.checkpoints import (
    COMPLETE,
    fault,
    foreign,
    newest,
    resume,
    save_policy,
    seal,
)
from study.cell.folder import CellFolder
from study.errors import UserError

FILES = {
    "adapter_model.safetensors": b"weights", "adapter_config.json": b"{}", "empty.json": b"",
    "optimizer.pt": b"moments", "rng_state.pth": b"random", "trainer_state.json": b"{}",
    "sub/more.bin": b"more",
}  # fmt: skip
POLICY = {"adapter_model.safetensors", "adapter_config.json", "empty.json", "sub/more.bin"}


def made(cell, step, cell_id="id"):
    path = checkpoints.path_of(cell, step)
    for name, content in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content + str(step).encode() * bool(content))
    seal(path, cell_id)
    return path


@pytest.fixture
def cell(tmp_path):
    return CellFolder(tmp_path)


@pytest.fixture
def two(cell):
    """A cell with checkpoints 9 and 10: by name, 9 would come last."""
    made(cell, 9)
    made(cell, 10)
    return cell


def link(path):
    shutil.move(path, path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


def instead(name, make):
    """Something else in place of a file."""
    return lambda path: ((path / name).unlink(), make(path / name))


def says(text):
    return lambda path: (path / COMPLETE).write_text(text)


DAMAGES = {
    "a file is missing": lambda path: (path / "optimizer.pt").unlink(),
    "a file below is missing": lambda path: (path / "sub" / "more.bin").unlink(),
    "cut": lambda path: os.truncate(path / "optimizer.pt", 3),
    "longer": lambda path: (path / "optimizer.pt").write_bytes(b"moments10 and more"),
    "a byte flipped": lambda path: (path / "optimizer.pt").write_bytes(b"momentz10"),
    "a file is a folder": instead("optimizer.pt", Path.mkdir),
    "a file is a pipe": instead("empty.json", os.mkfifo),
    "the manifest is a pipe": instead(COMPLETE, os.mkfifo),
    "a link in a circle": instead("optimizer.pt", lambda file: file.symlink_to("optimizer.pt")),
    "never sealed": lambda path: (path / COMPLETE).unlink(),
    "sealed as before manifests": says(""),
    "the manifest is cut": lambda path: os.truncate(path / COMPLETE, 40),
    "the manifest is bytes": lambda path: (path / COMPLETE).write_bytes(b"\xff\x00\x9f"),
    "the manifest is a list": says("[1]"),
    "the manifest is deep": says("[" * 100_000),
    "the manifest names nothing": says('{"cell": "id", "files": {}}'),
    "the manifest names a file elsewhere": says(
        '{"cell": "id", "files": {"../x": {"size": 1, "sha256": ""}}}'
    ),
    "the manifest has no sizes": says('{"cell": "id", "files": {"optimizer.pt": 7}}'),
    "the manifest is a folder": instead(COMPLETE, Path.mkdir),
    "a link": link,
    "a file": lambda path: (shutil.rmtree(path), path.write_text("")),
    "empty": lambda path: (shutil.rmtree(path), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(two, damage, capsys):
    assert newest(two) == (two.checkpoints / "checkpoint-10", 10)
    assert capsys.readouterr().out == ""
    damage(two.checkpoints / "checkpoint-10")
    assert newest(two) == (two.checkpoints / "checkpoint-9", 9)
    assert capsys.readouterr().out.startswith("checkpoint-10 is skipped: ")
    assert resume(two, "id", 12) == (two.checkpoints / "checkpoint-9", 9)
    assert not os.path.lexists(two.checkpoints / "checkpoint-10"), (
        "its step is trained again and saved there"
    )


@settings(max_examples=40)
@given(place=st.integers(0, 10_000), value=st.integers(1, 255), cut=st.booleans())
def test_any_byte_of_any_file_counts(tmp_path_factory, place, value, cut):
    path = made(CellFolder(tmp_path_factory.mktemp("any")), 1)
    chosen = [name for name in sorted(FILES) if FILES[name]]
    target = path / chosen[place % len(chosen)]
    content = bytearray(target.read_bytes())
    at = place % len(content)
    content[at] ^= value
    target.write_bytes(content[:at] if cut else content)
    assert fault(path).startswith(target.relative_to(path).as_posix())


@pytest.mark.parametrize(
    "name", ["checkpoint-abc", "checkpoint-", "checkpoint-0", "checkpoint-1e3", "checkpoint-٣", "x"]
)
def test_a_foreign_name_is_left_alone(two, name):
    (two.checkpoints / name).mkdir()
    assert newest(two) == (two.checkpoints / "checkpoint-10", 10)
    assert resume(two, "id", 10) == (two.checkpoints / "checkpoint-10", 10)
    checkpoints.rotate(two)
    assert (two.checkpoints / name).is_dir()


def test_without_a_sound_checkpoint_a_cell_begins_at_its_first_step(two, tmp_path):
    for path in two.checkpoints.glob("checkpoint-*"):
        (path / COMPLETE).unlink()
    assert resume(two, "id", 10) == (None, 0)
    assert list(two.checkpoints.iterdir()) == []
    assert resume(CellFolder(tmp_path / "none"), "id", 10) == (None, 0)


@pytest.mark.parametrize(("cell_id", "steps"), [("id", 9), ("other", 12)])
def test_a_checkpoint_of_another_config_is_refused_and_kept(two, cell_id, steps):
    with pytest.raises(UserError, match="a different config"):
        resume(two, cell_id, steps)
    assert newest(two) == (two.checkpoints / "checkpoint-10", 10)


def test_a_file_in_place_of_the_folder_is_refused(cell):
    cell.checkpoints.write_text("")
    with pytest.raises(UserError, match="should be a folder"):
        resume(cell, "id", 10)


def test_the_two_newest_stay(two):
    made(two, 100)
    checkpoints.rotate(two)
    assert sorted(path.name for path in two.checkpoints.iterdir()) == [
        "checkpoint-10",
        "checkpoint-100",
    ]


def test_files_are_on_disk_before_the_manifest_has_its_name(cell, monkeypatch):
    """The order of the calls that make it durable: each file, its folders, then the manifest."""
    order = []
    fsync, replace = os.fsync, os.replace

    def synced(handle):
        order.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def replaced(old, new):
        order.append(f"named {new}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    path = made(cell, 3)
    named = order.index(f"named {path / COMPLETE}")
    vouched = {str(path / name) for name in FILES} | {
        str(path / "sub"),
        str(path),
        str(cell.checkpoints),
    }
    assert vouched <= set(order[:named])
    assert str(path) in order[named:]


def files_of(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != COMPLETE)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def damaged(policy):
    os.truncate(policy / "adapter_model.safetensors", 2)
    return policy


def test_the_policy_is_the_model_of_the_checkpoint(cell):
    path, policy = made(cell, 4), cell / "policy"
    save_policy(cell, 4)
    wanted = {name: content for name, content in files_of(path).items() if name in POLICY}
    assert files_of(policy) == wanted
    before = (policy / "adapter_config.json").stat().st_mtime_ns, policy.stat().st_ino
    save_policy(cell, 4)
    assert before == ((policy / "adapter_config.json").stat().st_mtime_ns, policy.stat().st_ino)
    os.truncate(policy / "adapter_model.safetensors", 2)
    save_policy(cell, 4)
    assert files_of(policy) == wanted
    assert foreign(cell, policy) == "" and "adapter" in foreign(cell, damaged(policy))
    other = CellFolder(cell.path.parent / "fair-s0-0123456789")
    assert foreign(other, policy) == "was trained in the cell id"
    assert sorted(entry.name for entry in cell.path.iterdir()) == ["checkpoints", "policy"]


def test_a_policy_that_was_sealed_by_the_name_of_its_cell_is_of_it(tmp_path):
    """As policies of evaluated steps were before they were sealed by its digits."""
    cell = CellFolder(tmp_path / "fair-s0-0123456789")
    for origin in (cell.id, cell.name):
        assert foreign(cell, made(cell, 1, origin)) == ""
    assert foreign(cell, made(cell, 1, "fair-s0-9876543210")).startswith("was trained in the cell")


def test_half_a_policy_is_never_under_its_name(cell, monkeypatch):
    made(cell, 4)
    policy = cell / "policy"
    copied = []
    whole = shutil.copyfile

    def one(source, target):
        if copied:
            raise OSError(28, "No space left on device")
        copied.append(whole(source, target))

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(checkpoints.shutil, "copyfile", one)
        save_policy(cell, 4)
    assert copied and not policy.exists()
    save_policy(cell, 4)
    assert set(files_of(policy)) == POLICY
