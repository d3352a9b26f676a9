import math

import numpy as np

from analysis.records.runs import ends, shift
from study.features import FEATURES, unit


def test_a_shift_is_last_tenth_minus_first_tenth():
    # 20 steps: windows of two; (19 + 20) / 2 - (1 + 2) / 2 = 18
    assert ends(np.arange(1.0, 21.0)) == (1.5, 19.5)
    assert shift(np.arange(1.0, 21.0)) == 18.0
    # 11 steps: a tenth is rounded up to two
    assert shift(np.array([0.0] * 9 + [4.0, 8.0])) == 6.0


def test_a_shift_that_cannot_be_had_is_missing():
    assert math.isnan(shift(np.array([3.0])))
    assert math.isnan(shift(np.array([math.nan, 2.0, 3.0])))
    assert ends(np.array([math.nan, 2.0, 3.0]))[1] == 3.0


def test_every_feature_has_a_unit():
    assert unit("length") == "words"
    assert {unit(name) for name in FEATURES} == {"words", "share of words", "per answer"}
    assert unit("op/Custom") == "calls"
