"""What training under each judge did: curves, gap, behaviour drift, failures, sample completions.

Tables only; `analysis.drift.figures` draws them and `analysis.report.words` puts them into
sentences. An arm is a judge (and any other declared factor); its runs, one per seed, are the units
of every interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.drift.pairs import Tail, paired_shifts
from analysis.drift.possible import cut, cut_difference
from analysis.records.frames import NAMELESS, rollouts_frame
from analysis.records.runs import Records, Run, ends, shift, step_means, tenths
from analysis.statistics.corrections import holm
from analysis.statistics.estimate import FLAT, Estimate, group_sums, known_mean, ratio_se
from analysis.statistics.intervals import (
    Paired,
    grouped_intervals,
    mean_interval,
    paired_difference,
    seed_differences,
    variance_of,
)
from analysis.statistics.run_variance import RunVariance
from study.features import FEATURES, unit

SCORES = ("judge_score", "truth", "reward", "gap")
"""Metrics of a learning curve, in score units; gap is judge_score - truth of the same rollout."""
BY = "score by "
"""How the metric of another judge's score begins; its name follows."""
JUDGED = ("judge_score", "gap")
"""Metrics that are missing where the acting judge's score is, and have worst cases."""
AUDITED = ("truth", "gap")
"""Metrics of which a reference may have told those of a few groups."""
SHIFTS = (
    *("cell", "arm", "seed", "metric", "first", "last", "shift", "naive_var", "group_var"),
    *("tails", "unscored", "worst_low", "worst_high"),
)
"""Columns of the shifts of runs: `run_shifts` says what they are."""
SAME = 0.9
"""Correlation within groups from which two behaviours are one."""
FEWEST_VARYING = 10
"""Groups in which both vary that it takes to say so: one odd answer makes all of them alike."""
_SHOWN = ("rollout_id", "step", "group", "member", "prompt", "completion", "answer",
          "reward", "truth", "judge_score")  # fmt: skip


def usable_cells(runs: pd.DataFrame) -> list[str]:
    """Finished cells; where there are none, every cell. Cells that name no judge are left out.

    Runs cut short are not averaged with finished ones: they stand at another training step.
    """
    named = runs[runs["judge"].ne(NAMELESS)]
    done = named.loc[named["done"], "cell"]
    return list(done if len(done) else named["cell"])


def base_arm(runs: pd.DataFrame) -> str | None:
    """The arm that others are compared with; None where there is none.

    The fair simulated judge, else a judge whose every dose is 0, else the first arm by name.
    """
    ordered = sorted(runs["arm"].unique())
    fair = [arm for arm in ordered if arm.split(",")[0] == "sim-fair"]
    undosed = set(runs.loc[runs["undosed"], "arm"])
    return ([*fair, *(arm for arm in ordered if arm in undosed), *ordered] or [None])[0]


def arms_in_order(runs: pd.DataFrame, base: str | None) -> list[str]:
    """The arms of a study as every report shows them: the base first, then the others by name."""
    named = runs.loc[runs["judge"].ne(NAMELESS), "arm"]
    return sorted(named.unique(), key=lambda arm: (arm != base, arm))


def score_values(run: Run, by_group: bool = False) -> dict[str, np.ndarray]:
    """`SCORES` of every rollout, each (P, G); ``gap`` is known where judge and truth are, and
    ``by_group`` is that of `Run.levels`."""
    truth = run.levels(by_group)
    values = (run.judge, truth, run.reward, run.judge - truth)
    return dict(zip(SCORES, values, strict=True))


def group_values(run: Run) -> dict[str, np.ndarray]:
    """`score_values` whose means vary over groups as they do over draws of those."""
    return score_values(run, by_group=True)


def feature_values(run: Run) -> dict[str, np.ndarray]:
    """Every behaviour feature of every rollout, each (P, G)."""
    return {name: run.features[..., k] for k, name in enumerate(run.names)}


def run_curves(
    runs: Sequence[Run], values: Callable[[Run], dict[str, np.ndarray]] = score_values
) -> pd.DataFrame:
    """Step means of each run, long: cell, arm, seed, step, metric, value.

    Rollouts without a value are missing, not 0; a step without any is NaN.
    """
    parts = []
    for run in runs:
        axes = {"cell": run.cell, "arm": run.arm, "seed": run.seed, "step": run.steps}
        for metric, scores in values(run).items():
            parts.append(pd.DataFrame({**axes, "metric": metric, "value": step_means(run, scores)}))
    columns = ["cell", "arm", "seed", "step", "metric", "value"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def learning_curves(curves: pd.DataFrame, most: int | None = None) -> pd.DataFrame:
    """Mean over runs with its t interval: arm, step, metric, mean, low, high, n, missing.

    With ``most``, at most so many points: a run then has its mean over each stretch of steps, and
    ``step`` is the middle of the stretch.
    """
    stretches = curves if most is None else _stretches(curves, most)
    return grouped_intervals(stretches, ["arm", "metric", "step"])


def _stretches(curves: pd.DataFrame, most: int) -> pd.DataFrame:
    """The means of each run over stretches of the steps, of which there are at most ``most``."""
    steps = np.sort(curves["step"].unique())
    if len(steps) <= most:
        return curves
    stretch = np.arange(len(steps)) * most // len(steps)
    middle = pd.Series(steps).groupby(stretch).mean()
    placed = curves.assign(step=curves["step"].map(dict(zip(steps, middle[stretch], strict=True))))
    by = [name for name in curves if name != "value"]
    return placed.groupby(by, sort=False, observed=True, dropna=False)["value"].mean().reset_index()


def run_shifts(
    runs: Sequence[Run],
    values: Callable[[Run], dict[str, np.ndarray]] = group_values,
    scale: tuple[float, float] = (0.0, 1.0),
) -> pd.DataFrame:
    """How far each run moved, as `analysis.records.runs.shift` defines it, one row per metric.

    Columns: cell, arm, seed, metric, first, last, shift, naive_var (of the shift, were the rollouts
    of both ends independent), group_var (were the groups; CR1, Cameron and Miller 2015, eq. 11),
    tails (a `Tail` for each end), unscored (share of the places at both ends without a value), and
    for what a judge gives worst_low and worst_high: the shift if every missing score had been the
    end of the ``scale`` that lowers or raises it most.
    """
    rows = []
    for run in runs:
        at = [np.isin(run.step_P, part) for part in tenths(run.steps)]
        prompts = [None if run.prompt_P is None else run.prompt_P[here] for here in at]
        for metric, scores in values(run).items():
            means = step_means(run, scores)
            first, last = ends(means)
            tails = [scores[here] for here in at]
            finite = [tail[np.isfinite(tail)] for tail in tails]
            noise = [k.var(ddof=1) / k.size if k.size > 1 else np.nan for k in finite]
            by_group = [group_sums(tail) for tail in tails]
            told_P = run.told_P if metric in AUDITED else None
            told = [None if told_P is None else told_P[here] for here in at]
            clustered = sum(ratio_se(sums[sums[:, 1] > 0]) ** 2 for sums in by_group)
            unscored = 1 - sum(k.size for k in finite) / max(1, sum(tail.size for tail in tails))
            row: dict[str, Any] = {
                **{"cell": run.cell, "arm": run.arm, "seed": run.seed, "metric": metric},
                **{"first": first, "last": last, "shift": shift(means)},
                **{"naive_var": float(sum(noise)), "group_var": clustered, "unscored": unscored},
                "tails": [
                    Tail(run.step_P[here], of_end, sums, told_of_end)
                    for here, of_end, sums, told_of_end in zip(
                        at, prompts, by_group, told, strict=True
                    )
                ],
            }
            if metric in JUDGED:
                lowest, highest = (
                    ends(step_means(run, filled))
                    for filled in worst_cases(run, metric, scores, scale)
                )
                row |= {"worst_low": lowest[1] - highest[0], "worst_high": highest[1] - lowest[0]}
            rows.append(row)
    return pd.DataFrame(rows, columns=[*SHIFTS])


def worst_cases(
    run: Run, metric: str, values_P_G: np.ndarray, scale: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """The values of one of `JUDGED`, the missing ones the least and the most that they could be,
    (P, G) each. Where the truth of a few groups is a reference's, that of the others could be
    anything, too."""
    least, most = (np.full(run.judge.shape, end) for end in scale)
    if metric == "gap":
        known = np.isfinite(run.truth) | (run.told_P is None)
        least = least - np.where(known, run.truth, 1.0)
        most = most - np.where(known, run.truth, 0.0)
    has_score = np.isfinite(run.judge)
    return np.where(has_score, values_P_G, least), np.where(has_score, values_P_G, most)


def one_behaviour(runs: Sequence[Run], names: Sequence[str]) -> dict[str, str]:
    """Behaviours that cannot be told from an earlier one: name -> the first that it goes with.

    Two are one where their correlation within groups, over all answers of the runs, is `SAME` or
    more and both vary in `FEWEST_VARYING` groups: an exclamation mark that ends every flattering
    phrase is no second finding.
    """
    if not runs or not names:
        return {}
    at = [runs[0].names.index(name) for name in names]
    products, varying = np.zeros((2, len(names), len(names)))
    for run in runs:
        values = run.features[..., at]
        has_value = np.isfinite(values)
        size = has_value.sum(axis=1, keepdims=True)
        mean = np.where(has_value, values, 0.0).sum(axis=1, keepdims=True) / np.maximum(size, 1)
        within = np.where(has_value, values - mean, 0.0)
        varies = (np.abs(within).max(axis=1) > FLAT).astype(float)
        varying += varies.T @ varies
        within = within.reshape(-1, len(names))
        products += within.T @ within
    sd = np.sqrt(np.diag(products))
    scale = np.outer(sd, sd)
    correlation = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
    same: dict[str, str] = {}
    for k, name in enumerate(names):
        for j in range(k):
            alike = correlation[j, k] >= SAME and varying[j, k] >= FEWEST_VARYING
            if alike and names[j] not in same:
                same[name] = names[j]
                break
    return same


def moved(shifts: pd.DataFrame) -> dict[str, float]:
    """Metric -> p that no run moved, from the rows of `run_shifts`; Holm over the metrics.

    The mean square of the runs' shifts over the mean variance that their groups give them is F,
    with as many degrees of freedom as runs and, within ends, groups. Runs are pooled because few
    groups of rare counts may show no variance at all. A metric without a run of two groups at both
    ends is left out.
    """
    p_values = {}
    for metric, part in shifts.groupby("metric"):
        complete_rows = part[part["shift"].notna() & part["group_var"].notna()]
        if complete_rows.empty:
            continue
        moves = complete_rows["shift"].to_numpy()
        square, variance = (moves**2).mean(), complete_rows["group_var"].mean()
        free = sum(tail.free for tails in complete_rows["tails"] for tail in tails)
        certain = 0.0 if np.abs(moves).max() > FLAT else 1.0
        p = stats.f.sf(square / variance, len(complete_rows), free) if variance > 0 else certain
        p_values[str(metric)] = float(p)
    if not p_values:
        return {}
    return dict(zip(p_values, holm(list(p_values.values())).tolist(), strict=True))


@dataclass(frozen=True)
class RunVariances:
    """How much more the runs of a study vary than sampling explains, for every interval of it."""

    shifts: RunVariance
    """Of the shifts of arms."""
    differences: RunVariance
    """Of their differences from the base arm, paired by seed."""


def run_variances(shifts: pd.DataFrame, base: str | None) -> RunVariances:
    """Fitted to the scores and behaviours of all arms in ``shifts``, the rows of `run_shifts`.

    It is made once for a study, so that an effect has one interval wherever it is shown.
    """
    by_arm = _by_arm(shifts[shifts["metric"].isin([*SCORES, *FEATURES])])
    pairs = [
        (part, by_arm[base, metric])
        for (arm, metric), part in by_arm.items()
        if base is not None and arm != base and (base, metric) in by_arm
    ]
    of_arms = variance_of((part["shift"], part["group_var"]) for part in by_arm.values())
    return RunVariances(of_arms, variance_of_pairs(pairs))


def variance_of_pairs(pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]]) -> RunVariance:
    """Fitted to differences paired by seed: rows of `run_shifts` of one metric in two arms each,
    indexed by seed."""
    of_pairs = (paired_shifts(*pair) for pair in pairs)
    return variance_of((pair["treated"] - pair["base"], pair["within"]) for pair in of_pairs)


def _by_arm(shifts: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """The runs of each arm and metric, by seed."""
    return {
        (part["arm"].iloc[0], part["metric"].iloc[0]): part.set_index("seed")
        for _, part in shifts.groupby(["arm", "metric"])
    }


def _groups_free(*parts: pd.DataFrame) -> int:
    """Degrees of freedom of the sampling variance that the groups of these runs give."""
    return sum(tail.free for part in parts for tails in part["tails"] for tail in tails)


def shift_table(
    shifts: pd.DataFrame,
    base: str | None,
    same: Collection[str] = (),
    variances: RunVariances | None = None,
) -> pd.DataFrame:
    """How far each arm moved, and how far beyond ``base``, for every metric of `run_shifts`.

    Columns are `_SHIFT_COLUMNS`: means over runs with their 95 % interval over runs; se is over
    runs, group_se and naive_se take the groups or rollouts of these runs for independent. Columns
    from diff on are against the base arm, paired by seed; p_holm corrects p_t over the arms and
    metrics of the table, of which those in ``same`` have none (`one_behaviour`).

    Args:
        variances: of the study (`run_variances`); by default of these rows.
    """
    ratios = run_variances(shifts, base) if variances is None else variances
    by_arm = _by_arm(shifts)
    rows = []
    for (arm, metric), part in by_arm.items():
        moved = part[part["shift"].notna()]
        runs = max(1, len(moved))
        row = {
            **{"arm": arm, "metric": metric},
            "unit": "score" if metric in SCORES or metric.startswith(BY) else unit(metric),
            "first": mean_interval(part["first"]).value,
            "last": mean_interval(part["last"]).value,
            **mean_shift(part, ratios).row("shift"),
            "se": float(moved["shift"].std(ddof=1) / runs**0.5),
            "group_se": float(moved["group_var"].sum(min_count=1) ** 0.5 / runs),
            "naive_se": float(moved["naive_var"].sum(min_count=1) ** 0.5 / runs),
            "unscored": float(part["unscored"].mean()),
            "worst_low": float(moved["worst_low"].mean()),
            "worst_high": float(moved["worst_high"].mean()),
        }
        other = by_arm.get((base, metric)) if base is not None and arm != base else None
        if other is not None:
            paired = difference(part, other, ratios)
            names = {"low": "diff_low", "high": "diff_high", "note": "diff_note"}
            names["p"] = "p_sign_flip"
            row |= {
                names.get(key, key): value for key, value in paired.row("diff", "pairs").items()
            }
            worst = (("low", "high"), ("high", "low"))
            row |= {
                f"diff_worst_{end}": known_mean(
                    seed_differences(part[f"worst_{end}"], other[f"worst_{far}"]).to_numpy()
                )
                for end, far in worst
            }
        rows.append(row)
    table = pd.DataFrame(rows, columns=[*_SHIFT_COLUMNS])
    table["p_holm"] = np.nan
    has_p = table["p_t"].notna() & ~table["metric"].isin(list(same))
    if has_p.any():
        table.loc[has_p, "p_holm"] = holm(table.loc[has_p, "p_t"])
    return table


def mean_shift(runs: pd.DataFrame, ratios: RunVariances) -> Estimate:
    """How far the runs of an arm moved: rows of `run_shifts` of one metric. The interval is cut
    where nothing can be beyond it."""
    mean = mean_interval(
        runs["shift"].tolist(),
        within=runs["group_var"].tolist(),
        ratios=ratios.shifts,
        within_free=_groups_free(runs),
    )
    low, high = cut(_level(runs) | {"low": mean.low, "high": mean.high})
    return replace(mean, low=low, high=high)


def difference(treated: pd.DataFrame, base: pd.DataFrame, ratios: RunVariances) -> Paired:
    """How much further the runs of one arm moved than those of another, paired by seed, on the same
    rows (`paired_shifts`): rows of `run_shifts` of one metric, indexed by seed. Groups are paired,
    so that the difference has half of the degrees of freedom that those of both have. The interval
    is cut where nothing can be beyond it."""
    pairs = paired_shifts(treated, base)
    mean = paired_difference(
        pairs["treated"],
        pairs["base"],
        within=pairs["within"],
        ratios=ratios.differences,
        within_free=_groups_free(treated, base) / 2,
    )
    if math.isnan(mean.low):
        return mean
    shift = mean_shift(base, ratios)
    ends = {"diff": mean.value, "diff_low": mean.low, "diff_high": mean.high}
    low, high = cut_difference(
        _level(treated) | ends, _level(base) | {"low": shift.low, "high": shift.high}
    )
    return replace(mean, low=low, high=high)


def _level(runs: pd.DataFrame) -> dict[str, Any]:
    """Where the runs of an arm began and how far they moved, as `cut` takes it."""
    means = {name: known_mean(runs[name].to_numpy(dtype=float)) for name in ("first", "shift")}
    return {"metric": runs["metric"].iloc[0] if len(runs) else "", **means}


_SHIFT_COLUMNS = (
    *("arm", "metric", "unit", "first", "last", "shift", "low", "high"),
    *("se", "group_se", "naive_se", "n"),
    *("unscored", "worst_low", "worst_high", "note"),
    *("diff", "diff_low", "diff_high", "pairs", "p_sign_flip", "p_t"),
    *("diff_worst_low", "diff_worst_high", "diff_note"),
)


def sample_rollouts(records: Records, cells: Sequence[str]) -> pd.DataFrame:
    """Rollouts of the first, middle and last step with their texts, of the lowest seed that most
    arms have."""
    runs = [run for run in records.runs if run.cell in set(cells)]
    arms = {seed: {run.arm for run in runs if run.seed == seed} for seed in {r.seed for r in runs}}
    seed = min(arms, key=lambda seed: (-len(arms[seed]), seed), default=None)
    parts = []
    for run in runs:
        if run.seed != seed:
            continue
        steps = np.unique(run.step_P)
        shown = {int(steps[at]) for at in (0, (len(steps) - 1) // 2, -1)}
        row = records.table[records.table["cell"] == run.cell]
        parts.append(rollouts_frame(records.folder, _SHOWN, row, shown))
    if not parts:
        return rollouts_frame(records.folder, _SHOWN, records.table.head(0))
    return pd.concat([part.astype({"cell": "str", "arm": "str"}) for part in parts])


def sample_completions(rollouts: pd.DataFrame, ranks: int = 2) -> pd.DataFrame:
    """Completions of the same prompts under every arm at the first, middle and last step.

    Nothing is picked for its looks: the first ``ranks`` prompt groups of the step and their first
    member. Where an arm lacks that group, its nearest one stands in. ``rollouts``: of one seed, as
    `sample_rollouts` gives them.
    """
    columns = ["when", "step", "rank", "arm", "seed", "cell", "rollout_id", "prompt"]
    columns += ["completion", "judge_score", "truth", "reward"]
    if rollouts.empty:
        return pd.DataFrame(columns=columns)
    samples = []
    for _, run in rollouts.sort_values(["step", "group", "member"]).groupby("arm", observed=True):
        steps = run["step"].unique()
        for when, at in {"first": 0, "middle": (len(steps) - 1) // 2, "last": -1}.items():
            at_step = run[run["step"] == steps[at]]
            groups = at_step["group"].unique()
            for rank in range(min(ranks, len(groups))):
                nearest = groups[abs(groups - rank).argmin()]
                row = at_step[at_step["group"] == nearest].head(1)
                samples.append(row.assign(when=when, rank=rank))
    table = pd.concat(samples, ignore_index=True)
    table["when"] = pd.Categorical(table["when"], categories=["first", "middle", "last"])
    return table.sort_values(["when", "rank", "arm"], ignore_index=True)[columns]
