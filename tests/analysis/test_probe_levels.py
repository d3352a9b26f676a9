"""What a judge does to contents as they are, whether it agrees with itself, and what is claimed of
means clustered by prompt: by hand, by oracles, coverage and sizes of tests."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import ttost_paired

from analysis.probes import levels
from analysis.probes.effects import clustered_mean, effects, tost
from analysis.statistics.power import smallest_effect
from tests.analysis.conftest import clustered


def contents(*rows: tuple[str, float, float, int]) -> pd.DataFrame:
    """(prompt, score, truth, words) of contents as they are."""
    table = pd.DataFrame(rows, columns=["prompt_id", "score", "truth", "words"])
    facts = {"pairwise": False, "bias": "content", "base": "correct", "variant": "ycorrect"}
    return table.assign(probe_id=[str(k) for k in range(len(rows))], judge="j", **facts)


def test_rates_by_hand():
    # 3 of 4 good texts and 1 of 4 bad ones are called good
    table = contents(
        ("a", 0.9, 1.0, 5), ("b", 0.5, 0.5, 5), ("c", 0.7, 0.8, 5), ("d", 0.4, 0.9, 5),
        ("a", 0.1, 0.0, 5), ("b", 0.2, 0.4, 5), ("c", 0.0, 0.1, 5), ("d", 0.6, 0.3, 5),
    )  # fmt: skip
    found = levels.rates(table).set_index("measure")
    expected = {"TPR": 0.75, "FPR": 0.25, "Youden J": 0.5, "phi": 0.5}
    assert found["value"].to_dict() == pytest.approx(expected)
    design = 4 / 3  # one text of each prompt: the clustered variance divides by 3, the plain by 4
    low, high = proportion_confint(3 / design, 4 / design, method="wilson")
    assert (found.loc["TPR", "low"], found.loc["TPR", "high"]) == pytest.approx((low, high))
    assert found.loc["Youden J", "low"] == pytest.approx(0.5 - math.hypot(0.75 - low, 0.75 - low))
    assert math.isnan(found.loc["phi", "low"]), "four prompts are too few to resample"


def test_phi_is_the_correlation_and_its_interval_covers():
    draw = np.random.default_rng(0)
    truth = draw.random(300) < 0.5
    said = np.where(draw.random(300) < 0.8, truth, ~truth)
    table = contents(*[(str(k // 3), float(s), float(t), 5) for k, (s, t) in
                       enumerate(zip(said, truth, strict=True))])  # fmt: skip
    row = levels.rates(table).set_index("measure").loc["phi"]
    assert row["value"] == pytest.approx(np.corrcoef(said, truth)[0, 1])
    assert row["low"] < 0.6 < row["high"] and row["high"] - row["low"] < 0.3


def test_texts_of_one_prompt_are_not_independent():
    once = levels.wilson(np.array([1.0, 0, 1, 0, 1, 1]), np.arange(6))
    thrice = levels.wilson(np.array([1.0, 0, 1, 0, 1, 1]).repeat(3), np.arange(6).repeat(3))
    assert thrice.n == 18 and thrice.design == pytest.approx(3 * 6 / 5)
    assert once.design == pytest.approx(6 / 5)
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high))
    assert levels.wilson(np.array([0.0, 0.0]), np.arange(2)).low == 0.0
    one = levels.wilson(np.ones(12), np.zeros(12))
    assert one.value == 1 and math.isnan(one.low) and math.isnan(one.high)
    assert math.isnan(levels.wilson(np.array([np.nan]), np.arange(1)).value)


@pytest.mark.parametrize("wrong", [0, 1, 4])
def test_all_texts_right_is_one_success_a_prompt(wrong):
    """64 prompts of 30 texts: without prompts that differ, how alike their texts are is unknown."""
    values = np.ones((64, 30))
    values[:wrong, 0] = 0.0
    prompts = np.arange(64).repeat(30)
    found = levels.wilson(values.ravel(), prompts)
    expected = proportion_confint(64 * values.mean(), 64, method="wilson")
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.n == 1920 and found.design == pytest.approx(30)
    values[:, 0] = np.arange(64) % 2
    known = levels.wilson(values.ravel(), prompts)
    assert known.design == 1 and known.high - known.low < 0.02


def test_without_spread_or_repeats_there_is_no_interval_and_no_flip():
    rows = [(str(k), float(k % 2), float(k % 2), 5) for k in range(20)]
    row = levels.rates(contents(*rows)).set_index("measure").loc["phi"]
    assert row["value"] == 1.0 and math.isnan(row["low"]) and math.isnan(row["high"])
    table = verdicts(("a", "a/1", math.nan), columns="prompt_id probe_id score")
    table = table.assign(setting="repeat T=1", temperature=1.0, order=math.nan)
    row = levels.repeats(table).iloc[0]
    assert math.isnan(row["flips"]) and (row["texts"], row["too_few"]) == (0, 1)


def test_scale_use_by_hand():
    table = contents(
        ("a", 1.0, 0.8, 5), ("a", 1.0, 0.4, 9), ("b", 0.0, 0.2, 5), ("b", 0.5, 0.2, 9),
        ("c", math.nan, 0.5, 5),
    )  # fmt: skip
    row = levels.scale_use(table).iloc[0]
    assert row["n"] == 4 and row["unscored"] == 1 and row["values"] == 3
    assert row["entropy"] == pytest.approx(1.5), "bins of 2, 1 and 1"
    assert (row["ceiling"], row["floor"]) == (0.5, 0.25)
    assert row["ties"] == 1.0, "the one pair that the truth tells apart ties"
    assert row["leniency"] == pytest.approx((0.2 + 0.6 - 0.2 + 0.3) / 4)


def test_length_preference_is_measured_against_the_truth():
    # prompt a: the longer is better and liked; b: the longer is worse and liked; c: no difference
    table = contents(
        ("a", 0.2, 0.1, 5), ("a", 0.9, 0.8, 9), ("b", 0.3, 0.7, 5), ("b", 0.6, 0.2, 9),
        ("c", 0.3, 0.7, 5), ("c", 0.3, 0.2, 9),
    )  # fmt: skip
    row = levels.length_preference(table, pd.DataFrame()).iloc[0]
    assert (row["judge_longer"], row["truth_longer"], row["excess"]) == (1.0, 0.5, 0.5)
    assert row["pairs"] == 2


def verdicts(*rows: tuple[object, ...], columns: str) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=columns.split())
    return table.assign(judge="j", outcome=np.where(table["score"].isna(), "unparsed", "scored"))


def test_repeats_by_hand():
    table = verdicts(
        *[("a", "a/1", score) for score in (0.9, 0.9, 0.1)],
        *[("b", "b/1", score) for score in (0.9, 0.8, math.nan)],
        *[("c", "c/1", score) for score in (0.9, math.nan, math.nan)],
        columns="prompt_id probe_id score",
    ).assign(setting="repeat T=0.7", temperature=0.7, order=math.nan)
    row = levels.repeats(table).iloc[0]
    # of the three pairs of a two differ, of b's one pair none; c has no pair
    assert row["flips"] == pytest.approx((2 / 3 + 0) / 2)
    variance = (np.var([0.9, 0.9, 0.1], ddof=1) + np.var([0.9, 0.8], ddof=1)) / 2
    assert row["sd"] == pytest.approx(math.sqrt(variance))
    assert (row["texts"], row["too_few"], row["unscored"], row["repeats"]) == (2, 1, 3, "2 to 3")


def test_repeats_of_pairs_by_hand():
    shown = {
        (0, "a"): (1.0, 0.5, 0.0),  # no two of three alike
        (1, "a"): (0.0, 0.0, 1.0),  # one pair of three alike
        (0, "b"): (0.5, 0.5, math.nan),
        (1, "b"): (1.0, math.nan, math.nan),
    }
    rows = [
        (prompt, f"{prompt}/1", order, score)
        for (order, prompt), scores in shown.items()
        for score in scores
    ]
    table = verdicts(*rows, columns="prompt_id probe_id order score")
    row = levels.repeats(table.assign(setting="repeat T=1", temperature=1.0)).iloc[0]
    assert row["flips"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    # two prompts say little, but no share is below 0
    assert (row["low"], row["high"]) == (0.0, 1.0)
    assert (row["texts"], row["too_few"], row["unscored"]) == (3, 1, 3)


def test_positions_by_hand():
    # (score of the one shown first as given, swapped)
    shown = [(1, 1)] * 6 + [(0, 0)] + [(1, 0)] * 2 + [(0.5, 0.5)] + [(0.5, 1)] + [(1, math.nan)]
    rows = [
        (f"p{k}", f"p{k}/x", 0, order, score)
        for k, both in enumerate(shown)
        for order, score in enumerate(both)
    ]
    table = verdicts(*rows, columns="prompt_id probe_id sample_index order score")
    table = table.assign(setting="profile")
    again = table.assign(setting="repeat T=1", score=1.0)
    row = levels.positions(pd.concat([table, again])).iloc[0]
    assert (row["first_first"], row["second_second"], row["half_ties"]) == (6, 1, 1)
    assert row["consistent"] == pytest.approx(3 / 11) and row["pairs"] == 11
    assert row["unscored"] == 1
    assert row["p"] == pytest.approx(2 * (1 + 7) / 2**7), "1 of 7 or fewer, both sides"
    assert levels.positions(table.assign(order=math.nan)).empty


def test_a_prompt_has_one_vote_on_what_order_does():
    """Of nine prompts every pair goes to the text shown first, and of one to the second."""
    for pairs in (1, 20):
        rows = [
            (str(prompt), f"{prompt}/{pair}", 0, order, float(prompt < 9))
            for prompt, pair, order in itertools.product(range(10), range(pairs), (0, 1))
        ]
        table = verdicts(*rows, columns="prompt_id probe_id sample_index order score")
        row = levels.positions(table.assign(setting="profile")).iloc[0]
        assert (row["first_first"], row["second_second"]) == (9 * pairs, pairs)
        assert row["p"] == pytest.approx(2 * (1 + 10) / 2**10)


def test_repeats_that_never_differ_could_in_prompts_that_were_not_drawn():
    rows = [(str(k), f"{k}/{n}", 1.0) for k in range(20) for n in range(4) for _ in range(5)]
    table = verdicts(*rows, columns="prompt_id probe_id score")
    table = table.assign(setting="repeat T=1", temperature=1.0, order=math.nan)
    row = levels.repeats(table).iloc[0]
    assert (row["flips"], row["low"]) == (0.0, 0.0)
    assert row["high"] == pytest.approx(1 - 0.025 ** (1 / 20)), "20 prompts, not 80 texts"


def test_what_is_called_good_without_content_by_hand():
    table = contents(("p0", 0.5, 0, 0), ("p1", 0.49, 0, 0), ("p2", math.nan, 0, 0))
    row = levels.hacks(table.assign(base="none", variant="empty"), threshold=0.5).iloc[0]
    assert row["called_good"] == 0.5 and row["unscored"] == 1, "a score at the threshold is good"


def test_failures_by_reason_and_length():
    probes = [f"p{k}" for k in range(40)]
    words = pd.Series(range(40), index=probes)
    table = verdicts(
        *[(p, p, math.nan if k >= 30 else 1.0) for k, p in enumerate(probes)],
        columns="probe_id prompt_id score",
    )
    reasons, by_length = levels.failures(table, words)
    assert reasons.set_index("outcome")["verdicts"].to_dict() == {"scored": 30, "unparsed": 10}
    assert by_length["share"].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert by_length["words_low"].tolist() == [0, 10, 20, 30]


def drawn(seed: int, prompts: int, each: int, between: float) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    shared = draw.normal(0, between, prompts).repeat(each)
    return shared + draw.normal(0, 1, prompts * each), np.arange(prompts).repeat(each)


def test_a_clustered_mean_is_that_of_statsmodels_and_as_clear_as_its_signs():
    values, prompts = drawn(1, 17, 3, 2.0)
    values, prompts = np.append(values[4:], np.nan), np.append(prompts[4:], 99)
    found = clustered_mean(values, prompts)
    kept = np.isfinite(values)
    fit = clustered(values[kept], prompts[kept])
    low, high = fit.conf_int()[0]
    assert (found.value, found.se) == pytest.approx((fit.params[0], fit.bse[0]))
    assert (found.low, found.high, found.p) == pytest.approx((low, high, fit.pvalues[0]))
    assert (found.rows, found.n) == (kept.sum(), len(set(prompts[kept])))
    found = clustered_mean(np.full(20, 0.1), np.arange(20))
    assert found.p == pytest.approx(2 * 0.5**20) and found.se == 0
    two_ways = clustered_mean(np.r_[np.full(19, 0.1), -0.1], np.arange(20))
    assert two_ways.p == pytest.approx(2 * 21 * 0.5**20)
    # every second row is missing in half of the prompts: parts keep the mean of all rows
    uneven = np.r_[np.zeros(30), 1.0]
    prompts = np.r_[np.arange(10).repeat(2), np.arange(10, 20), 20]
    lopsided = clustered_mean(uneven, prompts)
    whole = lopsided.rare
    assert whole.value * whole.still + sum(whole.apart) == pytest.approx(21 * lopsided.value)


def test_one_prompt_has_no_interval_beside_the_oracles_of_statsmodels():
    values, prompts = drawn(3, 20, 1, 0.0)
    smallest = smallest_effect(20) * values.std(ddof=1)
    assert clustered_mean(values, prompts).smallest == pytest.approx(smallest)
    values, prompts = drawn(5, 30, 1, 0.0)
    oracle = ttost_paired(values, np.zeros(30), -0.4, 0.4)[0]
    assert tost(clustered_mean(values, prompts), 0.4) == pytest.approx(oracle)
    found = clustered_mean(np.array([0.1, 0.3]), np.array([1, 1]))
    assert found.value == pytest.approx(0.2) and found.rows == 2
    assert all(map(math.isnan, (found.se, found.low, found.p, tost(found, 0.05))))
    nothing = clustered_mean(np.array([np.nan]), np.array([1]))
    assert math.isnan(nothing.value) and nothing.rows == 0


@pytest.mark.parametrize(
    "values, p, outside",
    # of two prompts none differs: .95 ** 2 is the chance of that if a share of .05 did
    [([0.0, 0.0], 1.0, 0.95**2), ([0.2, 0.2], 0.5, 1.0), ([1e-8, 0.0], 1.0, 0.95**2)],
)
def test_without_spread_nothing_is_certain(values, p, outside):
    found = clustered_mean(np.array(values), np.array([1, 2]))
    assert (found.se, found.p) == (0.0, pytest.approx(p))
    assert tost(found, 0.05) == pytest.approx(outside)
    unseen = 1 - 0.025 ** (1 / 2)
    assert found.high == pytest.approx(found.value + unseen * (1 - found.value))
    assert found.low == pytest.approx(found.value - unseen * (1 + found.value))
    assert math.isnan(found.smallest), "two prompts show nothing"


@pytest.mark.parametrize("moved", [0, 1, 4])
def test_prompts_that_turn_to_the_end_of_the_scale_are_bounded_exactly(moved):
    """Clopper and Pearson's bound on their share, by its definition."""
    found = clustered_mean(np.r_[np.ones(moved), np.zeros(64 - moved)], np.arange(64))
    assert stats.binom.cdf(moved, 64, found.high) == pytest.approx(0.025, abs=0.004)
    assert tost(found, 0.05) == pytest.approx(stats.binom.cdf(moved, 64, 0.05), abs=0.015)
    # seen with a chance of 80 %: six that turn the same way, 2 / 2 ** 6 < .05
    worst = clustered_mean(np.zeros(64), np.arange(64)).smallest
    assert stats.binom.sf(5, 64, worst) == pytest.approx(0.8)
    assert found.smallest >= worst


def test_what_is_known_of_the_size_of_changes_is_used():
    """One prompt of 20 moved by .5: P(w + v / 2 >= x), weights Dirichlet(1, 19, 1), by hand."""
    values = np.r_[0.5, np.zeros(19)]
    rare = clustered_mean(values, np.arange(20)).rare
    assert (rare.value, rare.still, rare.apart, rare.ends) == (0.0, 19, (0.5,), (-1.0, 1.0))
    # the two weights sum to Beta(2, 19) and share it evenly: P(w + v / 2 >= x) given the sum
    total = (np.arange(20_000) + 0.5) / 20_000
    share = np.clip(2 * 0.15 / total - 1, 0, 1)
    by_hand = float(np.mean(stats.beta.pdf(total, 2, 19) * (1 - share)))
    assert rare.at_least(0.15) == pytest.approx(by_hand, abs=0.01)
    assert rare.at_least(0.15) < clustered_mean(2 * values, np.arange(20)).rare.at_least(0.15)
    assert rare.at_least(-0.1) == rare.at_most(0.6) == 1.0


def test_a_change_reaches_as_far_as_its_own_scale_does():
    flips = clustered_mean(np.zeros(30), np.arange(30), ends=(0.0, 1.0))
    assert flips.low == 0.0 < flips.high
    # the truth says that the edit is worse: agreement can turn by 2 and by nothing
    table = pd.DataFrame(
        {"judge": "j", "bias": "b", "variant": "v", "keeps": True, "at_end": False}
        | {"pairwise": True}
        | {"prompt_id": range(30), "planted_change": math.nan, "words_change": 1.0}
        | {"judge_change": -1.0, "truth_change": -1.0, "bias_change": 0.0}
        | {f"{of}_{end}": 0.0 for of in ("bias", "judge") for end in ("low", "high")}
    )
    row = effects(table, {}).iloc[0]
    unseen = 1 - 0.025 ** (1 / 30)
    assert row["low"] == 0.0 and row["high"] == pytest.approx(2 * unseen)
    single = effects(table.assign(pairwise=False), {}).iloc[0]
    assert (single["low"], single["high"]) == pytest.approx((-unseen, unseen))
