from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.report import main
from analysis.reports import markup
from analysis.reports.notebook import NOTEBOOK, check_parameters, write_report
from study.errors import UserError
from tests.conftest import Page


@pytest.fixture(scope="module")
def report(planted) -> Path:
    return write_report(planted)


def test_the_page_needs_nothing_from_anywhere(report):
    text = report.read_text()
    page = Page(text)
    inside = {link for link in page.links if link.startswith("#")}
    others = [link for link in page.links if link not in inside]
    assert [link[:60] for link in others if not link.startswith("data:image/png")] == []
    assert len(inside) == 3 and all(f'id="{link[1:]}"' in text for link in inside)  # the arms
    assert "script" not in page.tags and "link" not in page.tags and "iframe" not in page.tags
    assert "@import" not in text and "url(" not in text
    assert page.tags.count("img") == 6


def test_what_a_policy_wrote_is_shown_as_text(report):
    assert '<script src="https://example.org/x.js"></script>' in Page(report.read_text()).text


def test_findings_come_first_and_carry_the_planted_numbers(report):
    text = " ".join(Page(report.read_text()).text.split())
    assert "judge minus truth +0.45 [0.326, 0.574]" in text
    assert text.index("Findings") < text.index("What cannot be concluded") < text.index("Runs")
    for wanted in ("sim-verbose-s2-", "0123456789", "unit is the run", "p (sign flip)", "72"):
        assert wanted in text
    assert "gather(study_dir)" not in text, "code cells are hidden"
    assert " nan" not in text.lower()


def test_the_executed_notebook_and_the_summary_lie_beside_it(report):
    names = sorted(path.name for path in report.parent.iterdir())
    assert names == ["bias_report.html", "bias_report.ipynb", "summary.json"]
    notebook = json.loads((report.parent / "bias_report.ipynb").read_text())
    assert all(cell.get("execution_count") for cell in notebook["cells"] if cell["source"])
    rows = json.loads((report.parent / "summary.json").read_text())["rows"]
    assert [row["judge"] for row in rows] == ["sim-fair", "sim-flaky", "sim-verbose"]
    assert next(iter(rows[0])) == "judge"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, said",
    [
        ({"steps": 0, "state": "new"}, "No completion is on record"),
        ({"seeds": 1, "judges": ["sim-fair"], "truth": False}, "so there is no gap"),
        ({"scored": False}, "Every verdict of sim-fair is unscored"),
        ({"judges": []}, "The folder holds no run"),
    ],
)
def test_a_thin_study_still_renders_and_says_why(make_study, options, said):
    text = Page(write_report(make_study(**options)).read_text()).text
    assert said in text and " nan" not in text.lower()


def test_an_unknown_parameter_is_refused_before_anything_runs(planted, tmp_path):
    with pytest.raises(UserError, match="no parameter sample_promts"):
        write_report(planted, {"sample_promts": 3})


def test_parameters_are_those_of_the_tagged_cell():
    import jupytext

    notebook = jupytext.read(NOTEBOOK, fmt="py:percent")
    check_parameters(notebook, {"study_dir": "x", "sample_prompts": 1})
    with pytest.raises(UserError, match="evidence"):
        check_parameters(notebook, {"evidence": 1})  # assigned, but in another cell


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "needs study="),
        (["quickstart"], "'quickstart' is not an option"),
        (["study=nope"], "There is no study folder"),
        (["study=planted", "colour=red"], "'colour=red' is not an option"),
    ],
)
def test_user_errors_are_one_paragraph_and_exit_2(planted, capsys, arguments, said):
    before = sorted(planted.rglob("*"))
    assert main([*arguments, f"runs_dir={planted.parent}"]) == 2
    out, err = capsys.readouterr()
    assert said in err and "python -m analysis.report" in err
    assert out == "" and "Traceback" not in err
    assert sorted(planted.rglob("*")) == before


def test_a_missing_number_is_a_dash_and_never_a_zero():
    nan = float("nan")
    assert markup.number(nan) == markup.p_value(nan) == markup.MISSING
    assert markup.bracket(nan, 1.0) == "" and markup.estimate(0.5, nan, nan) == "+0.5"
    assert markup.number(0.123456) == "0.123" and markup.number(-3.0) == "-3"
    assert markup.p_value(0.0004) == "<.001" and markup.p_value(0.25) == "0.25"
