"""The tables that papers of the field report of a study's arms; docs/field-tables.md defines them.

Scores at the end over runs and metrics (rliable), differences paired by prompt (Miller), onsets
over runs some of which end before one (CHERRL's discoverability), growth after them, and what a
panel of other judges says of what was taught (2605.12474).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.crossjudge.reference_panel import (
    Exploited,
    Preferred,
    exploited,
    preferred,
)
from analysis.drift.pairs import paired_shifts
from analysis.field.shortcut import OnsetTime, Shortcut, of_run, onset_time
from analysis.frozen.effects import Effects
from analysis.onset.estimate import Line
from analysis.records.runs import Run, ends, step_means, tenths
from analysis.scaffold.self_gap import SelfGaps, self_gaps
from analysis.statistics.aggregates import (
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)
from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate
from analysis.statistics.intervals import (
    Paired,
    PairedPrompts,
    mean_of_means,
    paired_prompts,
    ratio_of_variances,
)
from analysis.statistics.power import smallest_difference

THRESHOLDS = np.linspace(0, 1, 41)
"""Scores at which a performance profile is told."""


@dataclass(frozen=True)
class Aggregate:
    """What the final scores of an arm's runs come to, over all metrics that every arm has."""

    arm: str
    runs: int
    iqm: Estimate
    by_metric: Estimate
    """The same with rliable's own interval, which takes a run's metrics for independent."""
    improvement: Estimate
    """P(a run of the arm scores above one of the base arm)."""
    profile: list[Estimate]
    """Share of scores above each of `THRESHOLDS`."""


@dataclass(frozen=True)
class Compared:
    """The truth of an arm beside that of the base arm."""

    arm: str
    by_prompt: PairedPrompts
    """Of these very runs: its difference on prompts that both answered at the end."""
    by_run: Paired
    """The effect over runs, as `Effects` has it: how much further the truth moved."""
    visible: float
    """The smallest true effect that so many seeds tell from 0 with probability .8."""


@dataclass(frozen=True)
class ShortcutOnset:
    """When an arm's runs found the shortcut, and how fast they took it."""

    arm: str
    features: tuple[str, ...]
    onset: OnsetTime
    grid: OnsetTime
    """The same by CHERRL's thresholds among the best-scored tenth of each run."""
    entanglement: Estimate
    """Odds ratio of shortcut and right answer in the first tenth, t over runs on the log scale."""
    judge_growth: Estimate
    """Judge score gained per step after the onset, over the runs that have one."""
    shortcut_growth: Estimate


@dataclass(frozen=True)
class Field:
    """Every table, and the arm that others are compared with; None where there is one arm."""

    base: str | None
    where: str
    """On what effects over runs rest: `Effects.where`."""
    metrics: tuple[str, ...] = ()
    aggregates: list[Aggregate] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    found: list[ShortcutOnset] = field(default_factory=list)
    exploited: list[Exploited] = field(default_factory=list)
    preferred: list[Preferred] = field(default_factory=list)
    gaps: list[SelfGaps] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What could not be read."""


def of_runs(
    runs: Sequence[Run],
    lines: Sequence[Line],
    effects: Effects,
    features: Sequence[str] | None = None,
    study_dir: Path | None = None,
) -> Field:
    """The tables of these runs.

    Effects over runs are those of the study. Final scores, onsets and growth are no effects of an
    arm on a score or a behaviour, and have the intervals that docs/field-tables.md says.

    Args:
        runs: with the scores of replays among their shadows (`with_replays`).
        lines: `analysis.onset.estimate.line` of each run.
        effects: of the study.
        features: the shortcut; what each judge is dosed with where it is None.
        study_dir: whose records say what judges told of single criteria, and what the policy was
            shown; None leaves those tables out.
    """
    arms = _arms(runs)
    base = effects.base if len(arms) > 1 and effects.base in arms else None
    metrics, aggregates = _aggregates(runs, base)
    shortcuts = [
        of_run(run, onset_line, _paid(run) if features is None else features)
        for run, onset_line in zip(runs, lines, strict=True)
    ]
    compared = _compared(runs, base, effects)
    results = Field(base, effects.where, metrics, aggregates, compared, _shortcut_onsets(shortcuts))
    if study_dir is None:
        return results
    credits, unread = exploited(runs, study_dir)
    return replace(
        results,
        exploited=credits,
        preferred=preferred(runs, study_dir),
        gaps=self_gaps(runs, study_dir),
        problems=unread,
    )


def _paid(run: Run) -> list[str]:
    """The behaviours that a simulated judge pays for: those it takes points for are no shortcut."""
    return sorted(name for name, dose in (run.doses or {}).items() if dose > 0)


def _arms(runs: Sequence[Run]) -> list[str]:
    return sorted({run.arm for run in runs})


def _aggregates(runs: Sequence[Run], base: str | None) -> tuple[tuple[str, ...], list[Aggregate]]:
    """The metrics that every arm has, and a row for each arm."""
    rows = pd.DataFrame([final_scores(run) for run in runs], dtype=float)
    axes = pd.MultiIndex.from_arrays(
        [[run.arm for run in runs], [run.seed for run in runs]], names=["arm", "seed"]
    )
    rows.index = axes
    rows = rows.sort_index(kind="stable")
    shared = rows.notna().groupby(level="arm").any().all() if len(rows) else rows.any()
    rows = rows[[name for name in rows if shared[name]]]
    if rows.empty:
        return (), []
    table = []
    for arm in _arms(runs):
        scores, improvement = rows.loc[[arm]], NO_ESTIMATE
        if base is not None and arm != base:
            other = rows.loc[[base]]
            seeds = [list(part.index.get_level_values("seed")) for part in (scores, other)]
            paired = seeds[0] == seeds[1] and len(set(seeds[0])) == len(seeds[0])
            improvement = probability_of_improvement(
                scores.to_numpy(), other.to_numpy(), paired=paired
            )
        values = scores.to_numpy()
        iqm, loose = interquartile_mean(values), stratified_bootstrap(values)
        profile = performance_profile(values, THRESHOLDS)
        table.append(Aggregate(arm, len(values), iqm, loose, improvement, profile))
    return tuple(map(str, rows.columns)), table


def _compared(runs: Sequence[Run], base: str | None, effects: Effects) -> list[Compared]:
    """Every arm beside the base arm: on the prompts of the last tenth of the steps, and its
    effect."""
    if base is None:
        return []
    truths = {(run.arm, run.seed): _last_truths(run) for run in runs}
    table = []
    for arm in _arms(runs):
        seeds = sorted({run.seed for run in runs if run.arm == arm and (base, run.seed) in truths})
        if arm == base or not seeds:
            continue
        sides = [
            pd.concat({seed: truths[each, seed] for seed in seeds}, names=["seed", "prompt"])
            for each in (arm, base)
        ]
        pairs = pd.concat(sides, axis=1, join="inner", keys=["treated", "base"])
        prompts = pairs.index.get_level_values("prompt").to_numpy()
        by_prompt = paired_prompts(pairs["treated"].to_numpy(), pairs["base"].to_numpy(), prompts)
        by_run = effects.difference("truth", arm, base)
        table.append(Compared(arm, by_prompt, by_run, _visible(effects, arm, base)))
    return table


def _visible(effects: Effects, arm: str, base: str) -> float:
    """See `Compared`; NaN where the variance between runs is not known."""
    pairs = paired_shifts(effects.runs_of("truth", arm), effects.runs_of("truth", base)).dropna()
    differences, ratios = (
        (pairs["treated"] - pairs["base"]).to_numpy(),
        effects.variances.differences,
    )
    observed = ratio_of_variances(differences, pairs["within"].to_numpy())
    if np.isnan(observed):
        return NAN
    ratio = float(ratios.posterior(observed, len(pairs) - 1) @ ratios.ratio_R)
    return smallest_difference(len(pairs), ratios) * (ratio * float(pairs["within"].mean())) ** 0.5


def _last_truths(run: Run) -> pd.Series:
    """Prompt -> mean truth of its answers in the last tenth of the recorded steps."""
    last = np.isin(run.step_P, tenths(np.unique(run.step_P))[1])
    prompts = np.arange(len(last)) if run.prompt_P is None else run.prompt_P
    answers = pd.DataFrame(run.truth[last], index=pd.Index(prompts[last], name="prompt"))
    return answers.stack().groupby(level="prompt").mean()


def _shortcut_onsets(shortcuts: Sequence[Shortcut]) -> list[ShortcutOnset]:
    horizon = max((float(each.last) for each in shortcuts), default=NAN)
    table = []
    for arm in sorted({each.arm for each in shortcuts}):
        of_arm = [each for each in shortcuts if each.arm == arm]
        log = mean_of_means([_logged(each.entanglement) for each in of_arm])
        ends = np.exp([log.value, log.low, log.high]).tolist()
        odds = replace(log, value=ends[0], low=ends[1], high=ends[2])
        table.append(
            ShortcutOnset(
                arm,
                of_arm[0].features,
                onset_time(
                    [each.onset for each in of_arm], [each.followed for each in of_arm], horizon
                ),
                onset_time(
                    [each.grid_onset for each in of_arm],
                    [each.grid_followed for each in of_arm],
                    horizon,
                ),
                odds if of_arm[0].features else of_arm[0].entanglement,
                mean_of_means([each.judge_growth for each in of_arm], 2),
                mean_of_means([each.shortcut_growth for each in of_arm], 2),
            )
        )
    return table


def _logged(odds: Estimate) -> Estimate:
    value, low, high = np.log([odds.value, odds.low, odds.high]).tolist()
    return replace(odds, value=value, low=low, high=high)


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
