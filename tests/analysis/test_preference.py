"""Preference for one's own at equal quality: planted, against statsmodels, and where it is raw."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from analysis.external.preference import preferences, within
from analysis.preference import main
from analysis.statistics.fixed_effects import fixed_effects


def table(seed, effect=0.3, better=0.0, items=150):
    """One judge of family a, answers of a0 (itself), a1 (family) and two others per item."""
    rng = np.random.default_rng(seed)
    rows = []
    for item in range(items):
        hard = rng.normal()
        for author, family in (("a0", "a"), ("a1", "a"), ("b0", "b"), ("c0", "c")):
            quality = hard + better * (family == "a") + rng.normal()
            score = 0.5 * quality + 2 * hard + effect * (family == "a") + 0.5 * rng.normal()
            rows.append((f"i{item}", "a0", "a", author, family, score, quality))
    columns = ["item", "judge", "judge_family", "author", "author_family", "score", "quality"]
    return pd.DataFrame(rows, columns=columns)


def family(frame):
    return next(one for one in preferences(frame) if one.kind == "family")


def test_better_answers_are_no_bias_and_missing_scores_are_counted():
    """Own answers are better by 1: without quality that looks like bias, with it there is none."""
    found = family(table(1, effect=0.0, better=1.0))
    assert found.raw.low > 0.3
    assert found.effect.low < 0 < found.effect.high
    assert found.quality_slope == pytest.approx(0.5, abs=0.05)
    frame = table(4)
    frame.loc[::5, "score"] = np.nan
    found = family(frame)
    assert found.missing == 120 and found.rows == 480
    assert found.effect.low < 0.3 < found.effect.high
    rows = preferences(table(3))
    assert [(one.kind, one.own_rows) for one in rows] == [("self", 150), ("family", 300)]


def test_slopes_and_errors_are_those_within_items():
    frame = table(2)
    own = (frame["author_family"] == "a").astype(float)
    x = np.stack([own, frame["quality"]], axis=1)
    found = within(frame["score"].to_numpy(), x, frame["item"].to_numpy())
    fit = fixed_effects(frame["score"].to_numpy(), x, frame["item"].to_numpy())
    np.testing.assert_array_equal(np.stack(found[:2]), [fit.coef_K, fit.se_K])
    assert found[2] == 150


def test_a_quality_on_the_scale_of_scores_is_taken_from_them():
    frame = table(2)
    by_offset = next(one for one in preferences(frame, offset=True) if one.kind == "family")
    own = (frame["author_family"] == "a").astype(float).to_numpy()
    rest = (frame["score"] - frame["quality"]).to_numpy()
    (slope,), (error,), _ = within(rest, own[:, None], frame["item"].to_numpy())
    assert by_offset.quality_slope == 1.0 and by_offset.effect.value == slope
    assert by_offset.effect.high - slope == pytest.approx(1.976 * error, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.assign(author="z", author_family="z"), "no answer is its own"),
        (lambda f: f.assign(author="a0", author_family="a"), "do not vary separately"),
        (lambda f: f.head(4), "too few"),
    ],
)
def test_what_cannot_be_told_is_said(change, said):
    found = family(change(table(5)))
    assert math.isnan(found.effect.value) and said in found.note


def test_the_command_line(tmp_path, capsys):
    file, out = tmp_path / "t.csv", tmp_path / "p.json"
    table(6).to_csv(file, index=False)
    assert main([str(file), f"out={out}"]) == 0
    assert {one["kind"] for one in json.loads(out.read_text())["preferences"]} == {"self", "family"}
    assert "at equal quality" in capsys.readouterr().out
    table(6).drop(columns="quality").to_csv(file, index=False)
    assert main([str(file), f"out={out}"]) == 2
    assert "has no column quality" in capsys.readouterr().err
