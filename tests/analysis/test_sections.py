"""The report on how the bias got in: order, tables, and words in place of empty figures."""

import dataclasses
import warnings
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis.ledger.display import ledger_table, stacked
from analysis.onset import display as onset_display
from analysis.propagation.calibration import AGAINST
from analysis.records.runs import read_study
from analysis.report import sections
from analysis.report.evidence import of_records
from analysis.report.words import findings
from tests.analysis.conftest import evidence_of, following

LATER = (
    sections.ledger, sections.predictions, sections.onsets, sections.frontier, sections.judges,
)  # fmt: skip


def changed(small_study, **values):
    """The evidence of the small study with these arrays filled with one number in every run."""

    def filled(run):
        arrays = {name: np.full_like(run.reward, value) for name, value in values.items()}
        return dataclasses.replace(run, **arrays)

    return evidence_of(small_study, partial(map, filled))


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


def test_no_variance_is_said_and_not_drawn(small_study):
    flat = changed(small_study, reward=0.5)
    assert "No step has rewards that differ" in "".join(sections.ledger(flat))


def test_too_few_runs_are_said(small_study, real_evidence):
    few = of_records(read_study(small_study), [run.cell for run in real_evidence.runs[:2]])
    assert "2 runs of two steps or more" in "".join(sections.predictions(few))


def test_without_shadows_the_command_is_said(real_evidence):
    bare = [dataclasses.replace(run, shadows={}) for run in real_evidence.runs]
    text = "".join(sections.judges(dataclasses.replace(real_evidence, runs=bare)))
    assert "Type shadow=[NAME,NAME]" in text


def test_a_gap_that_was_never_measured_has_no_onset(small_study):
    blind = changed(small_study, truth=np.nan)
    text = "".join(sections.onsets(blind))
    assert "none seen" not in text and ">\N{EN DASH}</td>" in text
    assert "No rule knows the truth" in "".join(sections.frontier(blind))


def test_an_unscored_study_has_a_sentence_for_a_frontier(small_study):
    unscored = changed(small_study, judge=np.nan, reward=np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert onset_display.frontier(unscored.runs) is None
        assert "there is no path" in "".join(sections.frontier(unscored))


def test_runs_that_moved_against_their_rewards_are_said_in_one_sentence(small_study):
    """First order is what was learned, with too few arms to say that it explains it; against it,
    nothing is predicted or explained."""
    with_it = evidence_of(small_study, partial(following, factor=1e4))
    against = evidence_of(small_study, partial(following, factor=-1e4))
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


def test_a_run_that_is_not_predicted_is_named(small_study):
    evidence = evidence_of(small_study, partial(following, factor=3.0))
    lost, *_ = cells = [run.cell for run in evidence.runs]
    notes = dict.fromkeys(cells, "") | {lost: "no gradient norm at 2 of 2 steps"}
    rows = [dataclasses.replace(row, note=notes[row.cell]) for row in evidence.predicted]
    text = "".join(sections.predictions(dataclasses.replace(evidence, predicted=rows)))
    assert f"Not predicted: {lost} (no gradient norm at 2 of 2 steps)." in text
    assert not any(cell in text.split("Not predicted:")[1] for cell in cells[1:])
