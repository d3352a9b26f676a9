"""The probed judges beside each other, and beside the texts that they or their kin wrote.

Texts of one prompt are not independent, so every interval here is over prompts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis.display.markup import render_text
from analysis.external.preference import preferences
from analysis.probes.effects import NO_SPREAD
from analysis.statistics.agreement import krippendorff_alpha, within_groups
from analysis.statistics.bootstrap import FEWEST
from analysis.statistics.estimate import NAN, Estimate
from analysis.statistics.intervals import mean_interval
from study.config.presets import preset_file

ALPHA, WITHIN = "Krippendorff alpha", "correlation within prompts"
OTHERS = "other judges"
"""Who tells the quality of texts whose truth no rule knows."""
NO_FAMILY = "other"
"""What a preset says whose model is anybody's; it is nobody's kin."""


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
    leave_one_out = np.array(
        [krippendorff_alpha(table_N_J[prompts_N != name]).value for name in names]
    )
    pseudo = len(names) * whole.value - (len(names) - 1) * leave_one_out
    around = mean_interval(pseudo.tolist(), "prompt")
    half = around.high - around.value
    alpha = replace(alpha, note=around.note)
    if half <= NO_SPREAD:  # alike on every prompt that was drawn
        return alpha
    return replace(alpha, low=whole.value - half, high=min(1.0, whole.value + half))


def own_texts(scores: pd.DataFrame, manifest: dict[str, Any]) -> tuple[pd.DataFrame, list[str]]:
    """Does a judge score its own or its family's texts higher than their quality earns?

    Texts of a known author are compared with the other texts of the same variants and prompts, at
    equal quality (`analysis.external.preference`). Quality is the rule truth; where no rule knows
    it, it is the mean score of the judges that are of no author's family, which the score is then
    compared with (preference leakage, Li et al. 2025, arXiv 2502.01534). Returns one row per judge
    and kind (self, family) of own texts, and why there is none, in words.

    Args:
        scores: `analysis.probes.profile.scores`.
        manifest: of the folder of probes.
    """
    columns = ["judge", "own", "texts by", "effect", "low", "high", "p", "raw", "prompts", "texts"]
    columns += ["quality by"]
    none = pd.DataFrame(columns=columns)
    table, quality_by = authored(scores, manifest)
    if table.empty:
        return none, [render_text("profile", "no_author")]
    with_author = table[table["author"] != ""]
    authors = dict(zip(with_author["author"], with_author["author_family"], strict=True))
    families = {name: _family(name, manifest) for name in manifest["judges"]}
    kin = [
        name
        for name, family in families.items()
        if name in authors or (family and family in authors.values())
    ]
    if not kin:
        family = ", ".join(sorted({name or "unknown" for name in authors.values()}))
        return none, [
            render_text("profile", "no_kin", author=", ".join(sorted(authors)), family=family)
        ]
    table = table[table["judge"].isin(kin)]
    if not table["quality"].notna().any():
        kind = {"author": ", ".join(sorted(authors)), "kin": ", ".join(kin)}
        return none, [render_text("profile", "no_truth_of_own", **kind)]
    rows, notes = [], []
    for taste in preferences(table, offset=quality_by == OTHERS):
        family = families[taste.judge]
        if taste.kind == "self" and taste.judge not in authors:
            continue
        if taste.kind == "family" and (not family or family not in authors.values()):
            continue
        if math.isnan(taste.effect.value) or taste.items < FEWEST:
            why = taste.note or f"{taste.items} prompts are fewer than {FEWEST}"
            notes.append(
                render_text("profile", "no_taste", judge=taste.judge, kind=taste.kind, why=why)
            )
            continue
        by = [taste.judge] if taste.kind == "self" else [a for a in authors if authors[a] == family]
        rows.append(
            {"judge": taste.judge, "own": taste.kind, "texts by": ", ".join(by), "p": taste.p}
            | {"raw": taste.raw.value, "prompts": taste.items, "texts": taste.own_rows}
            | taste.effect.row("effect")
            | {"quality by": quality_by}
        )
    return pd.DataFrame(rows, columns=columns), notes


def authored(scores: pd.DataFrame, manifest: dict[str, Any]) -> tuple[pd.DataFrame, str]:
    """A table of judged answers as `analysis.external.preference` takes it, and who tells quality:
    rule, other judges, or nobody. It has every text of a variant that a known author wrote, scored
    singly; the author of others is empty, and so is a family that is unknown.

    Args:
        scores: `analysis.probes.profile.scores`.
        manifest: of the folder of probes.
    """
    single = scores[~scores["pairwise"]]
    rewriter = manifest["command"].get("rewriter") or ""
    by_rewriter = (single["how"] == "model") & single["against"].notna() & bool(rewriter)
    author = by_rewriter.map({True: rewriter, False: ""})
    family = by_rewriter.map({True: _family(rewriter, manifest), False: ""})
    if "author" in single:
        recorded = single["author"] != ""
        author = author.where(~recorded, single["author"])
        family = family.where(~recorded, single["author_family"].replace(NO_FAMILY, ""))
    kinds = set(single["variant"][author != ""])
    families = {name: _family(name, manifest) for name in manifest["judges"]}
    table = pd.DataFrame(
        {
            "item": single["prompt_id"],
            "judge": single["judge"],
            "judge_family": single["judge"].map(families),
            "author": author,
            "author_family": family,
            "score": single["score"],
            "quality": single["truth"].astype(float),
            "probe_id": single["probe_id"],
        }
    )[single["variant"].isin(kinds)]
    if table["quality"].notna().any() or table.empty:
        return table, "rule"
    kin = {*table["author_family"], *table["author"]} - {""}
    others = table[~table["judge_family"].isin(kin) & ~table["judge"].isin(kin)]
    each = others.groupby(["probe_id", "judge"])["score"].mean().unstack()
    parts = []
    for judge, part in table.groupby("judge", sort=False):
        rest = each.drop(columns=[judge], errors="ignore")
        parts.append(part.assign(quality=part["probe_id"].map(rest.mean(axis=1))))
    return pd.concat(parts), OTHERS


def _family(name: str, manifest: dict[str, Any]) -> str:
    """The family of a probed judge, or of a preset that only wrote; empty where it is unknown."""
    if name in manifest["judges"]:
        preset = manifest["judges"][name]
    else:
        path = preset_file("judge", name)
        preset = (yaml.safe_load(path.read_text()) if path.is_file() else None) or {}
    family = str(preset.get("family") or "")
    return "" if family == NO_FAMILY else family
