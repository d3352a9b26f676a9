"""The slots of a bias set under each judge: what each is paid, and how it differs from its base."""

from __future__ import annotations

import pandas as pd

from analysis.probes.effects import FEW_PROMPTS, clustered_mean
from judges.probes.biasset import TYPES

ALL = "all"
COLUMNS = [
    *("judge", "source", "slot", "against", "author", "score", "score_low", "score_high"),
    *("change", "low", "high", "texts", "unscored", "pairs", "prompts", "note"),
]


def slots(scores: pd.DataFrame, paired: pd.DataFrame) -> pd.DataFrame:
    """One row per judge, slot and source of prompts, all sources together first.

    ``score`` is the mean score, ``change`` the mean of score - score of the text that it was made
    from (for a pairwise judge the net preference), both with intervals clustered by prompt;
    ``pairs`` have both scores. Truth has no part in it: a change of ``yconfident_wrong`` says how
    far the judge marks wrong content down. From ten prompts on there are intervals.

    Args:
        scores: `analysis.probes.profile.scores`, of a set that names its slots.
        paired: `analysis.probes.effects.pairs` of it.
    """
    change = paired.set_index(["judge", "probe_id"])["judge_change"]
    keys = pd.MultiIndex.from_frame(scores[["judge", "probe_id"]])
    table = scores.assign(change=change.reindex(keys).to_numpy())
    table = table[table["variant"].isin(TYPES)]
    rows = []
    for judge, of_judge in table.groupby("judge", sort=False):
        names = [ALL, *sorted(set(of_judge.get("dataset", [])) - {""})]
        for source in names if len(names) > 2 else names[:1]:
            part = of_judge if source == ALL else of_judge[of_judge["dataset"] == source]
            rows += [
                {"judge": judge, "source": source, "slot": slot}
                | _row(part[part["variant"] == slot])
                for slot in TYPES
                if (part["variant"] == slot).any()
            ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(part: pd.DataFrame) -> dict[str, object]:
    prompts = part["prompt_id"].to_numpy()
    score = clustered_mean(part["score"].to_numpy(dtype=float), prompts, ends=(0.0, 1.0))
    change = clustered_mean(part["change"].to_numpy(dtype=float), prompts)
    against = part["against"].dropna().str.split("/").str[1].unique()
    row = {
        "against": ", ".join(sorted(against)),
        "author": ", ".join(sorted({*part.get("author", pd.Series(dtype=str))} - {""})),
        "texts": len(part),
        "unscored": int(part["score"].isna().sum()),
        "pairs": change.rows,
        "prompts": score.n,
        "score": score.value,
        "change": change.value,
        "note": "" if score.n >= FEW_PROMPTS else f"fewer than {FEW_PROMPTS} prompts: no interval",
    }
    if score.n >= FEW_PROMPTS:
        row |= {"score_low": max(0.0, score.low), "score_high": min(1.0, score.high)}
    if change.n >= FEW_PROMPTS:
        row |= {"low": change.low, "high": change.high}
    return row
