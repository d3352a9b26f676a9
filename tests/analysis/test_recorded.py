"""What a study in which everything moves says is what it said: its report's words, tables and
figures, and what each command prints and writes. `tests.recording` says what that shows."""

import importlib
import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.records import runs
from analysis.report.writing import write_report
from tests import recording
from tests.analysis.drifting_study import write_drifting
from tests.analysis.mixed_study import write_mixed
from tests.analysis.program_study import write_programs
from tests.recording import NUMBER, alike, compare, of_document, summary, words

COMMANDS = (
    *("ledger", "propagation", "dose", "natural", "crossjudge", "onset", "overopt", "frozen"),
    *("panel", "mediation", "field", "confusion", "interventions", "knockout"),
)


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The study, of which each cell is read once for all tests of this file."""
    cells: dict[str, bytes] = {}

    def once(job: Any, read: Any = runs._read_cell) -> Any:
        cell = str(job[1].iloc[0]["cell"])
        if cell not in cells:
            cells[cell] = pickle.dumps(read(job))
        return pickle.loads(cells[cell])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_read_cell", once)
        yield write_drifting(tmp_path_factory.mktemp("runs") / "drifting")


@pytest.fixture(scope="module")
def report(drifting: Path) -> Path:
    return write_report(drifting)


def test_what_tells_a_change_from_another_last_digit():
    assert alike("a 1.00000 [-.5, 2e-3]", "a 1.00001 [-.5, .002]")
    assert not alike("a 1.0", "a 1.1") and not alike("a 1.0", "b 1.0") and not alike("1, 2", "1")
    assert summary("x", [1.0, 2.0]) != summary("x", [2.0, 1.0]) != summary("x", [2.0, -1.0])
    assert of_document({"a": [{"b": 3}, {"b": None}]}) == ["/a/b: 2, 1 missing, 3, 3"]


def test_a_change_fails_and_so_does_the_run_that_writes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "RECORDED", tmp_path)
    with pytest.raises(pytest.fail.Exception, match="2 lines, and 0 on record"):
        compare("x", ["a 1", "b"])
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("JUDGEDRIFT_RECORD", "1")
    with pytest.raises(pytest.fail.Exception, match="written again"):
        compare("x", ["a 1", "b"])
    compare("x", ["a 1.00001", "b "])
    monkeypatch.delenv("JUDGEDRIFT_RECORD")
    with pytest.raises(pytest.fail.Exception, match=r"x\.txt:1\n  was a 1\n  is  a 2"):
        compare("x", ["a 2", "b"])
    assert (tmp_path / "x.txt").read_text() == "a 1\nb\n"


def command_lines(printed: Callable[..., str], command: str, study: Path, out: Path) -> list[str]:
    """What a command prints, and a line for each column of what it writes."""
    module = importlib.import_module(f"analysis.{command}")
    if not hasattr(module, "main"):
        module = importlib.import_module(f"analysis.{command}.__main__")
    lines = printed(module.main, study, f"out={out}").splitlines()
    if out.suffix == ".parquet":
        return lines + of_document({"rows": pd.read_parquet(out)})
    return lines + of_document(json.loads(out.read_text()))


def test_the_words_of_the_report(report, drifting):
    compare("report", words(report), drifting.parent)


def test_the_figures_of_the_report(report, drifting):
    lines = []
    for place, svg in enumerate(re.findall(r"(?s)<svg.*?</svg>", report.read_text())):
        shapes = re.findall(r'\bd="([^"]*)"', svg)
        numbers = [float(n) for n in NUMBER.findall(" ".join(shapes))]
        texts = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))
        lines.append(summary(f"{place} {len(shapes)} shapes, {texts}", numbers))
    compare("figures", lines, drifting.parent)


def test_the_tables_of_the_report(report, drifting):
    lines = []
    for path in sorted((report.parent / "tables").iterdir()):
        lines += of_document({path.stem: pd.read_csv(path)})
    lines += of_document(json.loads((report.parent / "summary.json").read_text()))
    compare("tables", lines, drifting.parent)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_prints_and_writes(command, printed, drifting, tmp_path):
    out = tmp_path / f"out.{'parquet' if command == 'ledger' else 'json'}"
    compare(command, command_lines(printed, command, drifting, out), drifting.parent)


@pytest.mark.parametrize(
    ("write", "command"), [(write_mixed, "mixture"), (write_programs, "workflow")]
)
def test_a_study_of_domains_and_one_of_programs(write, command, printed, unrendered, tmp_path):
    study = write(tmp_path / command, seeds=2)
    lines = command_lines(printed, command, study, tmp_path / "out.json")
    compare(command, [*lines, *words(write_report(study))], study.parent)
