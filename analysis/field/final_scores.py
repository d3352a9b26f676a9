"""The truth that a run ends with, on every metric that its records know."""

from __future__ import annotations

from analysis.records.behaviour import ends
from analysis.records.runs import Run, step_means


def final_scores(run: Run) -> dict[str, float]:
    """Metric -> score at the end, each in [0, 1].

    ``truth`` is the rule's mean over the last tenth of the steps, ``truth/DOMAIN`` that of each
    domain instead where rows name theirs, and ``held-out/DOMAIN`` the accuracy at the last
    evaluation of held-out rows. NaN where nothing is known.
    """
    parts = {"truth": run}
    if run.domain_P is not None:
        names = sorted({str(name) for name in run.domain_P if name})
        parts = {f"truth/{name}": run.where(run.domain_P == name) for name in names}
    scores = {name: ends(step_means(part, part.truth))[1] for name, part in parts.items()}
    last = {name: by_step[max(by_step)] for name, by_step in run.held_out.items()}
    return scores | {f"held-out/{name}": score for name, score in last.items()}
