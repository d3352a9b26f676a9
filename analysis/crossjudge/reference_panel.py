"""What other judges say of what a judge taught: credits that they reject, and what a rubric omits.

The panel are the judges on record beside the one that trained a run: shadows and replays. Judges of
the training judge's own family are left out (a simulated judge has no family).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from analysis.crossjudge.checkpoint_preference import left_out, preference, wins
from analysis.crossjudge.exploitation import Exploitation, exploitation_rate
from analysis.records.credits import Credits, read_credits
from analysis.records.frames import runs_frame
from analysis.records.gradings import SHOWN, WITHIN_GROUPS, gradings, shows_rubric
from analysis.records.runs import Run
from analysis.statistics.estimate import ENDS, NAN, NO_ESTIMATE, Estimate
from analysis.statistics.intervals import mean_interval, mean_of_means

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
