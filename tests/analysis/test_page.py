"""Numbers, contents and tables of a page, and figures as text that nobody can break out of."""

import csv
import io
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.display import markup, svg, texts
from analysis.display.figures import looks, looks_of
from analysis.drift import figures
from analysis.drift.estimate import learning_curves
from study.screen import CONTROLS
from tests.conftest import ROOT, Page

HOSTILE = '<script src="//example.org/x.js"></script><b class="nth">Figure</b>'


def test_figures_and_tables_are_numbered_behind_the_first_screen():
    body = "".join(f'<b class="nth">{kind}</b> x ' for kind in ("Figure", "Table", "Figure"))
    text = markup.page("Study", [body], [body])
    names = re.findall(r"(?:Figure|Table) [0-9]", text)
    assert names == ["Figure 1", "Table 1", "Figure 2", "Figure 3", "Table 2", "Figure 4"]
    opening = markup.front("Study", "3 runs", {"a": "a taught b"}, [], markup.Markup("more"))
    text = Page(markup.page("Study", [opening], [markup.heading("Why?", 2, "why")])).text
    assert text.index(" taught b") < text.index("3 runs more") < text.index("Why?")


def test_questions_are_folded_by_their_headings_and_links_lead_inside(browser, tmp_path):
    fragments = ["<p>before</p>", markup.heading("Why?", 2, "why"), markup.paragraph("because")]
    fragments += [markup.heading("a part", 3), markup.heading("When?", 2, "when"), "<p>then</p>"]
    opening = [markup.links({"when": "to when"})]
    path = tmp_path / "page.html"
    path.write_text(markup.page("Study", opening, fragments))
    shown = "[...document.querySelectorAll('main p, main h3')].map(each => each.checkVisibility())"
    page = browser.open(path)
    assert page.ask(shown) == [True, False, False, False]
    page.ask("document.querySelector('a').click()")
    assert page.ask(shown) == [True, False, False, True], "a link unfolds what it leads to"
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.ask(shown) == [True, True, True, True], "on paper nothing is folded"


def test_words_of_the_glossary_are_explained_where_they_stand_first():
    lines = ["Runs and a run of an ARM", "a run, seed=0, run-time, <b>truth</b>"]
    text = texts.explained(markup.sentences(lines) + markup.Markup("<pre>verdict</pre>"))
    assert re.findall('<abbr title="[^"]+">(.*?)</abbr>', text) == ["Runs", "ARM", "truth"]
    assert "&lt;b&gt;" in text and Page(f"<div>{text}</div>").text.count("run") == 3
    assert texts.hint("x", '"<i>') == '<abbr title="&#34;&lt;i&gt;">x</abbr>'


def test_one_glossary_serves_the_report_and_the_docs():
    table = (ROOT / "docs" / "glossary.md").read_text().partition("## Behaviours")[0]
    rows = dict(re.findall(r"^\| ([a-z ,-]+) \| (.+) \|$", table, re.MULTILINE))
    shared = texts.GLOSSARY.keys() & rows.keys()
    assert len(shared) >= 7 and all(rows[word] == texts.GLOSSARY[word] for word in shared)


def test_greys_are_those_of_the_page_and_colours_their_own():
    drawn = figures.learning(curves(["a", "b"]))
    shown = markup.figure(drawn, "caption")
    assert "fill: var(--back, #ffffff)" in shown and "var(--text, #262626)" in shown
    assert not re.search(r"(fill|stroke): #(..)\\2\\2\b", shown) and "#0173b2" in shown
    assert "var(" not in svg.alone(shown) and "#262626" in svg.alone(shown)


@pytest.mark.parametrize(
    ("grey", "name"),
    [
        *(("#5f5f5f", "text"), ("#606060", "soft"), ("#afafaf", "soft"), ("#b0b0b0", "line")),
        *(("#f7f7f7", "line"), ("#f8f8f8", "back"), ("#ffffff", "back")),
    ],
)
def test_a_grey_is_the_first_that_is_brighter(grey, name):
    assert svg._paint(grey) == f"var(--{name}, {grey})"


def test_what_others_wrote_cannot_look_like_ours():
    table = markup.table(pd.DataFrame({"arm": [HOSTILE], HOSTILE: [1.0]}), "mine", HOSTILE)
    shown = [markup.sentences([HOSTILE]), markup.paragraph(HOSTILE), table]
    text = markup.page(HOSTILE, [], [*shown, markup.heading(HOSTILE, 2, "last")])
    assert not {"script", "img"} & set(Page(text).tags)
    assert text.count("Table 1.") == 1 and "Figure 1" not in text
    assert Page(text).text.count(HOSTILE) == 7


def test_columns_beyond_seven_and_long_tables_are_folded():
    wide = pd.DataFrame({f"c{k}": range(40) for k in range(9)})
    short, whole = markup.table(wide, "wide", "Wide.", ["c8", "c0", "not there"]).split("<details>")
    assert re.findall("<th>(.*?)</th>", short) == ["c8", "c0"]
    assert short.count("<tr>") == 1 + markup.MOST_ROWS and whole.count("<tr>") == 41
    assert whole.count("<th>") == 9 and "All 9 columns, 40 rows" in whole
    assert "<details>" not in markup.table(wide[["c0", "c1"]].head(3))


@pytest.mark.parametrize(("of_each", "shown"), [(1, 10), (2, 10), (3, 9), (4, 8), (11, 10)])
def test_a_measure_is_shown_with_all_its_arms_or_folded(of_each, shown):
    frame = pd.DataFrame({"measure": [k // of_each for k in range(12)], "value": range(12)})
    short, _ = str(markup.table(frame)).split("<details", 1)
    assert short.count("<tr>") == 1 + shown


def test_a_table_beside_the_page_has_every_digit_and_no_formula():
    texts = ["=1+1", "@SUM(A1)", "+0.5", "-x", "\uff1d1+1", "\n=1"]
    frame = pd.DataFrame({"arm": texts, "v": [1 / 3, np.nan, 1, 2, 3, 4]})
    rows = list(csv.DictReader(io.StringIO(markup.csv(frame))))
    guarded = ["'=1+1", "'@SUM(A1)", "+0.5", "'-x", "'\uff1d1+1", "'\n=1"]
    assert [row["arm"] for row in rows] == guarded
    assert rows[0]["v"] == "0.333333333" and rows[1]["v"] == ""


@given(st.text(), st.text())
def test_a_table_beside_the_page_holds_nothing_that_a_terminal_obeys(text, name):
    written = markup.csv(pd.DataFrame({name: [text, f"\x1b]0;{text}\x07", "\x9b2J", "plain"]}))
    assert not set(written) & set(map(chr, CONTROLS))
    assert "\\x9b2J" in written and "plain" in written


def test_tables_are_written_and_those_of_an_earlier_report_go(tmp_path):
    old = tmp_path / "tables" / "old.csv"
    old.parent.mkdir()
    old.write_text("x")
    frame = pd.DataFrame({"a": [1.5]})
    fragments = markup.folded("more", [markup.table(frame, "new", "New."), markup.table(frame)])
    markup.write_page(tmp_path / "page.html", "Study", [], fragments)
    assert [path.name for path in old.parent.iterdir()] == ["new.csv"]
    assert (old.parent / "new.csv").read_text() == "a\n1.5\n"


def curves(arms):
    rows = [
        {"arm": arm, "metric": metric, "step": step, "mean": 0.1, "low": -0.5, "high": 2.0, "n": 3}
        for arm in arms
        for metric in ("judge_score", "truth", "hedges")
        for step in range(1, 6)
    ]
    return pd.DataFrame(rows)


def test_each_panel_is_a_picture_of_its_own_with_text_as_text():
    drawn = figures.learning(curves(["a", HOSTILE]))
    assert [entry.label for entry in svg.legend(drawn)] == ["judge score", "rule truth"]
    made = svg.panels(drawn, "Scores")
    assert len(made) == 2
    shown = Page("".join(panel.svg for panel in made))
    assert set(shown.tags) <= set("svg g path text tspan use defs clippath rect".split())
    assert shown.text.count("training step") == 2 and HOSTILE in shown.text
    assert all(link.startswith("#") for link in shown.links)
    sizes = {panel.svg.split('viewBox="')[1].split('"')[0].split()[2] for panel in made}
    assert len(sizes) == 1, "panels of one size have windows of one size"


def bars(axes):
    """The ends of every bar of a panel: (curve, bar, 2, 2)."""
    return [np.array(each.get_segments()) for each in axes.collections]


def test_numbers_and_figures_keep_their_ends_and_looks():
    table = curves(["a"])
    (hedges,) = bars(figures.behaviour(table[table["metric"] == "hedges"]).axes[0])
    assert hedges[..., 1].min() == 0.0 and hedges[..., 1].max() == 2.0
    for drawn in bars(figures.learning(table).axes[0]):
        assert (drawn[..., 1].min(), drawn[..., 1].max()) == (0.0, 1.0)
    with looks_of(["base", "a", "b"]):
        alone, together = looks(["b"]), looks(["a", "b", "base"])
        assert alone["b"] == together["b"] and list(together) == ["base", "a", "b"]
        assert looks(["stranger", "b"])["b"] == together["b"]
    assert looks(["b"])["b"] != together["b"]


def test_a_figure_with_panels_and_a_legend_is_one_file():
    shown = markup.figure(figures.learning(curves(["a", HOSTILE, "c", "d"])), HOSTILE)
    drawing = svg.alone(shown)
    root = ElementTree.fromstring(drawing)
    drawn = [each for each in root if each.tag.endswith("svg") and each.get("x")]
    nested = [each for each in drawn if "swatch" not in each.get("class", "")]
    assert len(nested) == 4 and "judge score" in drawing and HOSTILE not in drawing
    assert len({(each.get("x"), each.get("y")) for each in nested}) == 4, "none lies on another"
    width, height = map(float, root.get("viewBox").split()[2:])
    for each in nested:
        assert float(each.get("x")) + float(each.get("width")) <= width + 1
        assert float(each.get("y")) + float(each.get("height")) <= height + 1
    assert svg.alone("<figure><table></table></figure>") == ""


def test_no_interval_hides_another():
    """Those of several arms at one step stand beside each other, nearer than the next step's."""
    table = curves(["a", "b", "c"])
    panel = figures.behaviour(table[table["metric"] == "hedges"]).axes[0]
    at = np.array([each[:, 0, 0] for each in bars(panel)])
    assert at.shape == (3, 5) and (np.diff(at, axis=0) > 0.1).all()
    assert (at.max(axis=0)[:-1] < at.min(axis=0)[1:]).all()


def test_a_long_curve_keeps_its_ends_and_its_level():
    rows = [
        {"cell": f"c{seed}", "arm": "a", "seed": seed, "step": step, "metric": "truth"}
        | {"value": step + seed}
        for seed in (0, 2)
        for step in range(1, 41)
    ]
    thin = learning_curves(pd.DataFrame(rows), 10)
    assert thin["step"].tolist() == [2.5 + 4 * k for k in range(10)]
    assert thin["mean"].tolist() == pytest.approx([3.5 + 4 * k for k in range(10)])
    half = 12.706 * 2**0.5 / 2**0.5  # two runs that are 2 apart: SD sqrt 2, SE 1
    assert (thin["high"] - thin["mean"]).tolist() == pytest.approx([half] * 10, rel=1e-3)
    whole = learning_curves(pd.DataFrame(rows))
    assert len(whole) == 40 and learning_curves(pd.DataFrame(rows), 99).equals(whole)


@pytest.mark.parametrize(
    "value, sign, text",
    [
        (1234.5, False, "1234"), (12345.6, True, "+12346"), (0.30000000000000004, False, "0.3"),
        (0.1 + 0.2 - 0.3, True, "0"), (2.5e7, False, "2.50\u00d710\u2077"),
        (-3.2e-6, True, "-3.20\u00d710\u207b\u2076"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_and_no_noise(value, sign, text):
    assert markup.number(value, sign) == text


@pytest.mark.parametrize(
    "mean, low, high, text",
    [
        (0.121, -0.000876, 0.243, "+0.121 [-0.001, 0.243]"),
        (0.000268, -0.000493, 0.00103, "+0.00027 [-0.00049, 0.00103]"),
        (24.81, 16.7777, 32.94, "+24.8 [16.8, 32.9]"),
        (0.0001, -1.0, 1.0, "0 [-1, 1]"),
        (0.001, float("nan"), 0.2, "+0.001"),
        (0.5, -0.25, float("inf"), "+0.5 [-0.25, \u221e]"),
    ],
)
def test_the_ends_of_an_interval_have_as_many_decimals(mean, low, high, text):
    assert markup.estimate(mean, low, high) == text


def test_a_phone_shows_the_rows_of_a_wide_table_as_lines_with_their_heads():
    wide = pd.DataFrame([{"arm": "a", "shift": "+0.121 [-0.001, 0.243]", "p": "<.001"}])
    assert 'class="stack"' not in markup.table(wide)
    wide["beyond the base"] = wide["shift"]
    shown = markup.table(wide)
    assert 'class="stack"' in shown
    assert re.findall('data-head="(.*?)"', shown) == ["shift", "p", "beyond the base"]
    hostile = markup.table(wide.rename(columns={"shift": f'" onclick="x{HOSTILE}'}))
    assert "onclick=" not in Page(f"<div>{hostile}</div>").tags and HOSTILE not in hostile
    assert '" onclick' not in hostile
