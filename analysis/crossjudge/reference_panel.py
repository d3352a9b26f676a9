"""What other judges say of what a judge taught: credits that they reject, and what a rubric omits.

The panel are the judges on record beside the one that trained a run: shadows and replays. Judges of
the training judge's own family are left out (a simulated judge has no family).

Both are after Mahmoud et al. (2605.12474). Exploitation rate, sec. 3.1: what the judge credits anew
is what training teaches; where every reference rejects it, the policy was paid for the judge's
error. Preference, sec. 4.1: where judges that see the rubric prefer the trained policy's answers
and judges that do not see it prefer the first policy's, the rubric leaves something out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from analysis.crossjudge.credits import (
    SHOWN,
    WITHIN_GROUPS,
    Credits,
    gradings,
    read_credits,
    shows_rubric,
)
from analysis.records.frames import runs_frame
from analysis.records.runs import Run
from analysis.statistics.estimate import ENDS, NAN, NO_ESTIMATE, Estimate, ratio, ratio_se
from analysis.statistics.intervals import mean_interval, mean_of_means
from analysis.statistics.proportions import logit_share


@dataclass(frozen=True)
class Exploitation(Estimate):
    """Weighted share of the newly credited criteria that all references reject, over prompts."""

    se: float = NAN
    new: float = NAN
    """Share of the criteria's weight that is newly credited."""
    unknown: float = NAN
    """Share of the newly credited weight of which the panel's word is missing."""
    least: float = NAN
    """The rate if none of that were rejected."""
    most: float = NAN
    """The rate if all of it were."""


def exploitation_rate(
    before_P_K: np.ndarray,
    after_N_K: np.ndarray,
    panel_N_J_K: np.ndarray,
    weights_P_K: np.ndarray,
    prompt_N: np.ndarray,
) -> Exploitation:
    """The rate of N later answers to P prompts, each with up to K criteria, under J references.

    A criterion is newly credited where the training judge credits it in the later answer and not in
    the first policy's answer to the same prompt; where that policy gave several answers, by the
    share of them in which it was not. One reference that credits it is enough for it not to be
    rejected; where none does and one is missing, it is not known, and left out. As that leaves out
    rejections and no credits, ``least`` and ``most`` say how far the rate could be from the one of
    a whole panel. The interval is clustered by prompt.

    Args:
        before_P_K: share of the first policy's answers in which the training judge credits the
            criterion; NaN is unknown, here and below.
        after_N_K: 1 where it credits the criterion in the later answer, else 0.
        panel_N_J_K: the same of each reference, of the later answers.
        weights_P_K: what each criterion is worth, 0 or more; 0 where a prompt has fewer than K.
        prompt_N: row of each answer's prompt in ``before_P_K``.
    """
    after, panel = np.asarray(after_N_K, dtype=float), np.asarray(panel_N_J_K, dtype=float)
    new = after * (1 - np.asarray(before_P_K, dtype=float)[prompt_N])
    weights = np.where(np.isfinite(new), np.asarray(weights_P_K, dtype=float)[prompt_N], 0.0)
    if not panel.shape[1]:
        return Exploitation(NAN, unit="prompt", note="no reference labelled single criteria")
    credited, silent = (panel == 1).any(axis=1), ~np.isfinite(panel).all(axis=1)
    is_decided = credited | ~silent
    weight_new = weights * np.where(np.isfinite(new), new, 0.0)
    sums_N_2 = np.stack(
        [(weight_new * (is_decided & ~credited)).sum(1), (weight_new * is_decided).sum(1)], 1
    )
    sums_P_2 = np.stack([np.bincount(prompt_N, column) for column in sums_N_2.T], axis=1)
    sums_P_2 = sums_P_2[sums_P_2[:, 1] > 0]
    total_new, total = float(weight_new.sum()), float(weights.sum())
    if not len(sums_P_2):
        why = "nothing newly credited was judged" if total_new else "nothing is newly credited"
        return Exploitation(NAN, unit="prompt", note=why, new=total_new / total if total else NAN)
    rejected, judged = (sums_P_2.sum(axis=0) / total_new).tolist()
    unknown = max(1 - judged, 0.0)
    prompts, se = len(sums_P_2), ratio_se(sums_P_2)
    share = logit_share(
        float(ratio(sums_P_2.sum(axis=0))), se**2, max(prompts - 1, 1), prompts, "prompt"
    )
    return Exploitation(
        *(share.value, share.low, share.high, prompts, "prompt", share.note),
        se=se,
        new=total_new / total,
        unknown=unknown,
        least=rejected,
        most=rejected + unknown,
    )


def wins(
    before_N: np.ndarray,
    before_prompt_N: np.ndarray,
    after_M: np.ndarray,
    after_prompt_M: np.ndarray,
) -> dict[object, float]:
    """Prompt -> chance that a later answer is scored above an earlier one to it, ties half.

    Prompts that one side did not answer, or answered without a score, are left out.

    Args:
        before_N: scores of N answers of the first policy by one judge; NaN is missing.
        before_prompt_N: labels of their prompts.
        after_M: scores of M later answers by the same judge.
        after_prompt_M: labels of their prompts.
    """
    sides = []
    for scores, prompts in ((before_N, before_prompt_N), (after_M, after_prompt_M)):
        has_score = np.isfinite(scores)
        by_prompt: dict[object, list[float]] = {}
        for prompt, score in zip(np.asarray(prompts)[has_score], scores[has_score], strict=True):
            by_prompt.setdefault(prompt, []).append(float(score))
        sides.append({prompt: np.array(values) for prompt, values in by_prompt.items()})
    first, later = sides
    return {
        prompt: float(np.mean(np.sign(later[prompt][:, None] - scores) / 2 + 0.5))
        for prompt, scores in first.items()
        if prompt in later
    }


def preference(wins_P: np.ndarray) -> Estimate:
    """Mean over P prompts of `wins`, or of a pairwise judge's verdicts as 1, .5 and 0: above .5
    the later answers are preferred. A t interval over prompts on the logit scale."""
    finite = np.asarray(wins_P, dtype=float)
    finite = finite[np.isfinite(finite)]
    prompts = len(finite)
    if not prompts:
        return Estimate(NAN, unit="prompt", note="no prompt has scored answers at both ends")
    variance = float(finite.var(ddof=1)) / prompts if prompts > 1 else NAN
    return logit_share(float(finite.mean()), variance, max(prompts - 1, 1), prompts, "prompt")


def left_out(rubric_P: np.ndarray, free_P: np.ndarray) -> Estimate:
    """How much more often judges prefer the later answers with the rubric than without it: mean
    difference of `wins` over prompts, with a t interval. Above 0 the rubric leaves out what the
    judges without it see."""
    return mean_interval((np.asarray(rubric_P) - np.asarray(free_P)).tolist(), "prompt")


WINDOWS = 10


@dataclass(frozen=True)
class Exploited:
    """The exploitation rate of one arm: its mean over runs in the last tenth of the steps."""

    arm: str
    references: tuple[str, ...]
    rate: Estimate
    new: Estimate
    """Share of the criteria's weight that is newly credited."""
    unknown: Estimate
    """Share of the newly credited weight of which the panel's word is missing."""
    bounds: tuple[float, float]
    """Mean rate over runs if none of that, or all of it, were rejected."""
    curve: list[Estimate]
    """The rate in each tenth of the steps after the first."""
    by_run: list[Exploitation]
    """Of each run, over prompts."""


@dataclass(frozen=True)
class Preferred:
    """How often a judge prefers an arm's last answers to its first ones, over runs."""

    arm: str
    judge: str
    shown: bool
    """Whether the judge was shown the rubric."""
    trained: bool
    """Whether it is the judge that trained the arm."""
    preference: Estimate
    left_out: Estimate
    """For a judge without rubric: the training judge's preference minus its own, by prompt."""


def exploited(runs: Sequence[Run], study_dir: Path) -> tuple[list[Exploited], list[str]]:
    """A row for each arm whose judge told of single criteria, and what could not be read."""
    by_arm: dict[str, list[tuple[list[str], list[Exploitation]]]] = {}
    problems: list[str] = []
    rubric_runs = [run for run in runs if run.config.get("judge.grading.name") in SHOWN]
    if not rubric_runs:
        return [], []
    table = runs_frame(study_dir)
    for run in rubric_runs:
        credits = read_credits(study_dir, table[table["cell"] == run.cell])
        if credits is None or len(np.unique(credits.step_N)) < 2:
            continue
        problems += credits.problems
        panel = _panel(run, list(credits.by_judge))
        by_arm.setdefault(run.arm, []).append((panel, _over_steps(credits, panel)))
    rows = []
    for arm, run_rates in sorted(by_arm.items()):
        # a run that ended early has fewer windows, and its curve ends there
        windows = zip_longest(*(rates for _, rates in run_rates), fillvalue=Exploitation(NAN))
        curve = [_over_runs(window) for window in windows]
        last = [rates[-1] for _, rates in run_rates]
        names = sorted({name for panel, _ in run_rates for name in panel})
        new, unknown, least, most = (
            mean_interval([getattr(each, name) for each in last], ends=(0.0, 1.0))
            for name in ("new", "unknown", "least", "most")
        )
        bounds = (least.value, most.value)
        row = Exploited(arm, tuple(names), _over_runs(last), new, unknown, bounds, curve, last)
        rows.append(row)
    return rows, problems


def _panel(run: Run, judges: Sequence[str]) -> list[str]:
    """The judges that are not the training judge, and not known to be of its family."""
    config = run.config
    family = config.get("judge.family")
    families = {
        config[f"shadow_judges.{place}.name"]: config.get(f"shadow_judges.{place}.family")
        for place in range(len(judges))
        if f"shadow_judges.{place}.name" in config
    }
    kin = {name for name, of in families.items() if of == family and of not in ("simulated", "")}
    return [name for name in judges if name != run.acting and name not in kin]


def _over_steps(credits: Credits, panel: Sequence[str]) -> list[Exploitation]:
    """The rate in each tenth of the steps after the first, against answers in the first."""
    steps = np.unique(credits.step_N)
    windows = min(WINDOWS, len(steps))
    tenth_N = np.searchsorted(steps, credits.step_N) * windows // len(steps)
    acting = credits.by_judge[credits.acting]
    first = (tenth_N == 0)[:, None] & np.isfinite(acting)
    sums = np.zeros((2, *credits.weights_P_K.shape))
    np.add.at(sums[0], credits.prompt_N, np.where(first, acting, 0.0))
    np.add.at(sums[1], credits.prompt_N, first)
    before = np.divide(sums[0], sums[1], out=np.full_like(sums[0], np.nan), where=sums[1] > 0)
    labels = [credits.by_judge[name] for name in panel]
    panel_N_J_K = (
        np.stack(labels, axis=1) if labels else np.empty((len(acting), 0, acting.shape[1]))
    )
    rates = []
    for window in range(1, windows):
        here = tenth_N == window
        rates.append(
            exploitation_rate(
                *(before, acting[here], panel_N_J_K[here]),
                *(credits.weights_P_K, credits.prompt_N[here]),
            )
        )
    return rates


def _over_runs(rates: Sequence[Exploitation]) -> Estimate:
    """Mean share over runs, no narrower than sampling of prompts within them allows."""
    within = [each.se**2 for each in rates]
    return mean_interval([each.value for each in rates], within=within, ends=(0.0, 1.0))


def preferred(runs: Sequence[Run], study_dir: Path) -> list[Preferred]:
    """A row for each arm and judge that scored its answers one by one, the training judge first.

    Runs that no judge scored without the rubric are left out.

    Args:
        runs: with the scores of replays among their shadows (`with_replays`).
    """
    preferences_of: dict[tuple[str, str], list[tuple[bool, bool, Estimate, Estimate]]] = {}
    for run in runs:
        if run.prompt_P is None:
            continue
        how = gradings(study_dir, run.cell)
        scores = {run.acting: run.judge, **run.shadows}
        shown = {name: _shown(*how[name]) for name in scores if name in how}
        if False not in shown.values():
            continue
        judges = [name for name, is_shown in shown.items() if is_shown is not None]
        by_judge = {name: _wins(run, scores[name]) for name in judges}
        own = by_judge.get(run.acting) if shown.get(run.acting) else None
        for name, won in by_judge.items():
            apart = NO_ESTIMATE
            if own is not None and not shown[name]:
                shared = [prompt for prompt in won if prompt in own]
                apart = left_out(
                    np.array([own[prompt] for prompt in shared]),
                    np.array([won[prompt] for prompt in shared]),
                )
            row = (bool(shown[name]), name == run.acting, preference(np.array([*won.values()])))
            preferences_of.setdefault((run.arm, name), []).append((*row, apart))
    rows = []
    if all(np.isnan(row[2].value) for of_runs in preferences_of.values() for row in of_runs):
        return []  # no prompt was answered at both ends
    for (arm, judge), of_runs in preferences_of.items():
        is_shown, trained, *_ = of_runs[0]
        preferences, apart = (
            mean_of_means([each[place] for each in of_runs], ends=ends)
            for place, ends in ((2, (0.0, 1.0)), (3, ENDS))
        )
        rows.append(Preferred(arm, judge, is_shown, trained, preferences, apart))
    return sorted(rows, key=lambda row: (row.arm, not row.trained, not row.shown))


def _shown(grading: str, prompt_sha: str) -> bool | None:
    """`shows_rubric`; None for a grading whose scores cannot be compared between groups."""
    return None if grading in WITHIN_GROUPS else shows_rubric(grading, prompt_sha)


def _wins(run: Run, scores_P_G: np.ndarray) -> dict[object, float]:
    """`wins` of the last tenth of the steps over the first, by prompt."""
    steps = np.unique(run.step_P)
    tail = max(1, len(steps) // WINDOWS)
    assert run.prompt_P is not None
    sides = []
    for ends in (steps[:tail], steps[len(steps) - tail :]):
        here = np.isin(run.step_P, ends)
        prompts = np.repeat(run.prompt_P[here], scores_P_G.shape[1])
        sides += [scores_P_G[here].ravel(), prompts]
    return wins(*sides)
