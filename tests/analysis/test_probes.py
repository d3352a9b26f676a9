"""The profile's estimators: planted biases are recovered, and every number has an oracle."""

import math
import random
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import pytest

from analysis.probes import levels, page, report
from analysis.probes.effects import END, TOO_FEW, corrected, effects, pairs
from analysis.probes.profile import Evidence, profile, read, scores
from experiments import probe
from judges.probes import Source, mini, variants
from judges.simulated.bias import Bias
from study.config.schema import Failure, Simulated, Task
from study.errors import UserError
from study.rows import Truth
from study.tasks import instruct_mini
from tests.analysis.test_probe_levels import verdicts
from tests.recording import compare, of_document

LENGTH_SD = 6.201
"""Words per standard deviation in the simulated judges' reference."""


def test_corrections_by_hand():
    p = [0.01, 0.04, np.nan, 1e-9, 0.02, 0.5]
    table = pd.DataFrame({"judge": list("aaaabb"), "variant": "x y z placebo x y".split(), "p": p})
    found = corrected(table)
    holm = [0.02, 0.04, math.nan, math.nan, 0.04, 0.5]
    assert found["p_holm"].tolist() == pytest.approx(holm, nan_ok=True)
    bh = [0.04, 0.16 / 3, math.nan, math.nan, 0.04, 0.5]  # ranks .01 .02 .04 .5 of four
    assert found["p_bh"].tolist() == pytest.approx(bh, nan_ok=True)


EDITS = ("placebo", "yverbose", "hedged", "emoji", "key_solution")


def texts(
    n: int = 24, bases: Sequence[str] = ("partial",), edits: Sequence[str] = EDITS
) -> pd.DataFrame:
    """Probes of the built-in task as `analysis.probes.profile.read` gives them."""
    rows = instruct_mini.TASK.rows(Task(name="instruct-mini", train_rows=1, eval_rows=n), "eval")
    made = [
        one
        for row in rows
        for one in variants(
            Source(row, mini.contents(row), truth=partial(instruct_mini.TASK.truth, row)),
            *(bases, edits),
        )[0]
    ]
    table = pd.DataFrame([one.as_row() for one in made])
    return table.rename(columns=lambda name: name.removeprefix("component/"))


def judged(probes: pd.DataFrame, settings: Simulated, seed: int = 0) -> pd.DataFrame:
    """Scores of a simulated judge by its own arithmetic, no wire between."""
    bias = Bias(settings)
    rows = []
    for place, (text, truth) in enumerate(zip(probes["text"], probes["truth"], strict=True)):
        value, failure = bias.decide(text, Truth(truth), random.Random(f"{seed} {place}"), 0)
        rows.append(math.nan if failure else value)
    planted = [
        sum(dose * bias.standardised(text)[name] for name, dose in settings.doses.items())
        for text in probes["text"]
    ]
    return probes.rename(columns={"length": "words"}).assign(
        judge="j", pairwise=False, score=rows, planted=planted
    )


def test_failures_stay_missing_and_are_counted():
    probes = texts(20)
    fair = judged(probes, Simulated())
    flaky = judged(probes, Simulated(failure=Failure(rate=0.3)))
    table = effects(pairs(flaky), {}).set_index("variant")
    lost = flaky.set_index("probe_id")["score"].isna()
    own = probes[probes["variant"] == "hedged"]
    expected = (lost[own["probe_id"]].to_numpy() | lost[own["against"]].to_numpy()).sum()
    assert 0 < expected < 20
    assert table.loc["hedged", "unscored"] == expected
    assert table.loc["hedged", "pairs"] == 20 - expected
    assert table.loc["hedged", "effect"] == 0.0, "never a zero in place of a score"
    assert (effects(pairs(fair), {})["unscored"] == 0).all()


def scored(probes: pd.DataFrame, score: float) -> pd.DataFrame:
    """The probes with one score for all."""
    return probes.rename(columns={"length": "words"}).assign(
        judge="j", pairwise=False, planted=np.nan, score=score
    )


def test_worst_cases_by_hand():
    table = scored(texts(6).assign(truth=0.5), 0.5)
    hedged = table.index[table["variant"] == "hedged"]
    table.loc[hedged, "score"] = [0.6, 0.6, 0.6, 0.6, math.nan, math.nan]
    base = table["probe_id"] == table.loc[hedged[5], "against"]
    table.loc[base, "score"] = math.nan
    emoji = table.index[table["variant"] == "emoji"]
    table.loc[emoji[0], ["score", "truth"]] = math.nan, math.nan
    found = effects(pairs(table), {}).set_index("variant")
    row = found.loc["hedged"]
    assert row["effect"] == pytest.approx(0.1) and row["unscored"] == 2
    # four of 0.1; one of -0.5 to 0.5; one with neither side, of -1 to 1
    assert row["bound_low"] == pytest.approx((0.4 - 0.5 - 1) / 6)
    assert row["bound_high"] == pytest.approx((0.4 + 0.5 + 1) / 6)
    row = found.loc["emoji"]
    assert row["unscored"] == 2, "its own score, and the base of another"
    # the pair without a truth has no effect to bound; the other lacks its base alone
    assert row["bound_low"] == pytest.approx((0 * 4 - 0.5) / 5)
    assert row["bound_high"] == pytest.approx((0 * 4 + 0.5) / 5)


def test_worst_cases_hold_whatever_the_missing_scores_were():
    whole = judged(texts(12), Simulated(doses={"length": 0.05}, noise_sd=0.1))
    known = effects(pairs(whole), {})
    assert (known["bound_low"] == known["effect"]).all(), "nothing is missing"
    assert (known["bound_high"] == known["effect"]).all()
    for seed in range(5):
        drop = np.random.default_rng(seed).random(len(whole)) < 0.3
        found = effects(pairs(whole.assign(score=whole["score"].mask(drop))), {})
        assert (found["bound_low"] <= known["effect"]).all()
        assert (known["effect"] <= found["bound_high"]).all()
        assert (found["bound_low"] < found["bound_high"]).any()


def test_without_scores_or_a_truth_only_kept_content_has_an_effect():
    table = scored(texts(4), np.nan)
    found = effects(pairs(table), {"j": 1.0})
    assert found["effect"].isna().all() and set(found["claim"]) == {"cannot tell"}
    assert (found["unscored"] == [len(part) for _, part in pairs(table).groupby(
        "variant", sort=False)]).all()  # fmt: skip
    assert math.isnan(levels.scale_use(table)["leniency"].iloc[0])
    assert levels.rates(table).empty
    table = scored(texts(6).assign(truth=np.nan), 0.5)
    table.loc[table["variant"] == "hedged", ["score", "keeps"]] = 0.4, True
    table.loc[table["variant"] == "emoji", ["score", "keeps"]] = 0.4, False
    found = effects(pairs(table), {"j": 0.2}).set_index("variant")
    assert found.loc["hedged", "effect"] == pytest.approx(-0.1)
    assert found.loc["hedged", "effect_sd"] == pytest.approx(-0.5)
    assert found.loc["hedged", "truth_by"] == "content kept"
    assert math.isnan(found.loc["emoji", "effect"]) and found.loc["emoji", "truth_by"] == "unknown"
    assert found.loc["emoji", "judge_change"] == pytest.approx(-0.1)


def test_what_is_claimed_follows_the_numbers():
    probes = texts(64, ("correct",))
    verbose = judged(probes, Simulated(doses={"length": 0.05}))
    few = effects(pairs(judged(texts(9, ("correct",)), Simulated())), {})
    assert set(few["claim"]) == {TOO_FEW}
    claims = effects(pairs(verbose), {}).set_index("variant")["claim"]
    assert claims["yverbose"] == "bias for it" and claims["emoji"] == "no bias"
    assert claims["key_solution"] == END, "0 beside 0 at the bottom of the scale"
    small = effects(pairs(verbose), {}, margin=0.5).set_index("variant")["claim"]
    assert small["yverbose"] == "bias, but within the margin"
    noisy = judged(probes, Simulated(noise_sd=0.2))
    assert effects(pairs(noisy), {}).set_index("variant")["claim"]["placebo"] == "undecided"
    against = judged(probes, Simulated(doses={"hedges": -0.05}))
    assert effects(pairs(against), {}).set_index("variant")["claim"]["hedged"] == "bias against it"


def test_a_pairwise_score_is_the_win_of_the_edited_text_over_both_orders():
    probes = texts(3)
    edited = probes[probes["against"].notna()]
    rows = []
    for place, one in enumerate(edited["probe_id"]):
        # the edited text wins in both orders; the second loses an order
        rows += [(one, 0, 0, 0.0), (one, 0, 1, math.nan if place == 1 else 1.0)]
    found = verdicts(*rows, columns="probe_id sample_index order score").assign(setting="profile")
    manifest = {"command": {"judges": ["j"]}, "judges": {"j": {"simulated": {}}}}
    table = scores(Evidence("x", probes, found, manifest))
    assert table["pairwise"].all() and table["planted"].isna().all()
    got = table.set_index("probe_id")["score"][edited["probe_id"]].tolist()
    assert math.isnan(got[1]) and set(got[:1] + got[2:]) == {1.0}
    paired = pairs(table)
    assert paired["judge_change"].dropna().eq(1.0).all()
    by_variant = paired.groupby("variant")["truth_change"].unique()
    assert by_variant["placebo"].tolist() == [0.0] and by_variant["yverbose"].tolist() == [-1.0]
    found = effects(paired, {}).set_index("variant")
    assert found.loc["yverbose", "effect"] == pytest.approx(2.0)
    (lost,) = found.index[found["unscored"] > 0]
    truth = found.loc[lost, "truth_change"]
    # two of three won; the third could have been anything from -1 to 1
    assert found.loc[lost, "bound_low"] == pytest.approx((2 - 1) / 3 - truth)
    assert found.loc[lost, "bound_high"] == pytest.approx(1 - truth)
    longer = levels.length_preference(table, paired).iloc[0]
    assert (longer["judge_longer"], longer["truth_longer"]) == (1.0, 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    words = ["judge=sim-verbose,sim-fair", "n=12", "bases=partial", "repeats=2", "temperatures=1"]
    runs = tmp_path_factory.mktemp("runs")
    return probe.run(probe.main.read([*words, f"runs_dir={runs}"])).folder


def test_the_simulated_judges_are_found_out_over_the_wire(folder):
    found = profile(folder)
    table = found.effects.set_index(["judge", "variant"])
    probes = found.evidence.probes.set_index("probe_id")
    for name in ("yverbose", "yshort", "hedged", "authority", "self_praise", "keyword"):
        own = probes[probes["variant"] == name]
        added = own["length"].to_numpy() - probes.loc[own["against"], "length"].to_numpy()
        theory = 0.15 * added.mean() / LENGTH_SD
        row = table.loc[("sim-verbose", name)]
        assert row["at_end"] == 0
        assert [row["effect"], row["planted"]] == pytest.approx([theory] * 2, abs=1e-6)
        assert row["low"] - 1e-6 <= theory <= row["high"] + 1e-6
        assert row["p_holm"] < 0.05 and row["claim"].startswith("bias")
    fair = table.loc["sim-fair"]
    # 12 prompts without any change: .95 ** 12 = .54 of judges with a bias of .05 would show none
    assert (fair["effect"] == 0).all() and fair["p_equivalent"].min() == pytest.approx(0.95**12)
    assert set(fair["claim"]) == {"undecided"}
    rates = found.rates.set_index(["judge", "measure"])["value"]
    assert rates["sim-fair", "TPR"] == 1.0 and rates["sim-fair", "FPR"] == 0.0
    assert rates["sim-fair", "phi"] == 1.0
    every = found.all_rates.set_index(["judge", "measure"])
    assert every.loc[("sim-fair", "phi"), "value"] == 1.0
    assert every.loc[("sim-verbose", "phi"), "value"] < rates["sim-verbose", "phi"]
    contents = found.scores[found.scores["bias"] == "content"]
    counted = found.rates.set_index(["judge", "measure"])["n"]
    assert counted["sim-fair", "phi"] == (contents["judge"] == "sim-fair").sum() == 48
    assert every.loc[("sim-fair", "phi"), "n"] == len(found.evidence.probes)
    longer = found.length.set_index("judge")
    assert longer.loc["sim-fair", "excess"] == 0.0 < longer.loc["sim-verbose", "low"]
    assert (found.repeats["flips"] == 0).all() and found.positions.empty
    assert set(found.reasons["outcome"]) == {"scored"}
    asked = len(found.evidence.verdicts)
    expected = f"2 judges, 12 prompts with 300 texts, {asked} verdicts, all of them scored."
    assert report.extent(found) == expected


def test_the_tables_are_what_they_were(folder):
    found = profile(folder)
    names = ("effects", "rates", "all_rates", "length", "failures", "repeats", "reasons", "scores")
    compare("probes", of_document({name: getattr(found, name) for name in names}))


def test_the_figures_show_every_row(folder):
    found = profile(folder)
    own = found.effects[found.effects["judge"] == "sim-verbose"]
    axes = page.forest(own, found.margin).axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert sorted(labels) == sorted(own["variant"])
    ordered = own.set_index("variant").loc[labels, "effect"]
    assert ordered.is_monotonic_increasing, "the largest on top"
    panels = page.scores(found.scores, truth=True).axes
    assert [axes.get_title("left") for axes in panels] == ["sim-verbose (n=48)", "sim-fair (n=48)"]
    failed = page.failures(found.failures.assign(share=0.1, low=0.05, high=0.2))
    assert len(failed.axes[0].containers) == 2


def test_what_is_no_folder_of_probes_is_said(tmp_path):
    with pytest.raises(UserError, match=r"holds no probes\.parquet"):
        read(tmp_path)
    with pytest.raises(UserError, match="margin=0"):
        profile(tmp_path, margin=0.0)
