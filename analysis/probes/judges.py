"""The probed judges beside each other, and beside the texts that they or their kin wrote.

Texts of one prompt are not independent, so every interval here is over prompts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis.external.preference import preferences
from analysis.probes.effects import NO_SPREAD
from analysis.reports.markup import said
from analysis.statistics.agreement import krippendorff_alpha, within_groups
from analysis.statistics.bootstrap import FEWEST
from analysis.statistics.estimate import NAN, Estimate
from analysis.statistics.intervals import mean_interval
from study.compose import CONF

ALPHA, WITHIN = "Krippendorff alpha", "correlation within prompts"
NO_FAMILY = ("", "other")
"""What a preset says whose model is anybody's."""


def agreement(scores: pd.DataFrame) -> pd.DataFrame:
    """How far judges that were asked the same way agree on the same texts.

    Alpha is at the interval level, so a judge that is stricter by a constant agrees less; the
    correlation (Pearson, of each two judges, averaged over prompts) does not see that. ``scores``:
    `analysis.probes.profile.scores`. Returns rows texts (contents, all probes, or pairs for
    pairwise judges), judges, measure, value, low, high, scored (texts with the scores of two judges
    or more), prompts, note. Alpha has a jackknife interval over prompts, from ten on, the
    correlation a t interval; neither has one where there is no spread.
    """
    columns = ["texts", "judges", "measure", "value", "low", "high", "scored", "prompts", "note"]
    single = scores[~scores["pairwise"]]
    rows = []
    for texts, part in (
        ("contents", single[single["bias"] == "content"]),
        ("all probes", single),
        ("pairs", scores[scores["pairwise"] & scores["against"].notna()]),
    ):
        judges = list(part["judge"].unique())
        if len(judges) < 2:
            continue
        wide = part.pivot(index=["prompt_id", "probe_id"], columns="judge", values="score")
        wide = wide[judges].astype(float)
        prompts = wide.index.get_level_values("prompt_id").to_numpy()
        scored = wide.notna().sum(axis=1) >= 2
        alpha = _alpha(wide[scored].to_numpy(), prompts[scored])
        head = {"texts": texts, "judges": ", ".join(judges), "measure": ALPHA}
        rows.append(head | {"scored": scored.sum()} | alpha.row(n="prompts"))
        for pair in map(list, combinations(judges, 2)):
            within = within_groups(*wide[pair].to_numpy().T, prompts)
            estimate = within.estimate
            if estimate.high - estimate.low <= NO_SPREAD:  # alike on every prompt that was drawn
                estimate = replace(estimate, low=NAN, high=NAN)
            flat = f"{within.constant} prompts without spread left out" if within.constant else ""
            rows.append(
                {"texts": texts, "judges": ", ".join(pair), "measure": WITHIN}
                | {"scored": wide[pair].notna().all(axis=1).sum()}
                | estimate.row(n="prompts")
                | {"note": "; ".join(filter(None, [estimate.note, flat]))}
            )
    return pd.DataFrame(rows, columns=columns)


def _alpha(table_N_J: np.ndarray, prompts_N: np.ndarray) -> Estimate:
    """Alpha with a delete-one-prompt jackknife; ``n`` counts prompts."""
    whole, names = krippendorff_alpha(table_N_J), np.unique(prompts_N)
    alpha = Estimate(whole.value, n=len(names), note=whole.note)
    if math.isnan(whole.value) or whole.value == 1:
        return alpha
    if len(names) < FEWEST:
        return replace(alpha, note=f"fewer than {FEWEST} prompts: no interval")
    left = np.array([krippendorff_alpha(table_N_J[prompts_N != name]).value for name in names])
    pseudo = len(names) * whole.value - (len(names) - 1) * left
    around = mean_interval(pseudo.tolist(), "prompt")
    half = around.high - around.value
    alpha = replace(alpha, note=around.note)
    if half <= NO_SPREAD:  # alike on every prompt that was drawn
        return alpha
    return replace(alpha, low=whole.value - half, high=min(1.0, whole.value + half))


def own_texts(scores: pd.DataFrame, manifest: dict[str, Any]) -> tuple[pd.DataFrame, list[str]]:
    """Does a judge score its own or its family's texts higher than their truth earns?

    Known by their author are the texts of a rewriter. They are compared with texts of the same
    variants and prompts that it did not write, at equal rule truth
    (`analysis.external.preference`). Returns one row per judge and kind (self, family) of own
    texts, and why there is none, in words.

    Args:
        scores: `analysis.probes.profile.scores`.
        manifest: of the folder of probes.
    """
    columns = ["judge", "own", "texts by", "effect", "low", "high", "p", "raw", "prompts", "texts"]
    none = pd.DataFrame(columns=columns)
    judges, author = manifest["judges"], manifest["command"]["rewriter"]
    single = scores[~scores["pairwise"]]
    written = single[(single["how"] == "model") & (single["against"].notna())]
    if not author or written.empty:
        return none, [said("profile", "no_author")]
    families = {name: _family(name, manifest) for name in {*judges, author}}
    kin = [
        name
        for name in judges
        if name == author
        or (families[name] not in NO_FAMILY and families[name] == families[author])
    ]
    if not kin:
        family = families[author] or "unknown"
        return none, [said("profile", "no_kin", author=author, family=family)]
    if not written["truth"].notna().any():
        return none, [said("profile", "no_truth_of_own", author=author, kin=", ".join(kin))]
    kinds = set(written["variant"])
    part = single[single["judge"].isin(kin) & single["variant"].isin(kinds)]
    model = part["how"] == "model"
    frame = pd.DataFrame(
        {
            "item": part["prompt_id"],
            "judge": part["judge"],
            "judge_family": part["judge"].map(families),
            "author": model.map({True: author, False: ""}),
            "author_family": model.map({True: families[author], False: ""}),
            "score": part["score"],
            "quality": part["truth"],
        }
    )
    rows, notes = [], []
    for taste in preferences(frame):
        if taste.kind == "self" and taste.judge != author:
            continue
        if taste.kind == "family" and families[taste.judge] in NO_FAMILY:
            continue
        if math.isnan(taste.effect.value) or taste.items < FEWEST:
            why = taste.note or f"{taste.items} prompts are fewer than {FEWEST}"
            notes.append(said("profile", "no_taste", judge=taste.judge, kind=taste.kind, why=why))
            continue
        rows.append(
            {"judge": taste.judge, "own": taste.kind, "texts by": author, "p": taste.p}
            | {"raw": taste.raw.value, "prompts": taste.items, "texts": taste.own_rows}
            | taste.effect.row("effect")
        )
    return pd.DataFrame(rows, columns=columns), notes


def _family(name: str, manifest: dict[str, Any]) -> str:
    """The family of a probed judge, or of a preset that only wrote."""
    if name in manifest["judges"]:
        return str(manifest["judges"][name].get("family") or "")
    path = Path(CONF) / "judge" / f"{name}.yaml"
    preset = yaml.safe_load(path.read_text()) if path.is_file() else None
    return str((preset or {}).get("family") or "")
