"""Figures of four pages: ``python docs/site/guarantees.py docs``.

Alarms, audits and panels are the report's own, of planted runs; looks are drawn of their levels.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from picture import STYLE
from scipy.stats import t

from analysis.audit.display import gap_by_stretch
from analysis.audit.estimate import audit_of
from analysis.audit.planted import RISE, audited, planted
from analysis.display.figures import ALONE, single, style
from analysis.onset.display import onsets
from analysis.onset.estimate import own_line
from analysis.panel.display import bias_shares
from analysis.panel.estimate import worth
from analysis.panel.planted import planted as planted_panel
from analysis.records.runs import Run
from analysis.statistics.looks import level

SHARE, SEEDS, STEPS = 0.1, 3, 80
LOOKS = (3, 4, 6)


def runs() -> list[Run]:
    """Three seeds of a judge whose gap grows, and of one whose gap does not."""
    rng = np.random.default_rng(0)
    return [
        planted(rng, rise=rise, steps=STEPS, groups=16, seed=seed, arm=arm)
        for arm, rise in (("biased", RISE), ("fair", 0.0))
        for seed in range(SEEDS)
    ]


def alarm() -> Figure:
    """When did each planted run leave the truth, and when does the alarm ring?"""
    return onsets([*map(own_line, runs())])


def audits() -> Figure:
    """What does an audit of a tenth of the groups say of them?"""
    declared = {"truth.audit.0": "reference", "truth.share": SHARE, "truth.seed": 0}
    some = [audited(replace(run, config={**run.config, **declared}), SHARE, 0) for run in runs()]
    audit = audit_of(some, Path("planted"))
    assert audit is not None
    return gap_by_stretch(audit)


def panel() -> Figure:
    """What do three judges leave of a bias, whose errors have half of their variance in common?"""
    rng = np.random.default_rng(0)
    return bias_shares(worth([planted_panel(rng, 0.5, seed=seed) for seed in range(SEEDS)]))


@style()
def looks() -> Figure:
    """How far must a difference be from 0 to be called clear, with one look and with three?"""
    figure, axes = single(ALONE, 3.2)
    for label, alpha, marker in (
        ("one look", 0.05, "o"),
        (f"looks at {', '.join(map(str, LOOKS))}", level(LOOKS), "s"),
    ):
        bounds = [t.ppf(1 - alpha / 2, seeds - 1) / seeds**0.5 for seeds in LOOKS]
        axes.plot(LOOKS, bounds, marker=marker, label=label)
    axes.set(xlabel="seeds", ylabel="clear beyond (SD by seed)", xticks=LOOKS)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "onset-alarm": alarm,
    "audits": audits,
    "panels": panel,
    "looks": looks,
}


def main(folder: str) -> None:
    """Draw all of them."""
    for name, draw in FIGURES.items():
        target = Path(folder) / f"{name}.svg"
        with mpl.rc_context(STYLE):
            draw().savefig(target, metadata={"Date": None, "Creator": None})
        text = target.read_text(encoding="utf-8")
        target.write_text(re.sub(r"[ \t]+\n", "\n", text), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
