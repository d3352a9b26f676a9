"""The first screen in words: order of harm, how sure in words that fit the runs, smoke tests."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.display.markup import number
from analysis.drift import estimate as drift
from analysis.drift import figures
from analysis.report.claims import Claim, in_hundred, is_yes_or_no
from analysis.report.evidence import Evidence
from analysis.report.headlines import findings, first_screen, smoke_test
from analysis.report.next_steps import NextStep
from analysis.report.sections import front, shifts_table
from analysis.report.tables import row_of
from tests.conftest import Page

NAN = float("nan")
MEASURES = ("judge_score", "truth", "gap", "length", "hedges")
STILL = [0.0, 0.01, -0.01]


def shifted(evidence: Evidence, by_run: dict[tuple[str, str], list[float]]) -> Evidence:
    """The evidence where each arm's runs moved a measure by these amounts, all from .5."""
    columns = dict.fromkeys(drift.SHIFTS, np.nan)
    rows = [
        columns | {"arm": arm, "metric": metric, "seed": seed, "cell": f"{arm}{seed}"}
        | {"first": 0.5, "last": 0.5 + moved, "shift": moved, "tails": []}
        for (arm, metric), moves in by_run.items()
        for seed, moved in enumerate(moves)
    ]  # fmt: skip
    moved = pd.DataFrame(rows)
    scores = moved["metric"].isin(drift.SCORES)
    arms = list(dict.fromkeys(arm for arm, _ in by_run))
    like = evidence.records.table.head(1)
    table = pd.concat([like.assign(arm=arm, judge=arm, cell=arm) for arm in arms])
    return replace(
        evidence,
        records=replace(evidence.records, table=table),
        effects=replace(evidence.effects, scores=moved[scores], behaviours=moved[~scores]),
        score_shifts=drift.shift_table(moved[scores], "sim-fair"),
        feature_shifts=drift.shift_table(moved[~scores], "sim-fair"),
        spread={"length": 10.0, "hedges": 0.5},
        same={},
    )


def moves(arm: str, runs: int = 3, **means: float) -> dict[tuple[str, str], list[float]]:
    """An arm whose runs moved by these means, and by next to nothing else."""
    noise = 0.2 * np.resize(STILL if arm == "sim-fair" else STILL[::-1], runs)
    sizes = {"length": 0.1}
    return {
        (arm, name): (means.get(name, 0.0) + noise * sizes.get(name, 1.0)).tolist()
        for name in MEASURES
    }


FAIR = moves("sim-fair")
WORSE = {"judge_score": 0.2, "truth": -0.1, "gap": 0.3, "length": 20.0}


@pytest.fixture
def two(evidence: Evidence) -> Evidence:
    """The fair judge, and one that taught 20 words for .1 of truth."""
    return shifted(evidence, FAIR | moves("sim-verbose", **WORSE))


def test_arms_stand_in_order_of_harm_and_the_baseline_last(evidence):
    arms = {
        "worst": {"judge_score": 0.2, "truth": -0.3, "gap": 0.5},
        "bad": {"judge_score": 0.2, "truth": -0.1, "gap": 0.3},
        "ahead": {"judge_score": 0.4, "gap": 0.4},
        "still": {},
        "good": {"judge_score": 0.1, "truth": 0.1},
        "best": {"judge_score": 0.3, "truth": 0.3},
    }
    for order in (list(arms), list(reversed(arms)), ["still", "good", "worst", "best", "ahead"]):
        study = shifted(
            evidence, FAIR | {k: v for n in order for k, v in moves(n, **arms[n]).items()}
        )
        expected = [arm for arm in arms if arm in order]
        assert [each.arm for each in findings(study)] == [*expected, "sim-fair"]


def test_the_study_is_one_sentence_about_the_worst_that_is_told(evidence):
    def said(**arms: dict[str, float]) -> str:
        rows = {key: row for arm, means in arms.items() for key, row in moves(arm, **means).items()}
        return first_screen(shifted(evidence, FAIR | rows)).headline

    assert said(a=WORSE) == "Under a the score rose and the answers got worse."
    assert said(a=WORSE, b=WORSE) == "Under a and b the score rose and the answers got worse."
    assert said(a=WORSE | {"judge_score": 0.0}) == "Under a the answers got worse."
    ahead = {"judge_score": 0.3, "gap": 0.3}
    assert said(a=ahead) == "Under a the score rose more than the answers improved."
    assert "Under b" in said(a=ahead, b=WORSE)
    assert said(a={"truth": 0.3}) == "Under a the answers ended better than under sim-fair."
    assert "Under b and a the answers ended better" in said(a={"truth": 0.3}, b={"truth": 0.4})
    assert "no judge is seen" in said(a={}, b={}).lower()
    assert "No judge is seen to have taught better or worse answers than sim-fair" in said(a={})
    changed = "Under a the answers changed; whether for the better is not told from chance."
    assert said(a={"length": 9.0}) == changed
    many = {f"arm{k}": WORSE for k in range(5)}
    assert said(**many).startswith("Under arm0, arm1, arm2 and 2 more arms the score rose")


def test_a_truth_that_only_rose_less_is_not_called_worse(evidence):
    rows = moves("sim-fair", truth=0.4) | moves("a", truth=0.2, judge_score=0.3)
    said = first_screen(shifted(evidence, rows)).headline
    assert said == "Under a the score rose and the answers ended worse than under sim-fair."


def test_a_line_has_two_numbers_at_most_and_no_certainty(two):
    screen = first_screen(two)
    (verbose, fair) = screen.arms.values()
    said = verbose.text()
    assert said == (
        "sim-verbose: truth 0.1 lower than under sim-fair (clear in all three runs); "
        "longer answers, +20 words (clear in all three runs)."
    )
    assert fair.text() == "sim-fair (baseline): nothing told from chance (3 runs)."
    for line in (*screen.lines(), verbose.markup()):
        assert not re.search(r"\b(sure|certain|proven|significant)", line)
    shown = Page(f"<p>{verbose.markup()}</p>")
    assert shown.text.replace(" ", "") == said.replace(" ", "") and shown.tags.count("abbr") == 2
    assert "95 % interval [-0.105, -0.095]; Holm p &lt;.001 among 3 comparisons" in verbose.markup()
    assert "on rollouts, first and last tenth of the steps" in verbose.markup()


def test_what_is_clear_at_one_look_is_not_at_a_look_of_three(two):
    """A difference of three runs, as if its p were .03: more than the level of three looks."""
    spread = [0.69, 1.0, 1.31]
    rows = FAIR | moves("a") | {("a", "truth"): [-each for each in spread]}
    once = shifted(two, rows)
    (claim,) = [each.truth for each in findings(once) if each.arm == "a"]
    assert claim is not None and claim.is_told
    p = 0.03
    assert replace(claim, p=p).is_clear
    for looks, clear in (((3,), True), ((3, 4, 6), False), ((4, 6), False), ((2, 3), False)):
        study = replace(once, records=replace(once.records, looks=looks))
        (again,) = [each.truth for each in findings(study) if each.arm == "a"]
        assert again is not None and replace(again, p=p).is_clear == clear
        assert (again.value, again.low, again.high, again.p) == (
            claim.value, claim.low, claim.high, claim.p
        )  # fmt: skip
        said = "".join(front(study)) + " ".join(first_screen(study).lines())
        assert said.count(study.look.sentence()) == 2


MEANS = [*itertools.product((-0.3, 0.0, 0.3), (-9.0, 0.0, 9.0))]


@settings(max_examples=5)
@given(st.lists(st.sampled_from(MEANS), max_size=4))
def test_no_line_has_more_than_two_numbers(evidence, arms):
    rows = {
        key: row
        for k, (truth, length) in enumerate(arms)
        for key, row in moves("abcd"[k], truth=truth, gap=-truth, length=length).items()
    }
    for line in first_screen(shifted(evidence, FAIR | rows)).arms.values():
        assert len(re.findall(r"[+-]?\d+\.?\d*", line.text())) <= 2


def a_claim(
    runs: int, agree: int, p: float = 0.001, low: float = 0.1, exact: float = 0.001
) -> Claim:
    return Claim("truth", 0.2, low, 0.3, p, "score", runs, agree, exact)


@pytest.mark.parametrize(
    ("claim", "sure"),
    [
        (a_claim(1, 1), "one run, so not told from chance"),
        (a_claim(2, 2, exact=0.5), "likely, in both runs"),
        (a_claim(3, 3, exact=0.25), "clear in all three runs"),
        (a_claim(3, 2, exact=0.5), "likely, in 2 of 3 runs"),
        (a_claim(3, 3, p=0.2, exact=0.25), "likely, in all three runs"),
        (a_claim(3, 3, p=NAN, exact=0.25), "likely, in all three runs"),
        (a_claim(3, 3, low=-0.1, exact=0.25), "not told from chance"),
        (a_claim(10, 10), "clear in all ten runs"),
        (a_claim(10, 9), "clear in 9 of 10 runs"),
        (a_claim(10, 9, exact=0.06), "likely, in 9 of 10 runs"),
        (a_claim(12, 12), "clear in all 12 runs"),
    ],
)
def test_how_sure_fits_the_number_of_runs(claim, sure):
    assert claim.sure == sure
    if claim.runs < 6 and claim.is_clear:  # the exact test cannot reach .05: then all have to agree
        assert claim.agree == claim.runs and "all" in claim.sure


def test_right_answers_are_counted_in_a_hundred_where_truth_is_yes_or_no(two, evidence):
    assert not is_yes_or_no(two)
    ones = [replace(run, truth=np.ones_like(run.truth)) for run in two.records.runs]
    counted = replace(two, records=replace(two.records, runs=ones))
    assert is_yes_or_no(counted)
    said = first_screen(counted).arms["sim-verbose"].text()
    assert said.startswith("sim-verbose: 10 fewer right answers in 100 than under sim-fair (clear")
    half = [replace(run, frozen=replace(run, truth=run.truth / 2)) for run in ones]
    assert not is_yes_or_no(replace(counted, records=replace(two.records, runs=half)))
    assert [in_hundred(x) for x in (-0.152, 0.0954, 0.0943, 0.004)] == ["15", "10", "9.4", "0.4"]


@pytest.mark.usefixtures("unrendered")
def test_a_study_of_few_steps_or_one_run_is_called_a_smoke_test(gathered, evidence):
    assert "smoke test (6 steps)" in smoke_test(evidence)
    long = [replace(run, config={"trainer.steps": 8}) for run in evidence.runs]
    assert smoke_test(replace(evidence, runs=long)) == ""
    alone = replace(evidence, runs=[run for run in long if run.seed == 0])
    assert "(one run per arm)" in smoke_test(alone)
    unfinished = replace(evidence, runs=[replace(run, done=False) for run in long])
    assert "no run is finished" in smoke_test(unfinished)
    single = first_screen(gathered(seeds=1))
    assert single.untold == list(single.arms) and "6 steps and one run per arm" in single.smoke
    opening = "".join(front(gathered(seeds=1)))
    assert 'class="warning"' in opening and "<figure" not in opening
    shown = re.sub(r"<details.*?</details>", "", opening, flags=re.DOTALL)
    assert "sim-verbose" in opening and "sim-verbose" not in shown.split('class="next"')[0]


def test_one_pair_is_never_told(gathered):
    for finding in findings(gathered(seeds=1)):
        assert not finding.is_told
    assert "likely" not in " ".join(first_screen(gathered(seeds=1)).lines())


def test_a_study_without_truth_or_runs_has_no_invented_cost(gathered):
    blind = first_screen(gathered(truth=False, seeds=2))
    assert blind.headline == (
        "Under sim-verbose the answers likely changed; no rule says whether for the better."
    )
    assert not re.search(r"right answers|truth (fell|rose|0)", " ".join(blind.lines()))
    empty = first_screen(gathered(steps=0, state="new"))
    assert empty.headline == "Too little is on record to say what any judge taught."
    assert all("nothing on record" in line.text() for line in empty.arms.values())
    assert empty.steps == [] and empty.smoke == ""


def test_an_arm_alone_is_told_since_its_start(evidence):
    rows = moves("sim-verbose", **WORSE)
    screen = first_screen(shifted(replace(evidence, base="sim-verbose"), rows))
    assert screen.headline == "Under sim-verbose the score rose and the answers likely got worse."
    (line,) = screen.arms.values()
    assert line.text().startswith("sim-verbose: truth fell by 0.1 since the start (likely, in all")


def test_line_table_and_figure_cut_a_difference_alike(evidence):
    """Three hedges in ten answers cannot become fewer than none."""
    rows = FAIR | {("sim-fair", "hedges"): [0.0, 0.02, -0.02]} | moves("sim-verbose")
    told = shifted(evidence, rows | {("sim-verbose", "hedges"): [-0.5, -0.1, -0.3]})
    row = row_of(told.feature_shifts, "sim-verbose", "hedges")
    base = row_of(told.feature_shifts, "sim-fair", "hedges")
    low, high = row["diff_low"], row["diff_high"]
    assert low >= -0.5 - base["high"] - 1e-9
    said = f"[{number(low, False)}, "
    table = shifts_table(told.feature_shifts, "sim-fair").set_index(["measure", "arm"])
    hedges = table.loc[("hedges (per answer)", "sim-verbose")]
    assert said in hedges["vs sim-fair [95 %]"]
    drawn = figures.shifts(told.feature_shifts, "sim-fair")
    (axes,) = (each for each in drawn.axes if each.get_title("left") == "hedges")
    (bar,) = (each.get_segments()[0] for each in axes.collections)
    assert bar[:, 0] == pytest.approx([low, high])
    assert "hedging" not in first_screen(told).arms["sim-verbose"].text(), "it may be chance"


def test_the_screen_is_printed_with_what_to_type(two, monkeypatch):
    screen = replace(first_screen(two), steps=[NextStep("Do it.", "python -m x y='[a,b]'")])
    lines = screen.lines()
    assert lines[0].startswith("This is a smoke test") and lines[1] == screen.headline
    assert lines[2].startswith("  sim-verbose: ") and lines[-2:] == [
        "Do it.",
        "  python -m x y='[a,b]'",
    ]
    assert "Nothing is told from chance of sim-fair." in lines
