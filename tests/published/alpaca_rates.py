"""AlpacaEval's own win rates, and its length-controlled ones, from its annotations."""

import warnings

import numpy as np
import pandas as pd
import statsmodels.api as sm
from scipy.special import expit
from statsmodels.tools.sm_exceptions import PerfectSeparationWarning

from analysis.statistics.estimate import NAN
from analysis.statistics.proportions import constant


def alpaca_win_rates(annotations: pd.DataFrame) -> pd.DataFrame:
    """AlpacaEval's own win rate of each (judge, model), in per cent, with its standard error.

    100 * mean(preference - 1), where 0 counts as the tie 1.5 and a blank is left out; the standard
    error is the sample's (ddof 1) over sqrt(n), which is NaN for one annotation.

    Args:
        annotations: As `alpaca_eval` gives it.

    Returns:
        Index (judge, model); columns win_rate, standard_error, n, wins, losses, draws.
    """
    share = annotations["preference"].mask(annotations["preference"] == 0, 1.5) - 1
    counted = annotations.assign(
        share=100 * share, wins=share > 0.5, losses=share < 0.5, draws=share == 0.5
    ).groupby(["judge", "model"])
    return (
        counted["share"]
        .agg(win_rate="mean", standard_error="sem", n="count")
        .join(counted[["wins", "losses", "draws"]].sum())
    )


def length_controlled_rate(intercept: float, slope: float, difficulty: np.ndarray) -> float:
    """AlpacaEval's length-controlled win rate in per cent, from a model's published weights.

    The fitted preference at equal lengths, so the length term is zero:
    100 * mean(sigmoid(intercept + slope * difficulty)).

    Args:
        intercept: Weight of the model itself (``not_gamed_baseline``).
        slope: Weight of the instructions' difficulty.
        difficulty: shape (instructions,).
    """
    return float(100 * expit(intercept + slope * np.asarray(difficulty)).mean())


def length_controlled_refit(
    share: np.ndarray, length_difference: np.ndarray, difficulty: np.ndarray
) -> float:
    """A length-controlled win rate in per cent fitted from a model's own annotations.

    Fractional logit of the share on tanh(length difference / its SD), difficulty and 1, predicted
    at equal lengths. AlpacaEval's own fit is regularised and has rows against gaming besides, so
    this is near it, not equal. NaN where lengths or shares have no spread, or the fit predicts
    every share (a separation leaves its weights without a value).

    Args:
        share: preference - 1, in [0, 1], shape (N,).
        length_difference: characters of the baseline's output - the model's, shape (N,).
        difficulty: of the instructions, shape (N,).
    """
    y, gap = np.asarray(share, dtype=float), np.asarray(length_difference, dtype=float)
    if constant(y) or constant(gap):
        return NAN
    columns = [np.tanh(gap / gap.std(ddof=1)), np.asarray(difficulty, dtype=float), np.ones(len(y))]
    with warnings.catch_warnings(), np.errstate(over="ignore"):  # weights that run away
        warnings.simplefilter("error", PerfectSeparationWarning)
        try:
            fitted = sm.GLM(y, np.column_stack(columns), family=sm.families.Binomial()).fit()
        except PerfectSeparationWarning:
            return NAN
    equal = np.column_stack([np.zeros(len(y)), *columns[1:]])
    return float(100 * fitted.predict(equal).mean())
