"""The report: one sentence per judge, its sections in order, words in place of empty figures."""

import csv
import dataclasses
import json
import os
import re
import tempfile
import warnings
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from analysis.display import markup
from analysis.display.figures import looks
from analysis.display.markup import write_page
from analysis.drift import figures
from analysis.ledger.display import ledger_table, stacked
from analysis.onset import display as onset_display
from analysis.propagation.calibration import AGAINST
from analysis.report import sections, writing
from analysis.report.evidence import of_records
from analysis.report.words import findings
from analysis.report.writing import write_report
from tests.analysis.conftest import changed, following
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
    titles = [markup.TEXTS["titles"][name] for name in ("scores", "caveats", "provenance")]
    places = [text.rindex(title) for title in titles]
    assert places == sorted(places) and all(title in text for title in titles)


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


def test_nothing_that_is_shown_is_wider_than_the_page(report, browser):
    page = browser.open(report)
    for width, most in ((1440, 9 * 900), (1024, 16 * 844), (390, 16 * 844)):
        page.resize(width)
        assert page.ask("document.documentElement.scrollHeight") <= most, "with all folded"
    page.ask("for (const each of document.querySelectorAll('.question')) each.open = true")
    for width in (1440, 1024, 390):
        page.resize(width)
        assert page.ask("document.documentElement.scrollWidth") <= width
        tables = page.ask("""[...document.querySelectorAll(".wide")]
            .filter(each => !each.closest("details:not([open])"))
            .map(each => each.scrollWidth - each.clientWidth)""")
        assert len(tables) > 4 and max(tables) <= 1
        shown = page.ask("""document.querySelector("#table-scores td:nth-child(5)").offsetParent
            != null
            && document.querySelector("#table-scores td:nth-child(7)").getBoundingClientRect().right
               <= document.documentElement.clientWidth""")
        assert shown, "the p of a difference is seen without scrolling"
    assert page.errors == [] and len(page.asked_for) == 1


def test_findings_come_first_and_carry_the_planted_numbers(report):
    text = " ".join(Page(report.read_text()).text.split())
    assert "judge minus truth +0.45 [" in text
    headline = "Under sim-verbose the score rose more than the answers improved."
    assert "score ran 0.45 further ahead of the truth than under sim-fair" in text
    assert text.index("smoke test (6 steps)") < text.index(headline) < text.index("Figure 1.")
    body = text[text.index("Figure 3.") :]
    assert body.index("All findings") < body.index("What cannot be concluded")
    for wanted in ("sim-verbose-s2-", "0123456789", "unit is the run", "p (sign flip)", "72"):
        assert wanted in text
    assert " nan" not in text.lower()


def test_the_summary_lies_beside_it(report):
    names = sorted(path.name for path in report.parent.iterdir())
    assert names == ["bias_report.html", "made_of.json", "summary.json", "tables"]
    summary = json.loads((report.parent / "summary.json").read_text())
    rows, said = summary["rows"], summary["headlines"]
    assert list(said) == ["sim-verbose", "sim-flaky", "sim-fair"], "by harm"
    assert said["sim-verbose"].startswith("sim-verbose: score ran 0.45 further ahead")
    assert summary["headline"] in summary["screen"]
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

    monkeypatch.setattr(writing, "SECTIONS", (*sections.SECTIONS[:2], broken))
    study = make_study(seeds=1, judges=["sim-fair"])
    with pytest.raises(ZeroDivisionError) as caught:
        write_report(study)
    assert caught.value.__notes__ == ["This came of section broken of the report."]
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


def test_the_panels_have_a_line_for_each_arm_and_no_whisker(evidence):
    arms, look = evidence.arms, looks(evidence.arms)
    curves = pd.concat([evidence.scores, evidence.features])
    drawn = figures.course(curves, arms, look)
    titles = [axes.get_title("left") for axes in drawn.axes]
    assert titles == ["judge score (mean)", "rule truth (mean)", "length (words)"]
    for axes in drawn.axes:
        assert [line.get_color() for line in axes.lines] == [look[arm]["color"] for arm in arms]
        assert len(axes.collections) == 3, "a band from the lowest run to the highest"
    assert drawn.axes[0].get_ylim() == drawn.axes[1].get_ylim()
    fifth = drawn.axes[2].lines[arms.index("sim-verbose")].get_ydata()[4]
    assert fifth == pytest.approx(np.mean([6 + s + (8 + s) * 4 for s in range(3)]))
    (band,) = drawn.axes[2].collections[arms.index("sim-verbose")].get_paths()
    assert band.vertices[:, 1].max() == pytest.approx(6 + 2 + 10 * 5, abs=1)


def test_figures_have_no_house_words(real_evidence, evidence):
    words: set[str] = set()
    for drawn in (figures.gap(evidence.score_curves), figures.learning(evidence.score_curves)):
        for axes in drawn.axes:
            words |= {axes.get_xlabel(), axes.get_ylabel(), axes.get_title("left")}
    text = "".join("".join(section(real_evidence)) for section in LATER)
    words |= set(re.findall(r"<text[^>]*>([^<]*)</text>", text))
    assert words and not re.search(r"\b(bon|sqrt|gap|arm|diff)\b", " ".join(words))


LATER = (
    sections.ledger, sections.predictions, sections.onsets, sections.frontier, sections.judges,
)  # fmt: skip


def filled_with(evidence, **values):
    """The evidence with these arrays filled with one number in every run."""

    def filled(run):
        arrays = {name: np.full_like(run.reward, value) for name, value in values.items()}
        return dataclasses.replace(run, **arrays)

    return changed(evidence, partial(map, filled))


def test_every_section_is_there_in_order_and_no_figure_stays_open(real_evidence):
    before = plt.get_fignums()
    text = "".join(fragment for section in LATER for fragment in section(real_evidence))
    heads = [
        "What did the advantages reward?",
        "Does what was rewarded explain what was learned?",
        "When did judge and truth diverge?",
        "How far can the judge be followed?",
        "Do other judges agree?",
    ]
    places = [text.index(head) for head in heads]
    assert places == sorted(places)
    assert "Gain in score from the first" in text[places[-1] :]  # a shadow judge looked on
    assert plt.get_fignums() == before


def test_the_stacked_areas_add_up_to_what_is_explained(real_evidence):
    unique = [name for name in real_evidence.ledger if name.startswith("unique/")]
    made = stacked(real_evidence.ledger, unique)
    for axes in made.axes:
        own = real_evidence.ledger[real_evidence.ledger["arm"] == axes.get_title(loc="left")]
        by_step = own.groupby("step")[[*unique, "advantage_r2"]].mean()
        alone = by_step[unique].clip(lower=0.0).sum(axis=1)
        corners = [area.get_paths()[0].vertices for area in axes.collections if area.get_paths()]
        tops = {
            step: max(y for points in corners for x, y in points if x == step)
            for step in by_step.index[by_step["advantage_r2"].notna()]
        }
        assert tops
        for step, top in tops.items():
            # features beyond the five that are drawn are in neither
            assert top <= max(alone[step], by_step["advantage_r2"][step]) + 1e-9
            assert top >= by_step["advantage_r2"][step] - 1e-9
    plt.close(made)


def test_the_ledger_has_an_interval_and_the_runs_in_every_cell():
    rows = [("a", "dead", 0.5, 0.25, 0.75, 3), ("b", "dead", 0.1, np.nan, np.nan, 1)]
    rows += [("a", "phi", np.nan, np.nan, np.nan, 0), ("b", "phi", np.nan, np.nan, np.nan, 0)]
    columns = ["arm", "metric", "mean", "low", "high", "n"]
    (row,) = ledger_table(pd.DataFrame(rows, columns=columns)).to_dict("records")
    assert row["a (3 runs)"] == "0.5 [0.25, 0.75]" and row["b (1 run)"] == "0.1"


def test_too_little_variance_or_too_few_runs_are_said(real_evidence):
    flat = filled_with(real_evidence, reward=0.5)
    assert "No step has rewards that differ" in "".join(sections.ledger(flat))
    few = of_records(real_evidence.records, [run.cell for run in real_evidence.runs[:2]])
    assert "2 runs of two steps or more" in "".join(sections.predictions(few))


def test_without_shadows_or_truths_the_sections_say_so(real_evidence, unrendered):
    bare = [dataclasses.replace(run, shadows={}) for run in real_evidence.runs]
    text = "".join(sections.judges(dataclasses.replace(real_evidence, runs=bare)))
    assert "Type shadow=[NAME,NAME]" in text
    blind = filled_with(real_evidence, truth=np.nan)
    text = "".join(sections.onsets(blind))
    assert "none seen" not in text and ">\N{EN DASH}</td>" in text
    assert "No rule knows the truth" in "".join(sections.frontier(blind))


def test_an_unscored_study_has_a_sentence_for_a_frontier(real_evidence):
    unscored = filled_with(real_evidence, judge=np.nan, reward=np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert onset_display.frontier(unscored.runs) is None
        assert "there is no path" in "".join(sections.frontier(unscored))


def test_runs_that_moved_against_their_rewards_are_said_in_one_sentence(real_evidence, unrendered):
    """First order is what was learned, with too few arms to say that it explains it; against it,
    nothing is predicted or explained."""
    with_it = changed(real_evidence, partial(following, factor=1e4))
    against = changed(real_evidence, partial(following, factor=-1e4))
    assert "What was rewarded is consistent" in " ".join(findings(with_it))
    text = "".join(sections.predictions(with_it))
    assert "placebo r2: permuted advantages" in text and "moved against" not in text
    said = " ".join(findings(against))
    assert "explains" not in said and "as the advantages predict" not in said
    sentence = "4 of 4 runs are not predicted: the other runs moved against the reward"
    assert "".join(sections.predictions(against)).count(sentence) == 1
    some = [
        dataclasses.replace(row, note=AGAINST) if row.cell == with_it.runs[0].cell else row
        for row in with_it.predicted
    ]
    text = "".join(sections.predictions(dataclasses.replace(with_it, predicted=some)))
    assert text.count("1 of 4 runs are not predicted") == 1 and "Not predicted:" not in text


def test_a_run_that_is_not_predicted_is_named(real_evidence, unrendered):
    evidence = changed(real_evidence, partial(following, factor=3.0))
    lost, *_ = cells = [run.cell for run in evidence.runs]
    notes = dict.fromkeys(cells, "") | {lost: "no gradient norm at 2 of 2 steps"}
    rows = [dataclasses.replace(row, note=notes[row.cell]) for row in evidence.predicted]
    text = "".join(sections.predictions(dataclasses.replace(evidence, predicted=rows)))
    assert f"Not predicted: {lost} (no gradient norm at 2 of 2 steps)." in text
    assert not any(cell in text.split("Not predicted:")[1] for cell in cells[1:])
