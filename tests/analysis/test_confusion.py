"""A judge against the truth by domain: by hand, by oracle, by property, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics
from statsmodels.stats.proportion import proportion_confint

from analysis.confusion import main
from analysis.mixture.confusion import by_domain, judged, rates_differ
from analysis.statistics.proportions import wilson, youden_j

RATES = ("tpr", "fpr", "youden_j", "phi", "auc")


def answers(judge, truth, item=None, domain="a") -> pd.DataFrame:
    """Answers of one judge, each to an item of its own unless told otherwise."""
    columns = {"judge": np.asarray(judge, float), "truth": np.asarray(truth, float)}
    item = np.arange(len(columns["judge"])) if item is None else item
    return pd.DataFrame({"item": item, "domain": domain} | columns)


def cells(tp: int, fp: int, fn: int, tn: int, domain: str = "a", start: int = 0) -> pd.DataFrame:
    judge = np.repeat([1.0, 1, 0, 0], [tp, fp, fn, tn])
    truth = np.repeat([1.0, 0, 1, 0], [tp, fp, fn, tn])
    return answers(judge, truth, start + np.arange(len(judge)), domain)


def planted(rng: np.random.Generator, prompts: int, group: int) -> pd.DataFrame:
    """Groups of answers to prompts; both rates, and how many are right, differ by prompt."""
    shape = (prompts, group)
    truth = rng.random(shape) < rng.beta(2, 2, (prompts, 1))
    rates = [rng.beta(4 * rate, 4 * (1 - rate), (prompts, 1)) for rate in (0.85, 0.2)]
    said = rng.random(shape) < np.where(truth, *rates)
    return answers(said.ravel(), truth.ravel(), np.repeat(np.arange(prompts), group))


def test_by_hand() -> None:
    rates = judged(cells(tp=40, fp=10, fn=15, tn=60))
    assert (rates.n, rates.unscored, rates.items) == (125, 0, 125)
    assert (rates.tp, rates.fp, rates.fn, rates.tn) == (40, 10, 15, 60)
    assert rates.tpr == wilson(40, 55) and rates.fpr == wilson(10, 70)
    assert rates.youden_j.value == pytest.approx(40 / 55 - 10 / 70)
    joined = youden_j(wilson(40, 55), wilson(10, 70))
    assert (rates.youden_j.low, rates.youden_j.high) == pytest.approx((joined.low, joined.high))
    assert rates.phi.value == pytest.approx((40 * 60 - 10 * 15) / (50 * 75 * 55 * 70) ** 0.5)
    assert rates.phi.low < rates.phi.value < rates.phi.high
    # a yes or no: half the sum of the rates that are right
    assert rates.auc.value == pytest.approx((40 / 55 + 60 / 70) / 2)


def test_the_threshold_and_what_is_missing() -> None:
    table = answers([0.7, 0.7, 0.6, np.nan, 0.2], [0.5, 0.49, 1.0, 1.0, np.nan])
    rates = judged(table, threshold=0.7)
    assert (rates.tp, rates.fp, rates.fn, rates.tn) == (1, 1, 1, 0)
    assert (rates.n, rates.unscored, rates.without_truth) == (4, 1, 1)


def test_rates_against_other_libraries() -> None:
    rng = np.random.default_rng(3)
    truth = (rng.random(200) < 0.4).astype(float)
    score = np.round(np.clip(0.3 * truth + rng.random(200) * 0.7, 0, 1), 1)
    for level in (0.8, 0.95):
        rates = judged(answers(score, truth), level=level)
        assert rates.auc.value == pytest.approx(metrics.roc_auc_score(truth, score))
        assert rates.phi.value == pytest.approx(metrics.matthews_corrcoef(truth, score >= 0.5))
        table = metrics.confusion_matrix(truth, score >= 0.5)
        assert table.tolist() == [[rates.tn, rates.fp], [rates.fn, rates.tp]]
        ends = proportion_confint(rates.tp, rates.tp + rates.fn, 1 - level, method="wilson")
        assert (rates.tpr.low, rates.tpr.high) == pytest.approx(ends)


def test_the_clustered_area_is_that_of_the_formula_and_delongs_without_clusters() -> None:
    """Obuchowski's sums, written out in loops."""
    rng = np.random.default_rng(5)
    item = np.repeat(np.arange(12), 3)
    truth = (rng.random(36) < 0.5).astype(float)
    score = np.round(0.4 * truth + 0.6 * rng.random(36), 1)

    def expected(clusters: np.ndarray) -> tuple[float, float]:
        win = (score[truth == 1][:, None] > score[truth == 0]) * 1.0
        win += 0.5 * (score[truth == 1][:, None] == score[truth == 0])
        theta, (m, n) = win.mean(), win.shape
        ones, zeros = win.mean(axis=1), win.mean(axis=0)
        s10 = s01 = s11 = 0.0
        for one in np.unique(clusters):
            of_one = (ones[clusters[truth == 1] == one] - theta).sum()
            of_zero = (zeros[clusters[truth == 0] == one] - theta).sum()
            s10, s01, s11 = s10 + of_one**2, s01 + of_zero**2, s11 + of_one * of_zero
        i10, i01 = (len(np.unique(clusters[truth == side])) for side in (1, 0))
        units = len(np.unique(clusters))
        variance = s10 * i10 / (i10 - 1) / m**2 + s01 * i01 / (i01 - 1) / n**2
        variance += 2 * s11 * units / (units - 1) / (m * n)
        return theta, 1.959963984540054 * variance**0.5

    for clusters in (item, np.arange(36)):
        area = judged(answers(score, truth, clusters)).auc
        value, half = expected(clusters)
        assert area.value == pytest.approx(value)
        assert (area.low, area.high) == pytest.approx((value - half, min(value + half, 1)))


def test_what_cannot_be_told_is_missing() -> None:
    only_right = judged(answers([1, 0, 1], [1, 1, 1]))
    assert only_right.tpr.value == pytest.approx(2 / 3)
    for rate in ("fpr", "youden_j", "phi", "auc"):
        each = getattr(only_right, rate)
        assert np.isnan([each.value, each.low, each.high]).all() and each.note, rate
    nothing = judged(answers([np.nan, np.nan], [1, 0]))
    assert (nothing.n, nothing.unscored) == (2, 2)
    assert all(np.isnan(getattr(nothing, rate).value) for rate in RATES)


@pytest.mark.parametrize(("right", "wrong", "area"), [(1, 0, 1.0), (0, 1, 0.0), (0.3, 0.3, 0.5)])
def test_an_area_without_spread_keeps_an_interval_with_width(right, wrong, area) -> None:
    small, large = (
        judged(answers(np.repeat([right, wrong], n), np.repeat([1, 0], n))).auc for n in (5, 50)
    )
    assert small.value == large.value == area
    for each in (small, large):
        assert 0 <= each.low <= area <= each.high <= 1
    assert 0.02 < large.high - large.low < small.high - small.low < 1


def test_the_same_answers_twice_tell_no_more() -> None:
    once = planted(np.random.default_rng(2), 40, 4)
    single, double = judged(once), judged(pd.concat([once, once]))
    for rate in ("tpr", "fpr", "youden_j", "auc"):
        before, after = getattr(single, rate), getattr(double, rate)
        assert after.value == pytest.approx(before.value)
        assert (after.low, after.high) == pytest.approx((before.low, before.high), abs=2e-3)
    unclustered = judged(pd.concat([once, once]).assign(item=np.arange(2 * len(once))))
    assert unclustered.auc.high - unclustered.auc.low < single.auc.high - single.auc.low


def test_the_test_is_near_pearsons_where_each_item_stands_once() -> None:
    differ = rates_differ(pd.concat([cells(80, 22, 20, 78), cells(70, 30, 30, 70, "b", 1000)]))
    for part, counts in ((differ.tpr, [[80, 20], [70, 30]]), (differ.fpr, [[22, 78], [30, 70]])):
        statistic, p, df, _ = stats.chi2_contingency(counts, correction=False)
        assert part.df == df == 1
        assert part.statistic == pytest.approx(statistic, rel=0.03)
        assert part.p == pytest.approx(p, rel=0.05)
    assert differ.df == 2
    assert differ.statistic == pytest.approx(differ.tpr.statistic + differ.fpr.statistic)


@pytest.mark.parametrize(("fewest", "is_rough"), [(10, False), (9, True)])
def test_few_answers_of_a_class_are_said(fewest: int, is_rough: bool) -> None:
    """Both classes of both domains count: here the wrong answers of the second one."""
    right, wrong = cells(60, 0, 20, 0, "b", 1000), cells(0, 3, 0, fewest - 3, "b", 2000)
    differ = rates_differ(pd.concat([cells(80, 22, 20, 78), right, wrong]))
    assert ("p is rough" in differ.note) == is_rough


def test_a_score_at_the_threshold_passes() -> None:
    """In both domains alike: a judge that says .5 for yes is one that says 1."""
    table = pd.concat([cells(80, 22, 20, 78), cells(70, 30, 30, 70, "b", 1000)])
    halved = table.assign(judge=table["judge"] / 2)
    assert rates_differ(halved, threshold=0.5) == rates_differ(table, threshold=0.5)


@pytest.mark.parametrize(
    ("table", "note"),
    [
        (cells(20, 5, 5, 20), "two domains"),
        (pd.concat([cells(2, 0, 0, 2), cells(2, 0, 0, 2, "b", 10)]), "fewer than 10"),
        (pd.concat([cells(20, 20, 0, 0), cells(20, 20, 0, 0, "b", 100)]), "gives the same score"),
        (pd.concat([cells(20, 0, 0, 0), cells(0, 20, 0, 0, "b", 100)]), "gives the same score"),
    ],
    ids=["one-domain", "few", "constant", "no-class-in-common"],
)
def test_there_is_no_test_where_nothing_can_be_told(table: pd.DataFrame, note: str) -> None:
    differ = rates_differ(table)
    assert np.isnan(differ.p) and note in differ.note


ROWS = st.lists(
    st.tuples(
        *(st.integers(0, 6), st.sampled_from("ab")),
        st.sampled_from([0.0, 0.25, 0.4, 0.75, 1.0, None]),
        st.sampled_from([0.0, 1.0, None]),
    ),
    min_size=1,
    max_size=40,
)


def table_of(rows: list[tuple]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["item", "domain", "judge", "truth"])
    return frame.astype({"judge": float, "truth": float})


@settings(deadline=None, max_examples=60)
@given(ROWS)
def test_counts_add_up_and_intervals_hold_their_value(rows: list[tuple]) -> None:
    rates, _ = by_domain(table_of(rows))
    for each in rates.values():
        assert each.tp + each.fp + each.fn + each.tn + each.unscored == each.n
        for rate in RATES:
            estimate = getattr(each, rate)
            if np.isfinite(estimate.low) and rate != "phi":
                assert estimate.low <= estimate.value + 1e-9
                assert estimate.value <= estimate.high + 1e-9
    names = [name for name in rates if name != "all"]
    for count in ("n", "unscored", "tp", "fp", "fn", "tn", "without_truth"):
        assert getattr(rates["all"], count) == sum(getattr(rates[name], count) for name in names)


@settings(deadline=None, max_examples=60)
@given(ROWS)
def test_a_judge_turned_round_turns_its_rates(rows: list[tuple]) -> None:
    table = table_of(rows)
    rates = judged(table)
    turned = judged(table.assign(judge=1 - table["judge"]))
    for name, mirrored in (("youden_j", 0), ("phi", 0), ("auc", 1), ("tpr", 1), ("fpr", 1)):
        before, after = getattr(rates, name), getattr(turned, name)
        assert after.value == pytest.approx(mirrored - before.value, nan_ok=True)
        if name != "phi":
            ends = (mirrored - before.high, mirrored - before.low)
            assert (after.low, after.high) == pytest.approx(ends, nan_ok=True, abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(ROWS, st.randoms(use_true_random=False))
def test_order_and_names_do_not_matter(rows: list[tuple], random) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    names = {"a": "y", "b": "x"}
    renamed = [(f"item {item}", names[domain], *rest) for item, domain, *rest in shuffled]
    before, after = rates_differ(table_of(rows)), rates_differ(table_of(renamed))
    assert after.p == pytest.approx(before.p, nan_ok=True, rel=1e-6)
    first, second = judged(table_of(rows)), judged(table_of(renamed))
    for name in RATES:
        one, other = getattr(first, name), getattr(second, name)
        assert other.value == pytest.approx(one.value, nan_ok=True)


def command(tmp_path: Path, text: str, *words: str, name: str = "table.csv") -> dict:
    path, out = tmp_path / name, tmp_path / "out.json"
    path.write_text(text)
    assert main([f"table={path}", f"out={out}", *words]) == 0
    return json.loads(out.read_text())


def test_a_table_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "item,domain,judge,truth,more\n"
        "1,math,0.9,1,x\n1,math,.2,true,x\n2,math,,0,x\n3,math,0.1,FALSE,x\n"
        "1,qa,true,0.7,x\n2,qa,0.6,0,x\n3,qa,0.6,,x\n4,,1,1,x\n"
    )
    result = command(tmp_path, text, "threshold=0.5", "level=0.9")
    assert list(result["domains"]) == ["math", "qa", "all"]
    math, qa, everything = result["domains"].values()
    assert [math[name] for name in ("n", "unscored", "tp", "fp", "fn", "tn")] == [4, 1, 1, 0, 1, 1]
    assert math["items"] == 2 and math["tpr"]["value"] == 0.5
    assert (qa["n"], qa["without_truth"], qa["tp"], qa["fp"]) == (2, 1, 1, 1)
    assert qa["phi"] == {**dict.fromkeys(("value", "low", "high")), "note": qa["phi"]["note"]}
    assert (everything["n"], everything["tp"]) == (7, 3)
    assert result["rates_differ"]["p"] is None
    assert result["options"]["level"] == 0.9
    printed = capsys.readouterr().out
    assert "Without a truth, and so not in n: 1 of 8." in printed and "math" in printed
    lines = pd.read_csv(tmp_path / "table.csv").to_json(orient="records", lines=True)
    assert command(tmp_path, lines, "level=0.9", name="table.jsonl")["domains"] == result["domains"]


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("item,domain,judge\n1,a,1\n", [], "no column truth"),
        ("item,domain,judge,truth\n", [], "no rows"),
        ("", [], "cannot be read"),
        ("item,domain,judge,truth\n1,a,1,maybe\n", [], "row 1, column truth holds 'maybe'"),
        ("item,domain,judge,truth\n1,a,1,0\n2,a,1,2\n", [], "row 2, column truth holds '2'"),
        ("item,domain,judge,truth\n1,a,7,1\n", [], "row 1, column judge holds '7'"),
        ("item,domain,judge,truth\n,a,1,1\n", [], "column item holds a blank cell"),
        ("item,domain,judge,truth\n1,all,1,1\n", [], "named 'all'"),
        ("item,domain,judge,truth\n1,a,1,1\n", ["threshold=1.5"], "threshold=1.5"),
        ("item,domain,judge,truth\n1,a,1,1\n", ["level=1"], "level=1"),
        ("item,domain,judge,truth\n1,a,1,1\n", ["colour=red"], "is not an option"),
    ],
)
def test_what_is_refused(tmp_path: Path, capsys, text: str, words: list[str], said: str) -> None:
    path, out = tmp_path / "table.csv", tmp_path / "out.json"
    path.write_text(text)
    assert main([f"table={path}", f"out={out}", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1
    assert not out.exists()


def test_a_study_has_its_judges_apart(make_study, answered) -> None:
    result, _ = answered(main, make_study())
    assert list(result["domains"]) == ["all"]
    assert sorted(result["judges"]) == ["sim-fair", "sim-flaky", "sim-verbose"]
    flaky = result["judges"]["sim-flaky"]["domains"]["all"]
    assert flaky["n"] == 3 * 6 * 16 and flaky["unscored"] == flaky["n"] // 4
    # prompts are named by step and group: the same in every cell
    assert result["domains"]["all"]["items"] == 6 * 4


def test_a_study_of_domains(make_study, answered) -> None:
    folder = make_study(judges=("sim-fair",), seeds=1, groups=10)
    for part in folder.glob("*/rollouts/*.parquet"):
        frame = pd.DataFrame(pq.read_table(part).to_pylist())
        place = frame["group"] % 2
        frame["domain"] = place.map({0: "math", 1: "qa"})
        frame["truth"] = (frame["member"] % 2).astype(float)
        right = frame["truth"].where(frame["member"] < 2 + 2 * place, 1.0)
        frame["judge_score"] = right.where(frame["step"] > 1, 1 - right)
        frame.to_parquet(part)
    result, _ = answered(main, folder)
    assert list(result["domains"]) == ["math", "qa", "all"] and "judges" not in result
    math, qa = result["domains"]["math"], result["domains"]["qa"]
    assert math["fpr"]["value"] > qa["fpr"]["value"]
    assert result["rates_differ"]["p"] < 0.05
