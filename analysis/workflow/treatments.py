"""What one setting did to what a policy of programs learned: arms that differ in it alone.

Two arms are compared where their recorded settings differ in exactly one key, or in one preset (a
judge by another name, an executor by another name), and one of the two has there what the base arm
has. The base arm is the arm of programs that differs from most others in one key alone; of several
the study's base arm or one with its judge, then the one with most settings at their default. What
follows from a key is not counted beside it: a preset brings settings with it, those apart in which
arms of one preset differ, and without a world of programs there are no settings of one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.drift.substitution import base_of
from analysis.records.runs import Run, ends, step_means
from analysis.statistics.estimate import NAN
from analysis.statistics.intervals import Paired, paired_difference, student
from analysis.statistics.power import smallest_effect
from analysis.workflow.programs import Programs
from analysis.workflow.run import right
from study.config.identity import left_out

PARTS = ("world", "workflow", "executor", "judge", "allow_same_model")
"""What a treatment may be a setting of."""
PRESETS = ("judge", "executor", "task", "policy", "reward", "scaffold", "trainer")
NOT_SETTINGS = ("seed", "study", "arm", "tags")
HELD_OUT = "held-out truth"
LAST = "truth in the last tenth of the steps"


@dataclass(frozen=True)
class Treatment:
    """The effect of one setting: the truth of ``arm`` minus that of ``base``, paired by seed.

    Attributes:
        name: ``key=value``, as it is typed.
        measure: `HELD_OUT`, accuracy on held-out rows at the last evaluation, mean over domains; or
            `LAST`, the share of generations that were right.
    """

    name: str
    effect: Paired
    measure: str
    arm: str
    base: str

    @property
    def visible(self) -> float:
        """The smallest true effect that so many seeds show with power .8, at the spread of their
        differences; NaN without one. As `PairedPrompts.visible`."""
        half, seeds = self.effect.high - self.effect.value, self.effect.n
        if not half > 0:
            return NAN
        return float(smallest_effect(seeds) * half / student(seeds - 1) * seeds**0.5)


def treatments(runs: Sequence[Run], programs: Sequence[Programs]) -> list[Treatment]:
    """Every comparison of two arms that one setting tells apart.

    Args:
        runs: of the study, those under ``world=direct`` too.
        programs: those of them that are runs of programs.
    """
    settings = {run.arm: _settings(run) for run in runs}
    overridden = _overridden_keys(list(settings.values()))
    apart = {
        (arm, other): _different(mine, theirs, overridden)
        for arm, mine in settings.items()
        for other, theirs in settings.items()
    }
    base = _base(runs, sorted({each.run.arm for each in programs}), settings, apart)
    comparisons = []
    for (arm, other), keys in apart.items():
        key = next(iter(keys), "")
        if len(keys) != 1 or key.split(".")[0] not in PARTS:
            continue
        value = _value(settings[arm], key)
        if _value(settings[other], key) == _value(settings[base], key) != value:
            name = f"{key}={_typed(value)}"
            comparisons.append(_compared(name, arm, other, runs, programs))
    return sorted(comparisons, key=lambda row: (row.base != base, row.name, row.base))


def _base(
    runs: Sequence[Run],
    of_programs: Sequence[str],
    settings: Mapping[str, dict[str, Any]],
    apart: Mapping[tuple[str, str], set[str]],
) -> str:
    """The base arm (see the module)."""
    first = base_of(runs) or of_programs[0]
    judge = {run.arm: run.acting for run in runs}

    def rank(arm: str) -> tuple[int, bool, int, bool, str]:
        neighbours = sum(len(apart[arm, other]) == 1 for other in settings)
        return -neighbours, judge[arm] != judge[first], len(settings[arm]), arm != first, arm

    return min(of_programs, key=rank)


def _overridden_keys(settings: Sequence[Mapping[str, Any]]) -> set[str]:
    """The keys of presets in which arms with the same preset differ."""
    keys = set()
    for preset in PRESETS:
        by_name: dict[Any, list[Mapping[str, Any]]] = {}
        for each in settings:
            by_name.setdefault(_value(each, preset), []).append(each)
        for alike in by_name.values():
            preset_keys = {key for each in alike for key in each if key.startswith(f"{preset}.")}
            keys |= {
                key
                for key in preset_keys
                if any(_value(e, key) != _value(alike[0], key) for e in alike)
            }
    return keys


def _settings(run: Run) -> dict[str, Any]:
    """The recorded settings of a run that make it what it is, but those in `NOT_SETTINGS`."""
    return {
        key: value
        for key, value in run.identity.items()
        if key.split(".")[0] not in NOT_SETTINGS and not (value == {} and "." not in key)
    }


def _value(settings: Mapping[str, Any], key: str) -> Any:
    """What a key has; a preset's is its name, and what is not recorded has its default."""
    if key in PRESETS:
        return settings.get(f"{key}.name", "none")
    return settings[key] if key in settings else left_out(key)


def _typed(value: Any) -> str:
    """A value as it is typed on the command line."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _different(
    mine: Mapping[str, Any], theirs: Mapping[str, Any], overridden: Collection[str]
) -> set[str]:
    """The keys in which two arms differ, as a treatment would name them."""
    keys = {key for key in {*mine, *theirs} if _value(mine, key) != _value(theirs, key)}
    for preset in PRESETS:
        if f"{preset}.name" in keys:
            follow = {key for key in keys if key.startswith(f"{preset}.")}
            keys = keys - (follow - set(overridden)) | {preset}
    if "world" in keys:
        keys = {key for key in keys if key.split(".")[0] not in ("workflow", "executor")}
    if len(keys) > 1:  # a leave to do what another key does
        keys.discard("allow_same_model")
    return keys


def _compared(
    name: str, arm: str, base: str, runs: Sequence[Run], programs: Sequence[Programs]
) -> Treatment:
    sides = [[run for run in runs if run.arm == each] for each in (arm, base)]
    held_out = [[_held_out(run) for run in side] for side in sides]
    measure = HELD_OUT
    if any(np.isnan(value) for side in held_out for value in side):
        of_cell = {each.run.cell: each for each in programs}
        held_out = [[_last(run, of_cell.get(run.cell)) for run in side] for side in sides]
        measure = LAST
    series = [
        pd.Series(values, index=[run.seed for run in side], dtype=float)
        for values, side in zip(held_out, sides, strict=True)
    ]
    treated, untreated = series
    return Treatment(name, paired_difference(treated, untreated), measure, arm, base)


def _held_out(run: Run) -> float:
    """Accuracy at the last evaluation, mean over the domains; NaN where there was none."""
    last = [by_step[max(by_step)] for by_step in run.held_out.values() if max(by_step) > 0]
    return float(np.mean(last)) if last else float("nan")


def _last(run: Run, programs: Programs | None) -> float:
    if programs is None:
        return ends(step_means(run, run.truth))[1]
    return ends(programs.by_step(right(programs)))[1]
