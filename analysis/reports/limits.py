"""What cannot be concluded from a study, and why: one sentence for each limit of its evidence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.records.frames import NAMELESS
from analysis.reports.markup import number

if TYPE_CHECKING:
    import pandas as pd

    from analysis.reports.evidence import Evidence

FEW_SEEDS = 5
"""Up to this many seeds no sign-flip test over seeds can reach p < .05."""
SMALL_JUDGE = 1e9
"""Parameters below which a real judge shows the path, and nothing about judging quality."""


def limits(evidence: Evidence) -> list[str]:
    """What cannot be concluded from this study, and why."""
    if evidence.cells.empty:
        return ["The folder holds no run, so there is nothing to estimate."]
    lines = [
        *_of_runs(evidence),
        *_of_seeds(evidence),
        *_of_scores(evidence),
        *_of_judges(evidence),
    ]
    if evidence.records.problems:
        lines.append(
            f"{len(evidence.records.problems)} files or lines could not be read and are missing "
            "from every number; they are listed at the end."
        )
    return [*lines, *_of_the_path(evidence)]


def _of_runs(evidence: Evidence) -> list[str]:
    """Runs that are not finished, and steps that were lost."""
    cells, lines = evidence.cells, []
    unfinished = cells[~cells["done"]]
    if len(unfinished) == len(cells):
        lines.append(
            "No run is finished: what is shown is how far the runs came, and the shifts below "
            "compare unequal amounts of training. Nothing should be concluded from them."
        )
    elif len(unfinished):
        lines.append(
            f"Not finished: {len(unfinished)} of {len(cells)} runs "
            f"({_counts(unfinished['state'])}); the estimates leave them out, and if runs of one "
            "judge end early more often than others, what is left is a selection."
        )
    for run in evidence.runs:
        recorded = len(np.unique(run.step_P))
        if recorded < len(run.steps):
            lines.append(
                f"{run.cell} has {recorded} of its {len(run.steps)} steps on record: what was lost "
                "is missing from its curve, and a shift of which nothing is left at one end is "
                "missing too."
            )
    return lines


def _of_seeds(evidence: Evidence) -> list[str]:
    """Too few runs of an arm, or one arm alone."""
    lines = []
    used = evidence.cells[evidence.cells["cell"].isin(evidence.used_cells)]
    seeds = used.groupby("arm")["seed"].nunique()
    if len(seeds) and seeds.min() == 1:
        lines.append(
            f"One run only for {_join(seeds[seeds == 1].index)}: how much of its drift is chance "
            "between seeds cannot be told, so there is no interval."
        )
    if len(seeds) and 1 < seeds.max() <= FEW_SEEDS:
        n = int(seeds.max())
        lines.append(
            f"With {n} seeds per judge the exact sign-flip test cannot give p below "
            f"{2 / 2**n:.3g}; the t intervals rest on the run means being about normal, which "
            f"{n} runs cannot check."
        )
    if len(evidence.arms) == 1:
        lines.append(
            f"There is one arm ({evidence.arms[0]}), so its drift cannot be told from what "
            "training does under any judge."
        )
    return lines


def _of_scores(evidence: Evidence) -> list[str]:
    """Scores, truths and answers that are missing, and scores that never differ."""
    runs = evidence.records.runs
    if not runs:
        return ["No rollout is on record, so there are no curves, drift or completions to show."]
    lines = []
    if not any(np.isfinite(run.truth).any() for run in runs):
        lines.append(
            "No rollout has a rule truth, so whether a rising judge score is real improvement "
            "cannot be told: the truth and gap columns stay empty."
        )
    for arm in sorted({run.arm for run in runs}):
        scores = np.concatenate([run.judge.ravel() for run in evidence.recorded(arm)])
        scores = scores[~np.isnan(scores)]
        if not scores.size:
            lines.append(f"Every verdict of {arm} is unscored: it has no score, curve or gap.")
        elif scores.min() == scores.max():
            lines.append(
                f"{arm} gave every answer {number(float(scores[0]))}: a constant score gives every "
                "rollout the advantage 0 and teaches nothing."
            )
    answered = sum(int(np.isfinite(run.features[..., 0]).sum()) for run in runs)
    unanswered = 1 - answered / sum(run.rollouts for run in runs)
    if unanswered > 0:
        lines.append(
            f"{100 * unanswered:.1f} % of the rollouts have no answer (thinking that never "
            "ended); their behaviour is missing, not zero."
        )
    return lines


def _of_judges(evidence: Evidence) -> list[str]:
    """Judges that say nothing about judging: simulated ones and very small ones."""
    cells = evidence.cells
    judges = cells[cells["judge"].ne(NAMELESS)].drop_duplicates("judge")
    lines = []
    simulated = judges.loc[judges["simulated"], "judge"]
    if len(simulated):
        noun = "is a simulated judge" if len(simulated) == 1 else "are simulated judges"
        lines.append(
            f"{_join(simulated)} {noun} whose bias is set by config: the study shows how a known "
            "bias reaches a policy, and nothing about any real LLM judge."
        )
    for judge in judges[~judges["simulated"]].to_dict("records"):
        size = parameters(judge["judge_size"])
        if size is not None and size < SMALL_JUDGE:
            model = " ".join(filter(None, [judge["judge_family"], judge["judge_size"]]))
            lines.append(
                f"{judge['judge']} is a very small model ({model}): it shows that the path from a "
                "real judge to a policy works, and says nothing about judging quality."
            )
    return lines


def _of_the_path(evidence: Evidence) -> list[str]:
    """What the way from verdict to behaviour cannot show."""
    if not evidence.runs:
        return []
    lines = []
    if evidence.no_prediction:
        lines.append(f"Shifts cannot be predicted from the advantages: {evidence.no_prediction}")
    fits = evidence.overoptimisation
    if fits and not any(row["best"] for row in fits):
        why = sorted({row["note"] for row in fits})
        lines.append(f"Over-optimisation cannot be fitted: {'; '.join(why)}.")
    if not any(run.shadows for run in evidence.runs):
        lines.append(
            "Only the judge that trained a run scored it, so whether others would like what it "
            "taught cannot be told: type shadow=[NAME,NAME] with the sweep, or score the recorded "
            "rollouts again (python -m judges.replay study=... judge=NAME)."
        )
    return [*lines, *([evidence.no_substitution] if evidence.no_substitution else [])]


def parameters(size: str) -> float | None:
    """``135M`` -> 1.35e8, ``7B`` -> 7e9; None where the text is not a size."""
    read = re.fullmatch(r"\s*([0-9.]+)\s*([kKmMbBtT])\s*", size)
    if read is None:
        return None
    return float(read[1]) * {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[read[2].lower()]


def _counts(values: pd.Series) -> str:
    return ", ".join(f"{count} {name}" for name, count in values.value_counts().items())


def _join(values: Any) -> str:
    names = sorted(str(value) for value in values)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
