"""Every mistake of docs/mistakes.md is typed, and prints what the page says."""

import os
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

from experiments.plan import preflight
from experiments.sweep import cells_of
from judgedrift.__main__ import main
from study.cell import cells
from study.cell.study_file import write_study
from study.system import machine
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "mistakes.md"
HOME = "/home/you/project"
"""What the page calls the folder in which the commands are typed."""
_ENTRY = re.compile(
    r"^### ([^\n]+)\n```\n(judgedrift[^\n]*)\n```\n```\n(.+?)\n```$", re.MULTILINE | re.DOTALL
)
FEW_WORDS = 120
"""More would be a list of all that there is."""


def entries() -> list[tuple[str, str, str]]:
    """(title, what is typed, what is printed) of every mistake on the page."""
    return _ENTRY.findall(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    """The config of a cell, for all folders in which it is laid."""
    GlobalHydra.instance().clear()
    (cell,) = cells_of(["judge=sim-fair", "seed=3", "study=mine"])
    return cell.data


@pytest.fixture
def project(composed, tmp_path, monkeypatch, in_this_process) -> Path:
    """A folder with one study of one cell, in which commands are typed."""
    monkeypatch.chdir(tmp_path)
    for name in ("DASHSCOPE_API_KEY", "MLFLOW_TRACKING_URI", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(preflight, "metadata", SimpleNamespace(distributions=lambda name: []))
    GlobalHydra.instance().clear()
    os.umask(0o077)
    cell = cells.make_cell(composed)
    cells.save_cell(cell)
    write_study(cell.folder.study_dir, {"factors": cell.config.factors, "base": {}, "mlflow": {}})
    return tmp_path


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry[0])
def test_a_mistake_prints_what_the_page_says(entry, project, capsys) -> None:
    _, command, shown = entry
    before = sorted(project.rglob("*"))
    code = main(shlex.split(command)[1:])
    printed = capsys.readouterr()
    assert code == 2 and printed.out == "", printed
    assert printed.err.count("\n") == 1 and "Traceback" not in printed.err
    assert sorted(project.rglob("*")) == before, "something was written"
    said = " ".join(printed.err.replace(str(project), HOME).split())
    assert said == " ".join(shown.split())
    assert len(said.split()) < FEW_WORDS and "full_key" not in said and "in struct" not in said


def test_the_page_says_how_many_mistakes_it_has() -> None:
    text = PAGE.read_text(encoding="utf-8")
    count = len({command for _, command, _ in entries()})
    assert f"\n{count} mistakes that" in text
    assert count == len(entries()) == text.count("\n### ") >= 25
