"""Two policies on the same prompts: the mean difference, and the smallest one that would be seen.

After Miller (2024, Adding Error Bars to Evals, 2411.00640): differences are taken within prompts,
errors are clustered by prompt, and what the design can see stands beside what it saw.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.statistics.bootstrap import ratio_se
from analysis.statistics.estimate import NAN, Estimate, around
from analysis.statistics.intervals import student
from analysis.statistics.power import smallest_effect


@dataclass(frozen=True)
class PairedPrompts(Estimate):
    """A mean difference with its t interval over prompts: of these very policies, no others."""

    se: float = NAN
    unpaired_se: float = NAN
    """What the standard error would be if each policy had answered prompts of its own."""
    visible: float = NAN
    """The smallest true difference that so many prompts show (two-sided t, p < .05) with
    probability .8, at the spread that was seen; in the unit of the scores. NaN without spread."""


def paired_prompts(
    treated_N: np.ndarray, base_N: np.ndarray, prompt_N: np.ndarray
) -> PairedPrompts:
    """Mean of treated - base over N pairs of answers, several of which may be to one prompt.

    The standard error is CR1 by prompt. A pair of which one side is NaN is left out and counted in
    ``note``; ``n`` counts prompts.

    Args:
        treated_N: a score of one policy's answer, or a mean over several.
        base_N: the other policy's, to the same prompt.
        prompt_N: labels of the prompts.
    """
    treated, base = np.asarray(treated_N, dtype=float), np.asarray(base_N, dtype=float)
    has_both = np.isfinite(treated) & np.isfinite(base)
    missing = int(len(has_both) - has_both.sum())
    notes = [f"{missing} of {len(has_both)} pairs lack a score"] if missing else []
    if not has_both.any():
        return PairedPrompts(NAN, unit="prompt", note="; ".join(notes) or "no prompt in common")
    codes = pd.factorize(np.asarray(prompt_N, dtype=object)[has_both])[0]
    prompts = int(codes.max()) + 1
    counts = np.bincount(codes)
    columns = {"difference": treated - base, "treated": treated, "base": base}
    errors = {
        name: ratio_se(np.stack([np.bincount(codes, values[has_both]), counts], axis=1))
        for name, values in columns.items()
    }
    mean, se = float((treated - base)[has_both].mean()), errors["difference"]
    if prompts == 1:
        notes.append("one prompt, no interval")
    half = float(student(prompts - 1)) * se if prompts > 1 else NAN
    if se == 0:
        notes.append("no spread between prompts")
    whole = around(mean, half, prompts, "prompt", "; ".join(notes))
    return PairedPrompts(
        *(whole.value, whole.low, whole.high, prompts, "prompt", whole.note),
        se=se,
        unpaired_se=float(np.hypot(errors["treated"], errors["base"])),
        visible=smallest_effect(prompts, paired=True) * se * prompts**0.5 if se else NAN,
    )
