"""Holm's correction is that of statsmodels."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from analysis.statistics.corrections import holm


@given(st.lists(st.sampled_from([0.0, 1e-9, 0.01, 0.04, 0.2, 0.9, 1.0]), min_size=1, max_size=9))
def test_it_is_that_of_statsmodels_to_the_last_digit(p):
    assert holm(p).tolist() == multipletests(p, method="holm")[1].tolist()
    assert holm(np.empty(0)).size == 0
