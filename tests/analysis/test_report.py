import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib
import nbformat
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell

from analysis.display import markup
from analysis.display.notebook import (
    NOTEBOOK,
    ROOT,
    check_parameters,
    render,
    write_report,
)
from study.errors import UserError
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
    assert "gather(study_dir)" not in text, "code cells are hidden"
    assert " nan" not in text.lower()


def test_the_executed_notebook_and_the_summary_lie_beside_it(report):
    names = sorted(path.name for path in report.parent.iterdir())
    assert names == ["bias_report.html", "bias_report.ipynb", "summary.json", "tables"]
    notebook = json.loads((report.parent / "bias_report.ipynb").read_text())
    assert all(cell.get("execution_count") for cell in notebook["cells"] if cell["source"])
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


def test_an_unknown_parameter_is_refused_before_anything_runs(planted, tmp_path):
    with pytest.raises(UserError, match="no parameter sample_promts"):
        write_report(planted, {"sample_promts": 3})


def test_parameters_are_those_of_the_tagged_cell():
    import jupytext

    notebook = jupytext.read(NOTEBOOK, fmt="py:percent")
    check_parameters(notebook, {"study": "x", "runs_dir": "y", "sample_prompts": 1})
    with pytest.raises(UserError, match="evidence"):
        check_parameters(notebook, {"evidence": 1})  # assigned, but in another cell


CELLS = """\
# %% tags=["parameters"]
size = 1  # of the figure

# %%
from IPython.display import HTML, display

print(f"size {size}")
display(HTML("<b>shown</b>"))
size * 7

# %%
left = ["unseen", "unseen too"]
for _ in range(2):
    left.pop()

# %%
from matplotlib.figure import Figure

Figure(figsize=(size, size)).add_subplot().figure
"""


def test_what_cells_print_display_and_evaluate_is_on_the_page(tmp_path):
    source, html = tmp_path / "small.py", tmp_path / "page.html"
    source.write_text(CELLS)

    def surroundings():
        streams = sys.stdout, sys.stderr, sys.displayhook
        return streams, sys.modules["__main__"], Path.cwd(), dict(matplotlib.rcParams)

    before = surroundings()
    notebooks = [render(source, {"size": size}, html, "small") for size in (2, 3)]
    assert surroundings() == before and not InteractiveShell.initialized()
    text = Page(html.read_text()).text
    assert "size 3" in text and "shown" in text and "21" in text and "unseen" not in text
    assert Page(html.read_text()).tags.count("img") == 1
    assert nbformat.validate(notebooks[0]) is None
    assert notebooks[0].cells[0].source == "size = 2  # of the figure"


def test_a_notebook_is_rendered_within_another_session_too(tmp_path):
    source, html = tmp_path / "small.py", tmp_path / "page.html"
    source.write_text(CELLS)
    program = (
        "from pathlib import Path; from analysis.display.notebook import render; "
        f"render(Path({str(source)!r}), {{'size': 4}}, Path({str(html)!r}), 'small'); "
        "display('still here')"
    )
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "IPython", "--quick", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout.split("\n")[0].endswith("'still here'"), done
    assert "size 4" in Page(html.read_text()).text and "shown" in Page(html.read_text()).text


def test_a_cell_that_fails_is_named_and_nothing_is_written(tmp_path):
    source, html = tmp_path / "small.py", tmp_path / "page.html"
    source.write_text(CELLS + "\n# %%\nsize / 0\n")
    out = sys.stdout
    with pytest.raises(ZeroDivisionError) as caught:
        render(source, {"size": 2}, html, "small")
    assert caught.value.__notes__ == ["This came of cell 5 of small.py:\nsize / 0"]
    assert sys.stdout is out and list(tmp_path.iterdir()) == [source]


def test_what_a_killed_report_left_half_written_goes_with_the_next(tmp_path):
    source, html = tmp_path / "small.py", tmp_path / "report" / "page.html"
    source.write_text(CELLS)
    (html.parent / "tables").mkdir(parents=True)
    for name in ("page.html", "page.ipynb", "summary.json", "tables/scores.csv"):
        path = html.parent / name
        os.close(tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")[0])
    render(source, {"size": 2}, html, "small")
    files = {path.name for path in html.parent.rglob("*") if path.is_file()}
    assert files == {"page.html", "page.ipynb"}


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
