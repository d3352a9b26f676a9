"""A cell is its config, saved and read again; its study says its format."""

import json
import subprocess
from pathlib import Path

import pytest

from analysis.records.frames import runs_frame
from experiments.plan.preflight import check_study
from study.cell import cells
from study.cell.cells import make_cell, save_cell
from study.cell.folder import CellFolder, same_cells, study_cells
from study.cell.study_file import FORMAT, looks_of, read_study, write_study
from study.errors import UserError
from study.system.files import read_json
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


DESCRIBED = {"study": "old", "factors": ["judge"], "base": {}, "mlflow": {}}


def test_what_is_written_says_its_format_and_is_read_back(tmp_path: Path) -> None:
    write_study(tmp_path, DESCRIBED)
    assert read_json(tmp_path / "study.json")["format"] == FORMAT == 2
    assert read_study(tmp_path) == {"format": FORMAT, **DESCRIBED}


@pytest.mark.parametrize("version", [0, 1, "x", {}])
def test_another_format_is_refused_with_what_to_type(tmp_path: Path, version: object) -> None:
    """A later format may hold anything else: it is refused before it is looked at."""
    folder = tmp_path / "old"
    folder.mkdir()
    for described in (DESCRIBED, {"factors": 3}):
        (folder / "study.json").write_text(json.dumps({**described, "format": version}))
        with pytest.raises(UserError, match=f"format is {version!r} .* reads format 2") as caught:
            read_study(folder)
        assert "study=old-2" in str(caught.value)


def test_a_damaged_file_is_made_again_and_not_called_another_version(tmp_path: Path) -> None:
    data = {"study": "s", "runs_dir": str(tmp_path), "seed": 1, "judge": {"name": "j"}}
    save_cell(make_cell(data))
    for text in ("{", '{"factors": 3}', "[]"):
        (tmp_path / "s" / "study.json").write_text(text)
        problems: list[str] = []
        again = read_study(tmp_path / "s", problems)
        assert (again["format"], again["factors"]) == (FORMAT, ["judge", "seed"])
        assert len(problems) == 1 and "is damaged" in problems[0]


def test_the_looks_of_a_damaged_study_are_those_that_a_cell_was_laid_with(tmp_path: Path) -> None:
    for seed, looks in ((0, []), (1, [3, 6])):
        data = {"study": "s", "runs_dir": str(tmp_path), "seed": seed, "sweep": {"looks": looks}}
        save_cell(make_cell(data))
    (tmp_path / "s" / "study.json").write_text("{")
    assert read_study(tmp_path / "s", [])["looks"] == [3, 6]
    write_study(tmp_path / "s", {"factors": ["seed"], "looks": [2, 5]})
    typed = make_cell({"study": "s", "runs_dir": str(tmp_path), "sweep": {"looks": [4]}})
    left_out = make_cell({"study": "s", "runs_dir": str(tmp_path)})
    assert (looks_of(typed), looks_of(left_out)) == ([4], [2, 5])


def test_a_study_without_a_format_is_older_and_one_not_started_is_empty(tmp_path: Path) -> None:
    assert read_study(tmp_path) == {}
    (tmp_path / "study.json").write_text(json.dumps(DESCRIBED))
    with pytest.raises(UserError, match="format is 'none'"):
        read_study(tmp_path)


def test_sweep_and_analysis_refuse_it(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps({**DESCRIBED, "format": 1}))
    todo = [make_cell({"study": tmp_path.name, "runs_dir": str(tmp_path.parent)})]
    readers = (lambda: list(check_study(tmp_path, todo, ["judge"])), lambda: runs_frame(tmp_path))
    for reader in readers:
        with pytest.raises(UserError, match="format is 1 "):
            reader()
