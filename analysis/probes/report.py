"""A judge's profile in words and tables, and on the screen."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from analysis.display import markup
from analysis.probes.effects import CLAIMED, END, FEW_PROMPTS, TOO_FEW
from analysis.probes.judges import ALPHA
from analysis.probes.profile import Profile
from study.features import unit
from study.screen import plural, print_table

MEASURES = ("TPR", "FPR", "Youden J", "phi")
EFFECTS_HIDDEN = ("p (BH)", "p (equivalent)", "prompts", "truth from")
"""Columns of a judge's effects that the screen has no room for."""
EFFECTS_LEAD = (
    *("variant", "bias [95 %]", "claim", "explained by", "p (Holm)", "judge", "truth"),
    "in SDs",
)
"""Columns of a judge's effects that the page does not fold."""
_with_interval = functools.partial(markup.estimate, sign=False)
_say = functools.partial(markup.render_text, "profile")


def effects_table(profile: Profile, judge: str) -> pd.DataFrame:
    """The effects of one judge as they are read, the largest first."""
    table = profile.effects[profile.effects["judge"] == judge]
    table = table.loc[table["effect"].abs().sort_values(ascending=False).index]
    columns = {
        "variant": table["variant"],
        "bias [95 %]": _each(markup.estimate, table, "effect", "low", "high"),
        "worst cases": _each(markup.bracket, table, "bound_low", "bound_high"),
        "claim": table["claim"],
        "explained by": [_explained_by(profile, judge, name) for name in table["variant"]],
        "in SDs": table["effect_sd"].map(_signed),
        "p (Holm)": table["p_holm"].map(markup.p_value),
        "p (BH)": table["p_bh"].map(markup.p_value),
        "smallest": table["smallest"].map(markup.number),
        "p (equivalent)": table["p_equivalent"].map(markup.p_value),
        "judge": table["judge_change"].map(_signed),
        "truth": table["truth_change"].map(_signed),
        "planted": table["planted"].map(_signed),
        "at an end": table["at_end"].map(_percent),
        "pairs": table["pairs"].astype(str),
        "prompts": table["prompts"].astype(str),
        "unscored": table["unscored"].astype(str),
        "truth from": table["truth_by"],
    }
    if not (table["unscored"] > 0).any():
        del columns["worst cases"]
    if not any(columns["explained by"]):
        del columns["explained by"]
    return pd.DataFrame(columns).reset_index(drop=True)


def _explained_by(profile: Profile, judge: str, variant: str) -> str:
    """``length (98 %)``: the behaviour that explains a bias, with its share of the effect."""
    rows = profile.explained.query("judge == @judge and variant == @variant")
    parts = zip(rows["behaviour"], rows["share"], strict=True)
    return ", ".join(f"{name} ({_percent(share)})" for name, share in parts)


def levels_table(profile: Profile) -> pd.DataFrame:
    """One row per judge over contents as they are: rates against truth, leniency, scale use."""

    def scale_use(row: pd.Series) -> dict[str, str]:
        return {
            "leniency [95 %]": markup.estimate(*row[["leniency", "leniency_low", "leniency_high"]]),
            "entropy (bits)": markup.number(row["entropy"]),
            "at 1": _percent(row["ceiling"]),
            "at 0": _percent(row["floor"]),
            "ties": _percent(row["ties"]),
            "texts": str(row["n"]),
            "unscored": str(row["unscored"]),
        }

    lines = _by_judge(profile, profile.rates, profile.scale, scale_use)
    lines = [line for line in lines if any(text for name, text in line.items() if name != "judge")]
    return pd.DataFrame(lines).fillna("")


def probes_table(profile: Profile) -> pd.DataFrame:
    """One row per judge over all its texts, edited and without content too: rates, length."""

    def longer(row: pd.Series) -> dict[str, str]:
        return {"longer beyond truth [95 %]": markup.estimate(*row[["excess", "low", "high"]])}

    lines = _by_judge(profile, profile.all_rates, profile.length, longer)
    texts = profile.scores["judge"][profile.scores["score"].notna()].value_counts()
    return pd.DataFrame(
        [line | {"texts": str(texts.get(line["judge"], 0))} for line in lines]
    ).fillna("")


def _by_judge(
    profile: Profile,
    rates: pd.DataFrame,
    details: pd.DataFrame,
    shown: Callable[[pd.Series], dict[str, str]],
) -> list[dict[str, str]]:
    """One line per judge: its rates, and what is shown of its row of ``details``, if it has one."""
    rows = {row["judge"]: row for _, row in details.iterrows()}
    intervals = {
        (row["judge"], row["measure"]): _with_interval(row["value"], row["low"], row["high"])
        for row in rates.to_dict("records")
    }
    return [
        {"judge": judge}
        | {f"{name} [95 %]": intervals.get((judge, name), "") for name in MEASURES}
        | (shown(rows[judge]) if judge in rows else {})
        for judge in profile.evidence.judges
    ]


def slots_table(profile: Profile) -> pd.DataFrame:
    """What each judge pays each slot of a set, as it is read; no row where the set has no slots."""
    table = profile.slots
    shown = {"judge": table["judge"], "source": table["source"], "slot": table["slot"]}
    shown |= {
        "score [95 %]": _each(_with_interval, table, "score", "score_low", "score_high"),
        "change [95 %]": _each(markup.estimate, table, "change", "low", "high"),
        "against": table["against"],
        "author": table["author"],
        **{name: table[name].astype(str) for name in ("texts", "unscored", "pairs", "prompts")},
        "note": table["note"],
    }
    return pd.DataFrame(shown).reset_index(drop=True)


def agreement_table(profile: Profile) -> pd.DataFrame:
    """How far the judges agree with each other, as it is read."""
    table = profile.agreement.astype({"scored": str, "prompts": str})
    table.insert(3, "value [95 %]", _each(_with_interval, table, "value", "low", "high"))
    return table.drop(columns=["value", "low", "high"])


def agreement_sentences(profile: Profile) -> list[str]:
    """What the agreement comes to, or why there is none to show."""
    kinds = dict(zip(profile.scores["judge"], profile.scores["pairwise"], strict=True))
    if len(kinds) == 1:
        return [_say("one_judge")]
    lines = [
        _say(
            "agreement",
            interval=_with_interval(row["value"], row["low"], row["high"]),
            noun="pairs" if row["texts"] == "pairs" else "texts",
            **row,
        )
        for row in profile.agreement.to_dict("records")
        if row["measure"] == ALPHA and not math.isnan(row["value"])
    ]
    for pairwise, texts in ((False, "single texts"), (True, "pairs")):
        alike = [judge for judge, kind in kinds.items() if kind == pairwise]
        if len(alike) == 1:
            lines.append(_say("alone", judge=alike[0], texts=texts))
    return lines


def extent(profile: Profile) -> str:
    """How much was asked."""
    verdicts = profile.evidence.verdicts
    unscored = int(verdicts["outcome"].ne("scored").sum())
    return _say(
        "extent",
        judges=plural(len(profile.evidence.judges), "judge"),
        prompts=plural(verdicts["prompt_id"].nunique(), "prompt"),
        texts=len(profile.evidence.probes),
        verdicts=len(verdicts),
        unscored=f"{unscored:,} of them unscored" if unscored else "all of them scored",
    )


def headlines(profile: Profile) -> dict[str, str]:
    """Judge -> what it pays for beyond the truth, in one sentence: first what other behaviours
    explain, then the largest bias of its own."""
    lines = {}
    for judge in profile.evidence.judges:
        ours, biases = _explained(profile, judge), _biases(profile, judge)
        own = biases[~biases["variant"].isin(ours["variant"])]
        parts = [
            _say("pays", behaviour=behaviour, n=len(rows), variants=", ".join(rows["variant"]))
            for behaviour, rows in ours.groupby("behaviour", sort=False)
        ]
        for row in own.head(1).to_dict("records"):
            moved = markup.estimate(row["effect"], row["low"], row["high"])
            more = plural(len(own), "bias", "biases")
            parts.append(_say("largest", moved=moved, more=more, **row))
        lines[judge] = f"{judge} " + ("; ".join(parts) if parts else _say("pays_nothing")) + "."
    return lines


def _biases(profile: Profile, judge: str) -> pd.DataFrame:
    """The biases that are claimed of a judge, the largest first."""
    effects = profile.effects.query("judge == @judge and prompts > 0 and variant != 'placebo'")
    biases = effects[effects["claim"].isin(CLAIMED)]
    return biases.loc[biases["effect"].abs().sort_values(ascending=False).index]


def _explained(profile: Profile, judge: str) -> pd.DataFrame:
    """The biases of a judge that another behaviour explains, the largest first."""
    rows = profile.explained[profile.explained["judge"] == judge]
    return rows.loc[rows["effect"].abs().sort_values(ascending=False).index]


def sentences(profile: Profile) -> list[str]:
    """What was found, judge by judge, with the numbers."""
    lines = []
    for judge in profile.evidence.judges:
        effects = profile.effects.query("judge == @judge and prompts > 0 and variant != 'placebo'")
        ours, biases = _explained(profile, judge), _biases(profile, judge)
        for behaviour, rows in ours.groupby("behaviour", sort=False):
            named = (_say("moved", **_written(row)) for row in rows.to_dict("records"))
            lines.append(
                _say(
                    "explained",
                    judge=judge,
                    behaviour=behaviour,
                    price=_signed(rows["price"].median()),
                    unit=unit(str(behaviour)),
                    variants="; ".join(named),
                )
            )
        own = biases[~biases["variant"].isin(ours["variant"])]
        for row in own.head(3).to_dict("records"):
            moved = markup.estimate(row["effect"], row["low"], row["high"])
            lines.append(_say("bias", moved=moved, holm=markup.p_value(row["p_holm"]), **row))
        if len(own) > 3:
            more = plural(len(own) - 3, "more bias", "more biases")
            lines.append(_say("more", judge=judge, more=more))
        claimed = effects.groupby("claim")["variant"].agg(", ".join)
        smallest_effect = markup.number(effects["smallest"][effects["claim"] == "undecided"].max())
        for claim, name in (("no bias", "no_bias"), (END, "at_end"), ("undecided", "undecided")):
            if claim in claimed:
                values = {
                    "variants": claimed[claim],
                    "margin": profile.margin,
                    "seen": smallest_effect,
                }
                lines.append(_say(name, judge=judge, **values))
        if effects.empty:
            lines.append(_say("no_pair", judge=judge))
    for row in profile.preference.to_dict("records"):
        moved = markup.estimate(row["effect"], row["low"], row["high"])
        quality = "truth" if row["quality by"] == "rule" else "scores by judges of other families"
        shown = row | {"author": row["texts by"], "moved": moved, "raw": _signed(row["raw"])}
        shown["quality"] = quality
        lines.append(_say("own_texts", **shown))
    return lines


def _written(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `analysis.probes.effects.explained` with its numbers as they are read."""
    amounts = {name: _signed(row[name]) for name in ("change", "effect")}
    rest = markup.estimate(row["rest"], row["low"], row["high"])
    return row | amounts | {"rest": rest, "share": _percent(row["share"])}


def limits(profile: Profile) -> list[str]:
    """What cannot be concluded, and why."""
    lines = list(profile.evidence.manifest["notes"])
    verdicts, effects = profile.evidence.verdicts, profile.effects
    for judge, missing in verdicts["outcome"].ne("scored").groupby(verdicts["judge"]):
        if missing.any():
            lines.append(_say("missing", missing=missing.sum(), verdicts=len(missing), judge=judge))
    if not profile.scores["truth"].notna().any():
        lines.append(_say("no_truth"))
    for judge, edits in effects[effects["claim"] == TOO_FEW].groupby("judge", sort=False):
        prompts = " to ".join(map(str, sorted({edits["prompts"].min(), edits["prompts"].max()})))
        values = {"edits": len(edits), "prompts": prompts, "fewest": FEW_PROMPTS}
        lines.append(_say("too_few", judge=judge, **values))
    undone = [row for row in effects.to_dict("records") if _undone(row, profile.margin)]
    if undone:
        rows = ", ".join(f"{row['judge']} on {row['variant']}" for row in undone)
        lines.append(_say("undone", rows=rows))
    if ends := int((effects["at_end"] > 0.1).sum()):
        lines.append(_say("ends", ends=ends, rows=len(effects)))
    return [*lines, *profile.no_preference] or ["No text was left out."]


def _undone(row: dict[str, Any], margin: float) -> bool:
    """Whether a claim fails in the worst case over the pairs without a score."""
    low, high = row["bound_low"], row["bound_high"]
    if row["unscored"] == 0 or row["claim"] in ("cannot tell", "undecided", TOO_FEW):
        return False
    biased = row["claim"] in ("bias for it", "bias against it")
    return low <= 0 <= high if biased else low < -margin or high > margin


def show(profile: Profile) -> None:
    """Print the profile."""
    tables = [
        (f"What {judge} pays for beyond the truth", effects_table(profile, judge))
        for judge in profile.evidence.judges
    ]
    for title, table in (
        *tables,
        ("Contents as they are", levels_table(profile)),
        ("All probes", probes_table(profile)),
        ("Judges next to each other", agreement_table(profile)),
        ("Own texts", profile.preference),
        ("Slots of the set", slots_table(profile)),
        ("Asked again", profile.repeats),
        ("Order swapped", profile.positions),
    ):
        if len(table):
            hidden = EFFECTS_HIDDEN if "claim" in table else ("entropy (bits)",)
            print_table(_texts(table), title, hidden)
    for line in sentences(profile) + agreement_sentences(profile) + limits(profile):
        print(line)


def _texts(table: pd.DataFrame) -> list[dict[str, str]]:
    def text(value: Any) -> str:
        return markup.number(value) if isinstance(value, float) else str(value)

    return [{str(k): text(v) for k, v in row.items()} for row in table.to_dict("records")]


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{100 * share:.0f} %"


def _signed(value: float) -> str:
    return markup.number(value, sign=True)


def _each(show: Callable[..., str], table: pd.DataFrame, *columns: str) -> list[str]:
    """What ``show`` makes of these columns, row by row."""
    return [show(*row) for row in table[list(columns)].itertuples(index=False)]
