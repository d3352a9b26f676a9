"""What cannot be concluded from a study, and why: one sentence for each limit of its evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import numpy as np

from analysis.display.markup import listed, number, render_text
from analysis.records.frames import NAMELESS
from analysis.report.evidence import Evidence

FEW_SEEDS = 5
"""Up to this many seeds no sign-flip test over seeds can reach p < .05."""
SMALL_JUDGE = 1e9
"""Parameters below which a real judge shows the path, and nothing about judging quality."""
_limit = partial(render_text, "limits")


def limits(evidence: Evidence) -> list[str]:
    """What cannot be concluded from this study, and why."""
    if evidence.cells.empty:
        return [_limit("no_run")]
    lines = [
        *_of_runs(evidence),
        *_of_seeds(evidence),
        *_of_scores(evidence),
        *_of_judges(evidence),
    ]
    if unread := evidence.records.problems:
        lines.append(_limit("unread", count=len(unread)))
    return [*lines, *_of_the_path(evidence)]


def _of_runs(evidence: Evidence) -> Iterator[str]:
    """Runs that are not finished, and steps that were lost."""
    cells = evidence.cells
    unfinished = cells[~cells["done"]]
    if len(unfinished) == len(cells):
        yield _limit("no_run_finished")
    elif len(unfinished):
        counts = unfinished["state"].value_counts().items()
        states = ", ".join(f"{count} {state}" for state, count in counts)
        yield _limit("some_unfinished", unfinished=len(unfinished), runs=len(cells), states=states)
    for run in evidence.runs:
        recorded, steps = len(np.unique(run.step_P)), len(run.steps)
        if recorded < steps:
            yield _limit("steps_lost", cell=run.cell, recorded=recorded, steps=steps)


def _of_seeds(evidence: Evidence) -> Iterator[str]:
    """Too few runs of an arm, or one arm alone."""
    used_rows = evidence.cells[evidence.cells["cell"].isin(evidence.used_cells)]
    seeds = used_rows.groupby("arm")["seed"].nunique()
    if len(seeds) and seeds.min() == 1:
        yield _limit("one_run", arms=listed(sorted(seeds[seeds == 1].index)))
    if len(seeds) and 1 < seeds.max() <= FEW_SEEDS:
        n = int(seeds.max())
        yield _limit("few_seeds", n=n, p=2 / 2**n)
    if len(evidence.arms) == 1:
        yield _limit("one_arm", arm=evidence.arms[0])


def _of_scores(evidence: Evidence) -> Iterator[str]:
    """Scores, truths and answers that are missing, and scores that never differ."""
    runs = evidence.records.runs
    if not runs:
        yield _limit("no_rollout")
        return
    if not any(np.isfinite(run.truth).any() for run in runs):
        yield _limit("no_truth")
    for arm in sorted({run.arm for run in runs}):
        scores = np.concatenate([run.judge.ravel() for run in evidence.recorded(arm)])
        scores = scores[~np.isnan(scores)]
        if not scores.size:
            yield _limit("unscored", arm=arm)
        elif scores.min() == scores.max():
            yield _limit("constant", arm=arm, score=number(float(scores[0])))
    answered = sum(int(np.isfinite(run.features[..., 0]).sum()) for run in runs)
    unanswered = 1 - answered / sum(run.rollouts for run in runs)
    if unanswered > 0:
        yield _limit("no_answer", percent=100 * unanswered)


def _of_judges(evidence: Evidence) -> Iterator[str]:
    """Judges that say nothing about judging: simulated ones and very small ones."""
    cells = evidence.cells
    judges = cells[cells["judge"].ne(NAMELESS)].drop_duplicates("judge")
    simulated = judges.loc[judges["simulated"], "judge"]
    if len(simulated):
        noun = "is a simulated judge" if len(simulated) == 1 else "are simulated judges"
        yield _limit("simulated", judges=f"{listed(sorted(simulated))} {noun}")
    for judge in judges[~judges["simulated"]].to_dict("records"):
        size = parameters(judge["judge_size"])
        if size is not None and size < SMALL_JUDGE:
            model = " ".join(filter(None, [judge["judge_family"], judge["judge_size"]]))
            yield _limit("small_judge", judge=judge["judge"], model=model)


def _of_the_path(evidence: Evidence) -> Iterator[str]:
    """What the way from verdict to behaviour cannot show."""
    if not evidence.runs:
        return
    if evidence.no_prediction:
        yield _limit("no_prediction", why=evidence.no_prediction)
    fits = evidence.overoptimisation
    if fits and not any(row["best"] for row in fits):
        yield _limit("no_fit", why="; ".join(sorted({row["note"] for row in fits})))
    if not any(run.shadows for run in evidence.runs):
        yield _limit("one_judge")
    if evidence.no_substitution:
        yield evidence.no_substitution


def parameters(size: str) -> float | None:
    """``135M`` -> 1.35e8, ``7B`` -> 7e9; None where the text is not a size."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kKmMbBtT])\s*", size)
    if match is None:
        return None
    return float(match[1]) * {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[match[2].lower()]
