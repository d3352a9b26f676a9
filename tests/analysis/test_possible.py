"""Intervals of effects end where nothing can be beyond."""

import numpy as np

from analysis.drift.possible import cut, cut_difference


def test_shifts_and_differences_end_where_nothing_can_be():
    start = {"first": 0.5, "shift": -0.4, "low": -0.9, "high": 0.1}
    assert cut({"metric": "hedges", **start}) == (-0.5, 0.1)
    assert cut({"metric": "repetition", **start, "high": 0.9}) == (-0.5, 0.5)
    assert cut({"metric": "gap", **start}) == (-0.9, 0.1), "a gap may be below 0"
    assert cut({"metric": "truth", **start, "high": 0.7}) == (-0.5, 0.5)
    assert cut({"metric": "judge_score", **start, "first": 7.0}) == (-0.9, 0.1), "another scale"
    low, high = cut({"metric": "length", **start, "low": np.nan, "high": np.nan})
    assert np.isnan(low) and np.isnan(high)


def test_what_an_arm_did_beyond_the_base_ends_where_nothing_can_be():
    """An arm that starts at .5 can lose .5, and be 0.5 + .3 below a base that rose by .3."""
    base = {"metric": "hedges", "first": 0.5, "shift": 0.1, "low": -0.2, "high": 0.3}
    row = {"metric": "hedges", "first": 0.5, "shift": -0.3}
    row |= {"diff": -0.4, "diff_low": -2.0, "diff_high": 1.2}
    assert cut_difference(row, base) == (-0.8, 1.2), "nothing is too much of a count"
    share = {"metric": "repetition"}
    assert cut_difference(row | share, base | share) == (-0.8, 0.7)
    truth = {"metric": "truth"}
    assert cut_difference(row | truth, base | truth | {"low": -9.0, "high": 9.0}) == (-1.0, 1.0)
    assert cut_difference(row, base | {"low": np.nan, "high": np.nan}) == (-0.6, 1.2)
    assert cut_difference(row, None) == (-2.0, 1.2)
    assert cut_difference(row | {"diff": -0.9}, base) == (-0.9, 1.2), "the difference itself stays"
