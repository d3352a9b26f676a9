"""Which of a judge's biases another behaviour explains: an edit that adds words is paid by a judge
of length, whatever its words say.

What a judge pays for a behaviour is fitted on the edits that probe *other* biases, all behaviours
at once, so an edit never explains itself. Where what it moves of one behaviour, at that price, is
about its whole effect, the behaviour explains it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.probes.effects import clustered_mean
from study.features import FEATURES

LEAST = 0.5
"""Share of an effect from which a behaviour is said to explain it."""
MOST = 1.5
"""Share beyond which the price is no explanation of what was seen."""
COLUMNS = ["judge", "variant", "behaviour", "change", "price", "effect", "share", "rest"]
COLUMNS += ["low", "high"]
CLAIMED = ("bias for it", "bias against it")


def explained(
    scores: pd.DataFrame, paired: pd.DataFrame, effects: pd.DataFrame, margin: float
) -> pd.DataFrame:
    """One row per bias of a judge that another behaviour explains.

    Returns judge, variant, behaviour, ``change`` (of the behaviour by the edit, mean over pairs),
    ``price`` (score for one more of it, by the edits that probe other biases), ``effect``,
    ``share`` (change times price, of the effect), and ``rest`` with ``low`` and ``high``: what is
    left of the effect, clustered by prompt, without the error of the price. A bias is explained
    where the share is between `LEAST` and `MOST` and the rest is within the margin, or its interval
    holds 0. Pairs at an end of the scale are left out: what a judge pays cannot show there.

    Args:
        scores: as `analysis.probes.profile.scores` gives them, with the behaviours of each text.
        paired: as `analysis.probes.effects.pairs` gives them.
        effects: as `analysis.probes.effects.effects` gives them.
        margin: of equivalence, in score units.
    """
    counted = [name for name in FEATURES if _on_record(scores, name)]
    table = _changes(scores, paired, counted)
    rows = []
    for row in effects[effects["claim"].isin(CLAIMED)].to_dict("records"):
        of_judge = table[table["judge"] == row["judge"]]
        other, own = of_judge["bias"] != row["bias"], of_judge["variant"] == row["variant"]
        if not other.any() or not own.any():
            continue
        changes, values = of_judge[counted].to_numpy(), of_judge["value"].to_numpy()
        prices = _prices(changes[other], values[other])
        moved = changes[own].mean(axis=0)
        at = int(np.argmax(prices * moved * np.sign(row["effect"])))
        effect = float(values[own].mean())
        share = float(prices[at] * moved[at] / effect) if effect else np.nan
        left = values[own] - prices[at] * changes[own][:, at]
        rest = clustered_mean(left, of_judge.loc[own, "prompt_id"].to_numpy())
        small = abs(rest.value) < margin or rest.low <= 0 <= rest.high
        if counted[at] != row["bias"] and LEAST <= share <= MOST and small:
            rows.append(
                {name: row[name] for name in ("judge", "variant")}
                | {"behaviour": counted[at], "change": moved[at], "price": prices[at]}
                | {"effect": effect, "share": share, "rest": rest.value}
                | {"low": rest.low, "high": rest.high}
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def _column(behaviour: str) -> str:
    """Where a behaviour of the probed texts is on record."""
    return {"length": "words"}.get(behaviour, behaviour)


def _on_record(scores: pd.DataFrame, behaviour: str) -> bool:
    """Whether the texts have a count of a behaviour: a folder may be older than the behaviour."""
    name = _column(behaviour)
    return name in scores and bool(scores[name].notna().any())


def _changes(scores: pd.DataFrame, paired: pd.DataFrame, counted: Sequence[str]) -> pd.DataFrame:
    """Pairs of single texts with both scores, none at an end: what changed of every behaviour that
    is counted, and as ``value`` the judge's change beyond the truth's, where that is known of any
    pair."""
    single = paired[~paired["pairwise"].astype(bool) & ~paired["at_end"].astype(bool)]
    if not counted:
        return single.head(0)
    names = [_column(behaviour) for behaviour in counted]
    by_probe = scores.drop_duplicates("probe_id").set_index("probe_id")[names].astype(float)
    before, after = (by_probe.reindex(single[key]).to_numpy() for key in ("against", "probe_id"))
    has_bias_change = single["bias_change"].notna().groupby([single["judge"], single["variant"]])
    value = single["bias_change"].where(has_bias_change.transform("any"), single["judge_change"])
    changes = pd.DataFrame(after - before, columns=list(counted), index=single.index)
    table = single[["judge", "variant", "bias", "prompt_id"]].join(changes)
    return table.assign(value=value).dropna(subset=[*counted, "value"])


def _prices(changes_N_K: np.ndarray, values_N: np.ndarray) -> np.ndarray:
    """Score for one more of each behaviour, least squares of shape (K,); 0 for one that no edit
    moves, and the least that fits where edits move several alike."""
    scale = np.sqrt((changes_N_K**2).mean(axis=0))
    scaled = np.divide(changes_N_K, scale, out=np.zeros_like(changes_N_K), where=scale > 0)
    fitted = np.linalg.lstsq(scaled, values_N, rcond=1e-8)[0]
    return np.divide(fitted, scale, out=np.zeros_like(fitted), where=scale > 0)
