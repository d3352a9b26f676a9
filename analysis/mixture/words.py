"""What `analysis.mixture` prints: a table for each question, arm by arm."""

from __future__ import annotations

from textwrap import fill

import pandas as pd

from analysis.display.markup import TEXTS
from analysis.display.printed import WIDTH, short
from analysis.mixture import display as tables
from analysis.mixture.estimate import Mixture
from analysis.mixture.teaching import CAUTION
from study.screen import visible

TITLES = TEXTS["mixture"]


def lines(mixture: Mixture, level: float) -> list[str]:
    """Every table that has rows, none wider than `WIDTH` while names are short."""
    whole, comparison = mixture.whole, mixture.comparison
    span = f"steps {whole[0]} to {whole[1]}"
    first = comparison.shares[0].first_steps if comparison.shares else whole
    begun = f"steps {first[0]} to {first[1]}"
    text = [
        *_by_arm(f"{TITLES['rates']} ({span})", tables.rates_table(mixture, whole, short)),
        *_by_arm(f"{TITLES['mix']} ({span})", tables.mix_table(mixture, whole, short)),
        *_by_arm(TITLES["windows"], tables.windows_table(mixture, short)),
        *_by_arm(f"{TITLES['expected']} ({begun})", tables.expected_table(mixture, short)),
        fill(tables.agreed(comparison.of_shares), WIDTH),
    ]
    if comparison.accuracies:
        text += [
            *_by_arm(TITLES["accuracy"], tables.accuracy_table(mixture, short)),
            fill(tables.agreed(comparison.of_accuracies, CAUTION), WIDTH),
        ]
    elif comparison.note:
        text += [f"No change of accuracy is predicted: {comparison.note}."]
    if mixture.transfers:
        text += _by_arm(TITLES["transfer"], tables.transfer_table(mixture, short))
    if mixture.swaps:
        text += _by_arm(TITLES["swaps"], tables.swaps_table(mixture, short), "swap")
        text += [fill(visible(sentence), WIDTH) for sentence in tables.moved(mixture)]
    return [*text, "", f"{TITLES['intervals']} ({level:.3g})"]


def _by_arm(title: str, table: pd.DataFrame, by: str = "arm") -> list[str]:
    """A table of each arm under the arm's name."""
    text = ["", title]
    for name, part in table.groupby(by, sort=False):
        shown = part.drop(columns=by).map(lambda cell: visible(str(cell))).rename(columns=visible)
        text += [visible(str(name)), shown.to_string(index=False, max_colwidth=60)]
    return text
