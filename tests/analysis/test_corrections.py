"""Corrected p-values are those of statsmodels."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from analysis.statistics.corrections import benjamini_hochberg, holm


@given(st.lists(st.sampled_from([0.0, 1e-9, 0.01, 0.04, 0.2, 0.9, 1.0]), min_size=1, max_size=9))
def test_they_are_those_of_statsmodels_to_the_last_digit(p):
    assert holm(p).tolist() == multipletests(p, method="holm")[1].tolist()
    assert benjamini_hochberg(p).tolist() == multipletests(p, method="fdr_bh")[1].tolist()
    assert holm(np.empty(0)).size == benjamini_hochberg(np.empty(0)).size == 0
