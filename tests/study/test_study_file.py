"""``study.json`` says its format, and a study of another one is refused."""

import json
from pathlib import Path

import pytest

from analysis.records.frames import runs_frame
from experiments.plan.preflight import check_study
from study.cell.cells import make_cell, save_cell
from study.cell.study_file import FORMAT, read_study, write_study
from study.errors import UserError
from study.system.files import read_json

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
