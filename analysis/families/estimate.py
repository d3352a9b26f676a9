"""Natural judges by family, size and prompt: what each pays for, and where its runs went.

The bias of a judge is measured within groups on its runs' recorded rollouts, all behaviours at
once, and beside it by a probe of the same judge where one is kept. The run is the unit: what is
said of a judge is a mean over its runs. Shifts are those of the study's `Effects`, each with its
one interval. A bias is a slope and no effect of an arm: how much more runs vary in it than their
groups explain is learnt from all biases of all judges here. A rank correlation has no sampling
variance, and its interval is Student's. Simulated judges are left out, since their biases are
planted and not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from analysis.dose.errors_in_variables import slopes
from analysis.drift.estimate import mean_shift
from analysis.frozen.effects import Effects
from analysis.ledger.transmission import within_regression
from analysis.probes.effects import clustered_mean, pairs
from analysis.probes.profile import read, scores
from analysis.records.runs import Run
from analysis.statistics.estimate import Estimate
from analysis.statistics.intervals import mean_interval, variance_of
from analysis.statistics.run_variance import RunVariance
from judges.ask.identity import judge_id
from study.config.schema import Judge, freeze
from study.errors import UserError
from study.system.files import read_yaml

KEYS = ("family", "size", "prompt")
PROBES = {
    "yverbose": "length",
    "ystructured": "bullets",
    "ysycophant": "flattery",
    "yconfident": "confidence",
    "hedged": "hedges",
    "keyword": "keyword",
    "emoji": "emoji",
}
"""Variant of a probe -> the behaviour that it moves."""
FEWEST_BEHAVIOURS = 4
"""A rank correlation over fewer behaviours says nothing."""


@dataclass(frozen=True)
class Behaviour:
    """One behaviour under one judge. Biases are score units per SD of the behaviour."""

    name: str
    bias: Estimate
    error: float
    """Sampling error of the mean bias, from the groups of its runs."""
    probed: Estimate | None
    """Over prompts; None without a probe of it."""
    shift: Estimate
    """In SDs over all answers of the study."""


@dataclass(frozen=True)
class Natural:
    """One judge: all runs under one family, size and prompt."""

    family: str
    size: str
    prompt: str
    arm: str
    """Of its runs; the first one where they are of several."""
    runs: int
    behaviours: tuple[Behaviour, ...]
    score: Estimate
    """Shift of the judge's score."""
    truth: Estimate
    followed: Estimate
    """Rank correlation, over behaviours, of bias and shift within a run."""


@dataclass(frozen=True)
class Families:
    """The judges of one study."""

    judges: tuple[Natural, ...]
    measured: str
    """What the bias is of: judge - truth, or the judge's score where a run has no truth."""
    slopes: dict[str, Estimate]
    """Behaviour -> SDs of shift per score unit of bias, over judges, its error taken out."""
    simulated: int
    """Runs of simulated judges, which are left out."""
    where: str
    """On what the shifts rest: `Effects.where`."""


def of_runs(
    runs: Sequence[Run],
    spread: Mapping[str, float],
    effects: Effects,
    folder: Path | None = None,
) -> Families | None:
    """The families of a study's runs; None where its judges, simulated ones left out, are of one
    family, size and prompt.

    Args:
        spread: SD of each behaviour that varies; others are left out.
        effects: of the study.
        folder: of the study, beside which probes are kept; None looks for none.
    """
    natural = [run for run in runs if not is_simulated(run)]
    keys = {run.cell: key_of(run) for run in natural}
    arms = {run.cell: run.arm for run in natural}
    if len(set(keys.values())) < 2:
        return None
    has_truth = all(np.isfinite(run.truth).any() for run in natural)
    biases = {run.cell: _biases(run, spread, has_truth) for run in natural}
    probed = probed_biases(folder.parent / "probes") if folder is not None else {}
    ids = judge_ids(folder, keys) if folder is not None and probed else {}
    cells_of = {
        key: [cell for cell, its in keys.items() if its == key]
        for key in dict.fromkeys(keys.values())
    }
    ratios = variance_of(
        _values(biases[cell][name] for cell in cells)
        for cells in cells_of.values()
        for name in biases[cells[0]]
    )
    judges = []
    for key, cells in cells_of.items():
        of_probe = probed.get(ids.get(cells[0], ""), {})
        judges.append(
            _natural(key, arms[cells[0]], cells, biases, ratios, effects, spread, of_probe)
        )
    names = [each.name for each in judges[0].behaviours]
    measured = "judge - truth" if has_truth else "the judge's score"
    of_slopes = {
        name: _slope([judge.behaviours[k] for judge in judges]) for k, name in enumerate(names)
    }
    left_out = len(runs) - len(natural)
    return Families(tuple(judges), measured, of_slopes, left_out, effects.where)


def is_simulated(run: Run) -> bool:
    """Whether the run's judge has planted biases."""
    return any(
        (name == "judge.simulated" and value is not None) or name.startswith("judge.simulated.")
        for name, value in run.config.items()
    )


def key_of(run: Run) -> tuple[str, str, str]:
    """Family, size, and grading with its prompt, of the run's judge."""
    family, size, grading, prompt = (
        str(run.config.get(f"judge.{name}") or "")
        for name in ("family", "size", "grading.name", "grading.options.prompt")
    )
    grading_label = f"{grading} {Path(prompt).stem or 'default'}".strip()
    return family or "unknown", size or "unknown", grading_label


def _biases(
    run: Run, spread: Mapping[str, float], has_truth: bool
) -> dict[str, tuple[float, float]]:
    """Behaviour -> score units per SD of it and the standard error, within groups."""
    names = [name for name in run.names if name in spread]
    columns = [run.names.index(name) for name in names]
    gap = run.judge - run.truth if has_truth else run.judge
    fit = within_regression(gap, run.features[..., columns])
    return {
        name: (float(coef) * spread[name], float(se) * spread[name])
        for name, coef, se in zip(names, fit.coef_K, fit.se_K, strict=True)
    }


def _values(biases: Iterable[tuple[float, float]]) -> tuple[pd.Series, pd.Series]:
    """Biases of runs and their sampling variances."""
    table = np.array(list(biases), dtype=float).reshape(-1, 2)
    return pd.Series(table[:, 0]), pd.Series(table[:, 1] ** 2)


def _natural(
    key: tuple[str, str, str],
    arm: str,
    cells: Sequence[str],
    biases: Mapping[str, Mapping[str, tuple[float, float]]],
    ratios: RunVariance,
    effects: Effects,
    spread: Mapping[str, float],
    probed: Mapping[str, Estimate],
) -> Natural:
    tables = effects.scores, effects.behaviours
    shifts = pd.concat([table[table["cell"].isin(cells)] for table in tables])
    of_metric = {name: of_one.set_index("cell") for name, of_one in shifts.groupby("metric")}
    none = shifts.iloc[:0].set_index("cell")

    def moved(name: str) -> Estimate:
        return mean_shift(of_metric.get(name, none), effects.variances)

    behaviours = []
    for name in biases[cells[0]]:
        values, variances = _values(biases[cell][name] for cell in cells)
        probe = probed.get(name)
        behaviours.append(
            Behaviour(
                name,
                bias=mean_interval(values.tolist(), within=variances.tolist(), ratios=ratios),
                error=float(np.sqrt(variances.mean(skipna=False) / len(variances))),
                probed=None if probe is None else _times(probe, spread[name]),
                shift=_times(moved(name), 1 / spread[name]),
            )
        )
    by_cell = {
        name: (of_one["shift"] / spread[name]).to_dict()
        for name, of_one in of_metric.items()
        if name in spread
    }
    followed = [
        _followed(
            [biases[cell][each.name][0] for each in behaviours],
            [by_cell.get(each.name, {}).get(cell, math.nan) for each in behaviours],
        )
        for cell in cells
    ]
    rank = mean_interval(followed, ends=(-1.0, 1.0))
    return Natural(
        *(*key, arm, len(cells), tuple(behaviours)), moved("judge_score"), moved("truth"), rank
    )


def _followed(bias: Sequence[float], shift: Sequence[float]) -> float:
    """Spearman's rank correlation over the behaviours that have both."""
    table = np.array([bias, shift], dtype=float)
    table = table[:, np.isfinite(table).all(axis=0)]
    if table.shape[1] < FEWEST_BEHAVIOURS or (np.ptp(table, axis=1) == 0).any():
        return math.nan
    return float(stats.spearmanr(*table).statistic)


def _slope(judges: Sequence[Behaviour]) -> Estimate:
    """Shift on bias over judges, corrected by moments; without a value where that is not told."""
    table = np.array([[each.bias.value, each.error, each.shift.value] for each in judges])
    table = table[np.isfinite(table).all(axis=1) & (table[:, 1] > 0)]
    unknown = np.full(len(table), math.nan)
    if len(table) and np.ptp(table[:, 2]) == 0:
        return Estimate(math.nan, unit="judge", note="no run moved otherwise than another")
    try:
        return slopes(*table.T, unknown)["moments"]
    except ValueError as few:
        return Estimate(math.nan, unit="judge", note=str(few))


def _times(estimate: Estimate, factor: float) -> Estimate:
    low, high = sorted([estimate.low * factor, estimate.high * factor])
    return replace(estimate, value=estimate.value * factor, low=low, high=high)


def judge_ids(folder: Path, cells: Iterable[str]) -> dict[str, str]:
    """Cell -> judge_id, by the saved configs; without the cells whose judge cannot be read."""
    ids = {}
    for cell in cells:
        try:
            ids[cell] = judge_id(freeze(Judge, read_yaml(folder / cell / "config.yaml")["judge"]))
        except (UserError, KeyError, TypeError, OSError):
            continue
    return ids


def probed_biases(probes: Path) -> dict[str, dict[str, Estimate]]:
    """What the kept folders of probes say: judge_id -> behaviour -> bias per unit of the behaviour.

    The mean bias of an edit (or, where no rule knows the truth, the judge's change) is divided by
    how far the edit moves the behaviour. A folder that cannot be read says nothing; of several
    probes of one judge the one with the most prompts is taken.
    """
    by_judge: dict[str, dict[str, Estimate]] = {}
    for manifest in sorted(probes.glob("*/manifest.json")):
        try:
            effects = _of_probe(manifest.parent)
        except (UserError, KeyError, TypeError, ValueError):
            continue
        for name, behaviour, effect in effects:
            ids = by_judge.setdefault(name, {})
            if behaviour not in ids or effect.n > ids[behaviour].n:
                ids[behaviour] = effect
    return by_judge


def _of_probe(folder: Path) -> list[tuple[str, str, Estimate]]:
    """(judge_id, behaviour, bias per unit of it) of each edit of a folder of probes that moves one.
    Raises UserError, KeyError, TypeError or ValueError: it cannot be read."""
    evidence = read(folder)
    table = pairs(scores(evidence))
    moved = evidence.probes.set_index("probe_id")
    table = table[table["variant"].isin(PROBES) & ~table["pairwise"].astype(bool)]
    effects = []
    for judge, variant in table[["judge", "variant"]].drop_duplicates().to_numpy():
        part = table[table["judge"].eq(judge) & table["variant"].eq(variant)]
        values = moved[PROBES[variant]].astype(float)
        change = float(np.mean(values[part["probe_id"]].array - values[part["against"]].array))
        column = "bias_change" if part["truth_change"].notna().any() else "judge_change"
        effect = clustered_mean(part[column].to_numpy(dtype=float), part["prompt_id"].to_numpy())
        if change:
            name = evidence.manifest["judges"][judge]["judge_id"]
            effects.append((name, PROBES[variant], _times(effect, 1 / change)))
    return effects
