import subprocess

import pytest

from study.cell import cells
from study.cell.cells import make_cell, save_cell
from study.cell.folder import CellFolder, same_cells, study_cells
from tests.conftest import python


def data(**changes):
    base = {
        "study": "s",
        "runs_dir": "runs",
        "seed": 0,
        "judge": {"name": "j", "endpoint": {"url": "http://a", "model": "m"}},
        "trainer": {"steps": 3, "save_steps": 1},
        "shadow_judges": [],
    }
    return base | changes


def test_identity_ignores_run_time_keys_and_sees_the_rest():
    first = make_cell(data())
    moved = make_cell(
        data(
            study="other",
            runs_dir="/elsewhere",
            judge={"name": "j", "endpoint": {"url": "http://b", "model": "m"}},
            trainer={"steps": 3, "save_steps": 2},
        )
    )
    assert first.id == moved.id
    assert first.id != make_cell(data(seed=1)).id
    other_model = {"name": "j", "endpoint": {"url": "http://a", "model": "n"}}
    assert first.id != make_cell(data(judge=other_model)).id


def test_key_order_does_not_change_the_identity():
    shuffled = dict(reversed(list(data().items())))
    assert make_cell(data()).id == make_cell(shuffled).id


def test_a_loaded_cell_is_the_saved_one(tmp_path):
    cell = make_cell(data(runs_dir=str(tmp_path)))
    save_cell(cell)
    assert cells.load_cell(cell.folder) == cell
    assert cell.folder.state() == "new"


@pytest.mark.parametrize("link", ["a", "m-s0", "z-a-longer-name"])
def test_a_link_to_a_cell_is_the_copy_whatever_its_name(tmp_path, link):
    cell = make_cell(data(), CellFolder(tmp_path / "mm-s0"))
    save_cell(cell)
    (tmp_path / link).symlink_to(cell.folder.name)
    assert same_cells(tmp_path) == {cell.folder: [CellFolder(tmp_path / link)]}
    (tmp_path / "ab").symlink_to(tmp_path / link)  # a link to a link
    assert study_cells(tmp_path) == [cell.folder]
    (cell.folder / "config.yaml").write_bytes(b"\xff")  # damaged, it is one cell still
    assert study_cells(tmp_path) == [cell.folder]


def test_a_folder_with_a_linked_config_is_the_copy(tmp_path):
    cell = make_cell(data(), CellFolder(tmp_path / "mm-s0"))
    save_cell(cell)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").symlink_to(cell.folder / "config.yaml")
    assert same_cells(tmp_path) == {cell.folder: [CellFolder(tmp_path / "a")]}


def test_a_link_to_a_cell_that_lies_elsewhere_is_a_cell(tmp_path):
    cell = make_cell(data(), CellFolder(tmp_path / "elsewhere" / "mm-s0"))
    save_cell(cell)
    (tmp_path / "study").mkdir()
    for name in ("b", "a"):
        (tmp_path / "study" / name).symlink_to(cell.folder)
    link, other = tmp_path / "study" / "a", tmp_path / "study" / "b"
    assert same_cells(tmp_path / "study") == {CellFolder(link): [CellFolder(other)]}


def test_state_of_a_cell_whose_process_was_killed(tmp_path):
    folder = tmp_path / "cell"
    code = (
        "import sys; from pathlib import Path; from study.cell.folder import CellFolder\n"
        "folder = CellFolder(Path(sys.argv[1])); held = folder.lock()\n"
        "folder.set_status(state='running'); print('up', flush=True)\n"
        "sys.stdin.read()"
    )
    child = python(code, folder, stdin=subprocess.PIPE)
    assert child.stdout.readline() == "up\n"
    assert CellFolder(folder).state() == "running"
    assert CellFolder(folder).lock() is None
    child.kill()
    child.communicate()
    assert CellFolder(folder).state() == "killed"


@pytest.mark.parametrize("status", ["failed", "killed", "new"])
def test_done_file_decides_over_the_status(tmp_path, status):
    CellFolder(tmp_path).set_status(state=status)
    assert CellFolder(tmp_path).state() == status
    (tmp_path / "DONE").touch()
    assert CellFolder(tmp_path).state() == "done"
