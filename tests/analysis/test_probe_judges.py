"""Judges beside each other and beside their own texts: by hand, by oracle, and planted."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.external.preference import preferences
from analysis.probes.judges import ALPHA, WITHIN, agreement, authored, own_texts
from analysis.statistics.agreement import krippendorff_alpha


def judged(said: dict[str, np.ndarray], **columns: object) -> pd.DataFrame:
    """Scores (P, K) of each judge on K contents of P prompts."""
    rows = [
        (f"p{prompt:03d}", f"{prompt}/{text}", judge, score)
        for judge, scores in said.items()
        for (prompt, text), score in np.ndenumerate(scores)
    ]
    table = pd.DataFrame(rows, columns=["prompt_id", "probe_id", "judge", "score"])
    return table.assign(**{"pairwise": False, "bias": "content", "against": None} | columns)


def drawn(rng: np.random.Generator, prompts: int, shared: float) -> dict[str, np.ndarray]:
    """Two judges that see one value with error; a prompt's errors have a common part."""
    value = rng.normal(0, 1, (prompts, 4))
    return {
        judge: value + rng.normal(0, shared, (prompts, 1)) + rng.normal(0, 0.5, (prompts, 4))
        for judge in "ab"
    }


def test_alpha_is_that_of_the_ratings_and_correlation_that_of_each_prompt():
    said = drawn(np.random.default_rng(0), 20, 0.3)
    said["b"][3, 1] = np.nan
    table = agreement(judged(said)).set_index(["texts", "measure"])
    both = np.stack([said["a"].ravel(), said["b"].ravel()], axis=1)
    for texts in ("contents", "all probes"):
        alpha = table.loc[(texts, ALPHA)]
        assert alpha["value"] == pytest.approx(krippendorff_alpha(both).value)
        assert (alpha["judges"], alpha["scored"], alpha["prompts"]) == ("a, b", 79, 20)
    by_prompt = [
        np.corrcoef(*(one[~np.isnan(said["b"][k])] for one in (said["a"][k], said["b"][k])))[0, 1]
        for k in range(20)
    ]
    row = table.loc[("contents", WITHIN)]
    assert row["value"] == pytest.approx(np.mean(by_prompt))
    half = stats.t.ppf(0.975, 19) * np.std(by_prompt, ddof=1) / 20**0.5
    assert (row["low"], row["high"]) == pytest.approx((row["value"] - half, row["value"] + half))


@pytest.mark.parametrize("studies", [30, pytest.param(60, marks=pytest.mark.long)])
def test_the_interval_of_alpha_covers_over_prompts_whose_texts_are_alike(studies):
    """Of 30 intervals that cover .6 too few hold the truth in 96 % of builds; of 60, of .7 in
    99 %."""
    rng = np.random.default_rng(4)
    # variance 1 of texts, .49 + .25 of each judge's errors
    truth, held, naive = 1 / 1.74, 0, 0
    for _ in range(studies):
        said = drawn(rng, 20, 0.7)
        row = agreement(judged(said)).iloc[0]
        assert row["measure"] == ALPHA
        held += row["low"] <= truth <= row["high"]
        texts = krippendorff_alpha(np.stack([said["a"].ravel(), said["b"].ravel()], axis=1))
        naive += texts.low <= truth <= texts.high
    low, high = stats.binom.interval(0.999, studies, 0.95)
    assert low <= held <= high
    assert naive < held, "texts of a prompt are not independent"


def test_a_stricter_judge_ranks_alike_and_judges_of_pairs_are_compared_on_pairs():
    a = np.random.default_rng(1).normal(0, 1, (12, 4))
    table = agreement(judged({"a": a, "b": a - 1, "c": a})).set_index(["judges", "measure"])
    alpha = table.loc[("a, b, c", ALPHA)]
    assert (alpha["value"] < 0.9).all() and (alpha["high"] < 1).all()
    assert table.loc[("a, b", WITHIN)].iloc[0]["value"] == pytest.approx(1.0)
    table = judged(drawn(np.random.default_rng(3), 12, 0.0), bias="length", against="x")
    assert list(agreement(table.assign(pairwise=True))["texts"]) == ["pairs", "pairs"]
    found, notes = own_texts(written(0.5, prompts=9), manifest())
    assert found.empty and len(notes) == 3
    assert all("9 prompts are fewer than 10" in note for note in notes)


def test_what_there_is_too_little_of_is_said():
    rng = np.random.default_rng(2)
    assert agreement(judged({"a": rng.random((12, 4))})).empty
    few = agreement(judged(drawn(rng, 9, 0.0))).iloc[0]
    assert math.isfinite(few["value"]) and math.isnan(few["low"])
    assert few["note"] == "fewer than 10 prompts: no interval"
    a = rng.random((12, 4))
    same = agreement(judged({"a": a, "b": a})).iloc[0]
    assert same["value"] == 1 and math.isnan(same["low"]) and "agree on every" in same["note"]
    rank = agreement(judged({"a": a, "b": a})).iloc[1]
    assert rank["value"] == pytest.approx(1) and math.isnan(rank["low"])
    assert "no spread" in rank["note"]
    opposed = agreement(judged({"b": a * 0 + [1, 0, 1, 0], "c": a * 0 + [0, 1, 1, 0]})).iloc[0]
    assert math.isfinite(opposed["value"]) and math.isnan(opposed["low"])
    assert "no spread" in opposed["note"]
    flat = a + rng.normal(0, 0.1, a.shape)
    flat[:5] = 0.5
    row = agreement(judged({"a": a, "b": flat})).iloc[1]
    assert row["note"] == "5 prompts without spread left out" and row["prompts"] == 7
    mixed = judged({"a": a, "b": a})
    mixed["pairwise"] = mixed["judge"] == "b"
    assert agreement(mixed).empty, "a score of a text is no preference between two"


def written(taste: float, prompts: int = 30, seed: int = 0) -> pd.DataFrame:
    """Two edits of each prompt by rules and two by the model ``w``, which also judges.

    Its texts are better by .2 and it likes them by ``taste`` beyond; a stranger judges by truth.
    """
    rng, rows = np.random.default_rng(seed), []
    for prompt in range(prompts):
        for how in ("rule", "model"):
            for variant in ("yshort", "yverbose"):
                truth = 0.2 * (how == "model") + rng.normal(0, 0.2)
                for judge, liking in (("w", taste), ("kin", taste), ("stranger", 0.0)):
                    score = truth + liking * (how == "model") + rng.normal(0, 0.1)
                    probe = f"{prompt}/{how}/{variant}"
                    rows.append((judge, str(prompt), probe, variant, how, truth, score))
    columns = ["judge", "prompt_id", "probe_id", "variant", "how", "truth", "score"]
    table = pd.DataFrame(rows, columns=columns).assign(against="x", pairwise=False, bias="length")
    # what only rules wrote has no counterpart of the model's, and is left out
    extra = table.head(3).assign(variant="emoji", how="rule", score=99.0)
    return pd.concat([table, extra], ignore_index=True)


def manifest(rewriter: str = "w", **families: str) -> dict:
    families = families or {"w": "f", "kin": "f", "stranger": "g"}
    return {
        "command": {"rewriter": rewriter, "judges": list(families)},
        "judges": {name: {"family": family} for name, family in families.items()},
    }


def test_a_planted_taste_for_own_texts_is_found_at_equal_truth():
    found, notes = own_texts(written(0.15), manifest())
    assert notes == []
    rows = found.set_index(["judge", "own"])
    assert set(rows.index) == {("w", "self"), ("w", "family"), ("kin", "family")}
    for _, row in rows.iterrows():
        assert row["low"] < 0.15 < row["high"] and row["p"] < 0.001
        assert row["raw"] == pytest.approx(0.35, abs=0.1), "own texts are better as well"
        assert (row["prompts"], row["texts"], row["texts by"]) == (30, 60, "w")


@pytest.mark.parametrize(
    "change, settings, said",
    [
        ({}, {"rewriter": ""}, "no model is on record"),
        ({"how": "rule"}, {}, "no model is on record"),
        ({}, {"stranger": "g"}, "none of the judges is known to be of its family"),
        ({}, {"stranger": "other", "w2": ""}, "none of the judges is known"),
        ({"truth": np.nan}, {"w": "f", "kin": "f", "stranger": "f"}, "no rule knows their truth"),
    ],
)
def test_why_nothing_is_said_of_own_texts(change, settings, said):
    found, (note,) = own_texts(written(0.1).assign(**change), manifest(**settings))
    assert found.empty and said in note


def test_without_truth_other_families_tell_quality_and_presets_the_family():
    """Their noise does not pass for taste: own texts are better by .2, and that is taken out."""
    found, notes = own_texts(written(0.15).assign(truth=np.nan), manifest())
    assert notes == [] and set(found["quality by"]) == {"other judges"}
    assert (found["low"] < 0.15).all() and (found["high"] > 0.15).all()
    assert (found["p"] < 0.001).all() and found["raw"].to_numpy() == pytest.approx(0.35, abs=0.1)
    table = written(0.1).assign(judge=lambda frame: frame["judge"].replace("w", "mine"))
    found, _ = own_texts(table, manifest("qwen3-8b", mine="qwen3", stranger="g"))
    assert list(zip(found["judge"], found["own"], strict=True)) == [("mine", "family")]


def test_authors_on_record_go_before_the_rewriter():
    """A set whose slots have authors needs no rewriter; rules' edits are their base's author's."""
    table = written(0.15)
    table["author"] = np.where(table["how"] == "model", "w", "policy")
    table["author_family"] = np.where(table["how"] == "model", "f", "p")
    found, notes = own_texts(table, manifest(rewriter=""))
    assert notes == []
    rows = found.set_index(["judge", "own"])
    assert set(rows.index) == {("w", "self"), ("w", "family"), ("kin", "family")}
    assert ((rows["low"] < 0.15) & (rows["high"] > 0.15)).all()
    frame, quality_by = authored(table, manifest(rewriter=""))
    assert quality_by == "rule" and set(frame["author"]) == {"w", "policy"}


@pytest.mark.parametrize("unknown", ["", "other"])
def test_texts_of_an_unknown_family_are_nobodys_own(unknown):
    """Else every text without an author would be kin of every judge whose family is unknown."""
    table = written(0.1)
    table["author"] = np.where(table["how"] == "model", "w", "")
    table["author_family"] = np.where(table["how"] == "model", "f", unknown)
    frame, _ = authored(table, manifest(rewriter="", w="f", stranger=unknown))
    own_rows = {(row.judge, row.kind): row.own_rows for row in preferences(frame)}
    assert own_rows["w", "family"] == 60 and own_rows["stranger", "family"] == 0
