"""What the report puts on the study's own run in a real MLflow store."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from experiments.tracking import runs as tracked
from experiments.tracking import summary
from experiments.tracking.runs import close_parent
from experiments.tracking.traces import Lost
from study.cell import cells
from study.cell.cells import save_config
from study.cell.folder import study_cells
from tests.experiments.mlflow_runs import begin, cell_of, history, logged, record, sql, status_of

PNG = base64.b64encode(b"\x89PNG").decode()
PAGE = (
    f'<h1>x</h1><figure><img alt="a" src="data:image/png;base64,{PNG}">'
    "<figcaption>Judge &amp; truth, by <b>step</b>.</figcaption></figure>"
    '<figure><svg viewBox="0 0 9 9"><use xlink:href="#a"/></svg></figure>'
    "<figure>no picture</figure>"
)
HEADLINE = "sim-verbose: <img src=x onerror=alert(1)> [link](javascript:1) **grew**"
NUMBERS = {"truth/shift": -0.25, "gap/low": -1e-9, "runs": 3, "truth/end": None}
SUMMARY = {
    "rows": [{"judge": "sim|verbose", "truth": "0.5 -> 0.2"}],
    "headline": "Under sim-verbose the *answers* got worse.",
    "headlines": {"sim-verbose": HEADLINE},
    "numbers": {"sim-verbose": NUMBERS},
}


@pytest.fixture
def study(runs: Path) -> Path:
    folder = runs / "demo"
    (folder / "report" / "tables").mkdir(parents=True)
    (folder / "report" / "bias_report.html").write_text(PAGE)
    (folder / "report" / "summary.json").write_text(json.dumps(SUMMARY))
    (folder / "report" / "tables" / "arms.csv").write_text("a\n")
    (folder / "old.html").write_text("<p>old</p>")
    return folder


def described(runs: Path) -> str:
    ((text,),) = sql(runs, "select value from tags where key = 'mlflow.note.content'")
    return text


def test_the_parent_run_says_what_was_found(study, runs, tmp_path_factory, monkeypatch) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    ids = begin(runs)
    (study / "report" / "link").symlink_to("/etc/hostname")
    for _ in range(2):  # again: nothing changes
        assert close_parent(ids, "FINISHED", study)
        assert status_of(runs, "demo") == "FINISHED"
        assert {(row[1], row[2], row[4]) for row in history(runs)} == {
            ("arm/sim-verbose/truth/shift", 0, -0.25),
            ("arm/sim-verbose/gap/low", 0, 0.0),
            ("arm/sim-verbose/runs", 0, 3.0),
        }
        assert len(history(runs)) == 3
    said = described(runs)
    grew = r"\<img src=x onerror=alert(1)\> \[link\](javascript:1) \*\*grew\*\*"
    assert rf"- **sim-verbose**: {grew}" in said and r"| sim\|verbose | 0.5 -\> 0.2 |" in said
    assert r"**Under sim-verbose the \*answers\* got worse.**" in said.splitlines()
    place = runs / "mlartifacts" / "demo" / ids["parent_run_id"] / "artifacts"
    files = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert files == {
        "figures/01-judge-truth-by-step.png", "figures/02.svg", "report/bias_report.html",
        "report/old.html", "report/summary.json", "report/tables/arms.csv",
    }  # fmt: skip
    assert (place / "figures/01-judge-truth-by-step.png").read_bytes() == b"\x89PNG"
    assert list(elsewhere.iterdir()) == []  # nothing was written where the command was typed


def test_numbers_are_named_by_what_they_rest_on(study: Path, runs: Path) -> None:
    rests = "on 32 held-out rows, before and after"
    (study / "report" / "summary.json").write_text(json.dumps({**SUMMARY, "where": rests}))
    assert close_parent(begin(runs), "FINISHED", study)
    names = {row[1] for row in history(runs)}
    words = "on 32 held-out rows before and after"  # MLflow takes no comma
    assert names == {
        f"arm/sim-verbose/truth/shift {words}", f"arm/sim-verbose/gap/low {words}",
        "arm/sim-verbose/runs",
    }  # fmt: skip
    assert f"Scores and behaviours {rests}." in described(runs)


def test_a_drawing_of_the_page_is_a_picture_of_its_own() -> None:
    drawing = list(summary.pictures(PAGE))[1].content.decode()
    assert drawing.startswith('<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink=')
    assert drawing.endswith('viewBox="0 0 9 9"><use xlink:href="#a"/></svg>')


def test_a_study_without_a_report_says_how_to_get_one(runs: Path) -> None:
    ids = begin(runs)
    assert close_parent(ids, "KILLED", runs / "demo")
    assert "python -m analysis.report study=demo" in described(runs)
    (runs / "demo" / "report").mkdir()
    (runs / "demo" / "report" / "summary.json").write_text('{"rows": 3, "headlines": []}')
    assert close_parent(ids, "KILLED", runs / "demo")
    assert "python -m analysis.report study=demo" in described(runs)


def test_a_long_description_is_cut_at_a_line(study: Path) -> None:
    headlines = {str(n): "w" * 900 for n in range(9)}
    told = {"headlines": headlines, "rows": [{"a": "b"}] * 500, "numbers": {}}
    (study / "report" / "summary.json").write_text(json.dumps(told))
    said = summary.description(study)
    assert len(said) <= summary.LONGEST_DESCRIPTION
    assert {len(line) for line in said.splitlines() if line.startswith("- ")} == {902}
    assert said.endswith("of this run.")


def test_a_study_that_is_stopped_is_not_waited_for(study: Path, runs: Path) -> None:
    ids = begin(runs)
    place = runs / "mlartifacts" / "demo" / ids["parent_run_id"] / "artifacts"
    assert close_parent(ids, "KILLED", study)
    assert status_of(runs, "demo") == "KILLED"
    assert history(runs) and "answers" in described(runs)
    assert not place.exists()
    assert close_parent(ids, "KILLED", study, whole=True)  # a rebuild has the time
    assert (place / "report/bias_report.html").is_file()


def test_a_damaged_cell_does_not_keep_others_from_their_traces(runs, monkeypatch, capsys, caplog):
    two = [cell_of(runs, seed=seed) for seed in range(2)]
    ids = begin(runs, *two)
    for cell in two:
        record(cell, 2)
    logged(*two)
    first, second = study_cells(runs / "demo")
    (first / "config.yaml").write_text("study: demo\nno_such_key: 1\n")
    asked = []

    def send_traces(client: Any, ids: Any, run_id: str, cell: cells.Cell) -> None:
        asked.append(cell.name)
        if lost:
            raise Lost(f"lost those of {cell.name}")

    monkeypatch.setattr(tracked, "send_traces", send_traces)
    lost = False
    assert close_parent(ids, "FINISHED", runs / "demo")
    assert asked == [second.name]
    assert f"{first.name}/config.yaml is left out" in capsys.readouterr().err
    save_config(two[0])
    lost = True
    assert not close_parent(ids, "FINISHED", runs / "demo")
    assert asked == [second.name, first.name, second.name]
    assert f"lost those of {second.name}" in caplog.text


def test_what_mlflow_does_not_take_is_said(study: Path, runs: Path, caplog) -> None:
    ids = begin(runs)
    (study / "report" / "bias_report.html").write_bytes(b"\xff")
    assert not close_parent(ids, "FINISHED", study)
    assert "could not close the study's run" in caplog.text
