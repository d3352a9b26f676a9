"""AlpacaEval's own win rates from its annotations, and its length-controlled ones from weights."""

import numpy as np
import pandas as pd
from scipy.special import expit


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
