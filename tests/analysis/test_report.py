import csv
import json
import os
import re
import tempfile
from pathlib import Path

import pandas as pd
import pytest

from analysis.display import markup
from analysis.display.markup import write_page
from analysis.report import sections
from analysis.report.sections import write_report
from tests.conftest import Page

VERBOSE_GAP = "sim-verbose", "gap"


@pytest.fixture(scope="module")
def report(planted) -> Path:
    return write_report(planted)


def test_the_page_needs_nothing_from_anywhere(report):
    text = report.read_text()
    page = Page(text)
    inside = {link for link in page.links if link.startswith("#")}
    files = {link for link in page.links if link.startswith("tables/")}
    assert set(page.links) == inside | files
    assert all(f'id="{link[1:]}"' in text for link in inside)
    assert sum(link.startswith("#arm-") for link in inside) == 3
    assert files == {f"tables/{path.name}" for path in (report.parent / "tables").iterdir()}
    assert not {"script", "link", "iframe", "img", "image"} & set(page.tags)
    assert "@import" not in text and text.count("url(") == text.count("url(#")
    assert len(text) < 3_000_000
    wrote = '<script src="https://example.org/x.js"></script>'
    assert wrote in page.text, "what a policy wrote is shown as text"


def test_every_figure_and_table_has_its_number_and_every_section_its_place(report):
    text = " ".join(Page(report.read_text()).text.split())
    for kind in ("Figure", "Table"):
        numbers = [int(n) for n in re.findall(rf"{kind} ([0-9]+)\.", text)]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 4
    contents = text[text.index("Contents") :]
    titles = [markup.TEXTS["titles"][name] for name in ("scores", "caveats", "provenance")]
    places = [contents.index(title) for title in titles]
    assert places == sorted(places) and all(contents.count(title) >= 2 for title in titles)


def test_no_table_is_wider_than_seven_columns_where_nothing_is_unfolded(report):
    innermost, text = re.compile(r"<details>((?!<details>).)*?</details>", re.DOTALL), ""
    while text != (text := innermost.sub("", text or report.read_text())):
        pass
    assert "<details>" not in text
    heads = re.findall(r"<thead>(.*?)</thead>", text, re.DOTALL)
    assert len(heads) > 4 and max(head.count("<th>") for head in heads) == 7
    with (report.parent / "tables" / "scores.csv").open() as file:
        (row,) = [r for r in csv.DictReader(file) if (r["arm"], r["metric"]) == VERBOSE_GAP]
    assert float(row["diff"]) == pytest.approx(0.45) and row["pairs"] == "3"


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_nothing_that_is_shown_is_wider_than_the_page(report, browser, width):
    page = browser.open(report, width=width)
    assert page.ask("document.documentElement.scrollWidth") <= width
    tables = page.ask("""[...document.querySelectorAll(".wide")]
        .filter(each => !each.closest("details:not([open])"))
        .map(each => each.scrollWidth - each.clientWidth)""")
    assert len(tables) > 4 and max(tables) <= 1
    shown = page.ask("""document.querySelector("#table-scores td:nth-child(5)").offsetParent != null
        && document.querySelector("#table-scores td:nth-child(7)").getBoundingClientRect().right
           <= document.documentElement.clientWidth""")
    assert shown, "the p of a difference is seen without scrolling"
    assert page.errors == [] and len(page.asked_for) == 1


def test_findings_come_first_and_carry_the_planted_numbers(report):
    text = " ".join(Page(report.read_text()).text.split())
    assert "judge minus truth +0.45 [0.326, 0.574]" in text
    headline = "sim-verbose taught longer answers (+45.9 words [28, 63.9] beyond sim-fair"
    assert "the truth stayed as it was, and its score ran 0.45 further ahead" in text
    assert text.index(headline) < text.index("Contents")
    body = text[text.index("Figure 3.") :]
    assert body.index("All findings") < body.index("What cannot be concluded")
    for wanted in ("sim-verbose-s2-", "0123456789", "unit is the run", "p (sign flip)", "72"):
        assert wanted in text
    assert " nan" not in text.lower()


def test_the_summary_lies_beside_it(report):
    names = sorted(path.name for path in report.parent.iterdir())
    assert names == ["bias_report.html", "summary.json", "tables"]
    summary = json.loads((report.parent / "summary.json").read_text())
    rows, said = summary["rows"], summary["headlines"]
    assert list(said) == ["sim-fair", "sim-flaky", "sim-verbose"]
    assert said["sim-verbose"].startswith("sim-verbose taught longer answers")
    assert [row["judge"] for row in rows] == ["sim-fair", "sim-flaky", "sim-verbose"]
    assert next(iter(rows[0])) == "judge"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, said",
    [
        ({"steps": 0, "state": "new"}, "No completion is on record"),
        ({"seeds": 1, "judges": ["sim-fair"], "truth": False}, "so there is no gap"),
        ({"seeds": 1, "judges": ["sim-fair"], "scored": False}, "sim-fair is unscored"),
        ({"judges": []}, "The folder holds no run"),
    ],
)
def test_a_thin_study_still_renders_and_says_why(make_study, options, said):
    text = Page(write_report(make_study(**options)).read_text()).text
    assert said in text and " nan" not in text.lower()


def test_a_section_that_fails_is_named_and_nothing_is_written(make_study, monkeypatch):
    def broken(_: object) -> list[str]:
        raise ZeroDivisionError

    monkeypatch.setattr(sections, "SECTIONS", (*sections.SECTIONS[:2], broken))
    study = make_study(seeds=1, judges=["sim-fair"])
    with pytest.raises(ZeroDivisionError) as caught:
        write_report(study)
    assert caught.value.__notes__ == ["This came of the section broken of the report."]
    assert not (study / "report").exists()


def test_what_a_killed_report_left_half_written_goes_with_the_next(tmp_path):
    html = tmp_path / "report" / "page.html"
    (html.parent / "tables").mkdir(parents=True)
    for name in ("page.html", "summary.json", "tables/scores.csv"):
        path = html.parent / name
        os.close(tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")[0])
    write_page(html, "small", [], ["text"])
    files = {path.name for path in html.parent.rglob("*") if path.is_file()}
    assert files == {"page.html"}


def test_a_missing_number_is_a_dash_and_never_a_zero():
    nan = float("nan")
    assert markup.number(nan) == markup.p_value(nan) == markup.MISSING
    assert markup.bracket(nan, 1.0) == "" and markup.estimate(0.5, nan, nan) == "+0.5"
    assert markup.number(0.123456) == "0.123" and markup.number(-3.0) == "-3"
    assert markup.p_value(0.0004) == "<.001" and markup.p_value(0.25) == "0.25"


def test_a_long_text_is_broken_into_lines_and_a_number_with_its_interval_is_not():
    table = pd.DataFrame({"setting": ["correction.length_penalty=0.1, trainer.beta=0.1"]})
    assert '<td class="note">correction' in markup.table(table)
    assert '<td class="note">' not in markup.table(table.assign(setting="+0.123 [-0.0456, 0.789]"))
