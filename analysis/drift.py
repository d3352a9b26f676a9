"""What training under each judge did: curves, gap, behaviour drift, failures, sample completions.

Tables only; `analysis.figures` draws them and `analysis.findings` puts them into sentences. An arm
is a judge (and any other declared factor); its runs, one per seed, are the units of every interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.behaviour import run_shift, step_means, unit
from analysis.intervals import grouped_intervals, mean_interval, paired_difference
from judges.verdict import Outcome

if TYPE_CHECKING:
    import pandas as pd

SCORES = ("judge_score", "truth", "reward", "gap")
"""Metrics of a learning curve, in score units; gap is judge_score - truth of the same rollout."""


def usable_cells(runs: pd.DataFrame) -> list[str]:
    """Finished cells; where there are none, every cell, so that something can be looked at.

    Runs cut short are not averaged with finished ones: they stand at another training step.
    """
    done = runs.loc[runs["done"], "cell"]
    return list(done if len(done) else runs["cell"])


def base_arm(arms: list[str]) -> str | None:
    """The arm that others are compared with: the fair simulated judge, else the first by name."""
    ordered = sorted(arms)
    fair = [arm for arm in ordered if arm.split(",")[0] == "sim-fair"]
    return (fair or ordered or [None])[0]


def run_curves(rollouts: pd.DataFrame) -> pd.DataFrame:
    """Step means of the scores of each run, long: cell, arm, seed, step, metric, value.

    Rollouts without a score or without a truth are missing, not 0; ``gap`` uses those with both.
    """
    with_gap = rollouts.assign(gap=rollouts["judge_score"] - rollouts["truth"])
    return step_means(with_gap, list(SCORES))


def learning_curves(curves: pd.DataFrame) -> pd.DataFrame:
    """Mean over runs with its t interval: arm, step, metric, mean, low, high, n, missing."""
    return grouped_intervals(curves, ["arm", "metric", "step"])


def shift_table(curves: pd.DataFrame, base: str | None) -> pd.DataFrame:
    """How far each arm moved, and how far beyond ``base``, for every metric of ``curves``.

    Columns: arm, metric, unit, first, last (means over runs), shift with low and high (t interval
    over runs), n (runs), note; and against the base arm, paired by seed: diff, diff_low, diff_high,
    pairs, p_sign_flip (exact), p_t, p_holm (of p_t, over the metrics of one arm), diff_note.
    The shift itself is defined in `analysis.behaviour.run_shift`.
    """
    import numpy as np
    import pandas as pd
    from statsmodels.stats.multitest import multipletests

    shifts = run_shift(curves)
    by_arm = {
        (part["arm"].iloc[0], part["metric"].iloc[0]): part.set_index("seed")
        for _, part in shifts.groupby(["arm", "metric"], observed=True)
    }
    rows = []
    for (arm, metric), part in by_arm.items():
        own = mean_interval(part["shift"])
        row = {
            "arm": arm,
            "metric": metric,
            "unit": unit(metric) if metric not in SCORES else "score",
            "first": mean_interval(part["first"]).mean,
            "last": mean_interval(part["last"]).mean,
            "shift": own.mean,
            "low": own.low,
            "high": own.high,
            "n": own.n,
            "note": own.note,
        }
        other = by_arm.get((base, metric)) if base is not None and arm != base else None
        if other is not None:
            found = paired_difference(part["shift"], other["shift"])
            row |= {
                "diff": found.mean,
                "diff_low": found.low,
                "diff_high": found.high,
                "pairs": found.n,
                "p_sign_flip": found.p,
                "p_t": found.p_t,
                "diff_note": found.note,
            }
        rows.append(row)
    table = pd.DataFrame(rows, columns=[*_SHIFT_COLUMNS])
    table["p_holm"] = np.nan
    for _, part in table[table["p_t"].notna()].groupby("arm"):
        table.loc[part.index, "p_holm"] = multipletests(part["p_t"], method="holm")[1]
    return table


_SHIFT_COLUMNS = (
    *("arm", "metric", "unit", "first", "last", "shift", "low", "high", "n", "note"),
    *("diff", "diff_low", "diff_high", "pairs", "p_sign_flip", "p_t", "diff_note"),
)


def failure_table(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Verdicts by judge, role and outcome; ``verdicts`` sums to the number of rows given.

    Columns: judge, role, one count per outcome that occurred (scored always), verdicts, unscored
    (share).
    """
    import pandas as pd

    keys = ["judge", "role"]
    counts = pd.crosstab([verdicts[key] for key in keys], verdicts["outcome"])
    order = [str(outcome) for outcome in Outcome]
    known = [name for name in order if name in counts or name == "scored"]
    other = [name for name in counts if name not in order]
    table = counts.reindex(columns=[*known, *other], fill_value=0).reset_index()
    table.columns.name = None
    table["verdicts"] = table[[*known, *other]].sum(axis=1).astype("int64")
    table["unscored"] = 1 - table["scored"] / table["verdicts"]
    return table


def failures_by_length(verdicts: pd.DataFrame, lengths: pd.DataFrame) -> pd.DataFrame:
    """Share of unscored verdicts by decile of answer length, per judge.

    ``lengths`` has cell, rollout_id and length (words). Deciles are cut per judge over all of its
    verdicts; equal lengths stay together, so there may be fewer than ten bins. Each share is a mean
    over runs with its t interval. Columns: judge, bin, words_low, words_high, verdicts, mean, low,
    high, n, missing.
    """
    import pandas as pd

    joined = verdicts[["cell", "rollout_id", "judge", "outcome"]].merge(
        lengths[["cell", "rollout_id", "length"]].astype({"cell": "str"}),
        on=["cell", "rollout_id"],
        how="inner",
    )
    joined = joined[joined["length"].notna()]
    tables = []
    for judge, part in joined.groupby("judge"):
        cuts = pd.qcut(part["length"], 10, labels=False, duplicates="drop")
        # One length for all is one bin: qcut has no edges to cut at then and gives NaN.
        part = part.assign(bin=cuts.fillna(0).astype(int), value=part["outcome"].ne("scored"))
        by_run = part.groupby(["cell", "bin"])["value"].mean().reset_index()
        table = grouped_intervals(by_run, ["bin"])
        words = part.groupby("bin")["length"].agg(["min", "max", "size"])
        table.insert(0, "judge", judge)
        table.insert(2, "words_low", words["min"].to_numpy())
        table.insert(3, "words_high", words["max"].to_numpy())
        table.insert(4, "verdicts", words["size"].to_numpy())
        tables.append(table)
    columns = ["judge", "bin", "words_low", "words_high", "verdicts"]
    columns += ["mean", "low", "high", "n", "missing"]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)


def sample_completions(rollouts: pd.DataFrame, ranks: int = 2) -> pd.DataFrame:
    """Completions of the same prompts under every arm at the first, middle and last step.

    Nothing is picked for its looks: the lowest seed that most arms have, the first ``ranks`` prompt
    groups of the step and their first member. Where an arm lacks that group, its nearest one stands
    in. Columns: when, step, rank, arm, seed, cell, rollout_id, prompt, completion, judge_score,
    truth, reward.
    """
    import pandas as pd

    columns = ["when", "step", "rank", "arm", "seed", "cell", "rollout_id", "prompt"]
    columns += ["completion", "judge_score", "truth", "reward"]
    if rollouts.empty:
        return pd.DataFrame(columns=columns)
    arms_of_seed = rollouts.groupby("seed")["arm"].nunique()
    seed = arms_of_seed.idxmax()
    ours = rollouts[rollouts["seed"] == seed].sort_values(["step", "group", "member"])
    picked = []
    for _, run in ours.groupby("arm", observed=True):
        steps = run["step"].unique()
        moments = {"first": steps[0], "middle": steps[(len(steps) - 1) // 2], "last": steps[-1]}
        for when, step in moments.items():
            now = run[run["step"] == step]
            groups = now["group"].unique()
            for rank in range(min(ranks, len(groups))):
                nearest = groups[abs(groups - rank).argmin()]
                row = now[now["group"] == nearest].head(1)
                picked.append(row.assign(when=when, rank=rank))
    table = pd.concat(picked, ignore_index=True)
    table["when"] = pd.Categorical(table["when"], categories=["first", "middle", "last"])
    return table.sort_values(["when", "rank", "arm"], ignore_index=True)[columns]
