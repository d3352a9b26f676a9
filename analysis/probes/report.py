"""A judge's profile in words: on the screen, and as one HTML file that loads nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.probes.effects import END, FEW_PROMPTS, TOO_FEW
from analysis.probes.judges import ALPHA
from analysis.probes.profile import read
from analysis.reports import markup
from analysis.reports.notebook import NOTEBOOK, render
from study.cli import print_table

if TYPE_CHECKING:
    import pandas as pd

    from analysis.probes.profile import Profile

METHOD = (
    "How to read the numbers: a bias is what an edit changes in the judge's score beyond what it "
    "changes in the rule truth; where no rule knows the truth, an edit that keeps the content is "
    "taken to keep it. Brackets are 95 % t intervals with standard errors clustered by prompt, "
    "widened where most prompts stand at one value to what prompts that were not drawn could do; p "
    "is then at least that of the sign test over prompts, which asks whether prompts move one way, "
    "so it may be small where the bracket holds 0. Shares have Wilson intervals on the effective "
    "number of texts. Holm p corrects over the "
    "variants of one judge, BH p over judges and variants together. Worst cases set each missing "
    "score to the end of the scale that moves the mean most, down and up. `smallest` is the effect "
    "that these prompts would show with a chance of 80 %: a null is worth no more than that. A "
    "judge is said to have no bias only where two one-sided tests put it within the margin. A "
    "verdict that could not be had is missing, never 0."
)


def effects_table(found: Profile, judge: str) -> pd.DataFrame:
    """The effects of one judge as they are read, the largest first."""
    table = found.effects[found.effects["judge"] == judge]
    lost = bool((table["unscored"] > 0).any())
    order = table["effect"].abs().sort_values(ascending=False, na_position="last").index
    return pd.DataFrame(
        [
            {
                "variant": row["variant"],
                "bias [95 %]": markup.estimate(row["effect"], row["low"], row["high"]),
                **(
                    {"worst cases": markup.bracket(row["bound_low"], row["bound_high"])}
                    if lost
                    else {}
                ),
                "claim": row["claim"],
                "in SDs": markup.number(row["effect_sd"], sign=True),
                "p (Holm)": markup.p_value(row["p_holm"]),
                "p (BH)": markup.p_value(row["p_bh"]),
                "smallest": markup.number(row["smallest"]),
                "p (equivalent)": markup.p_value(row["p_equivalent"]),
                "judge": markup.number(row["judge_change"], sign=True),
                "truth": markup.number(row["truth_change"], sign=True),
                "planted": markup.number(row["planted"], sign=True),
                "at an end": _percent(row["at_end"]),
                "pairs": str(row["pairs"]),
                "prompts": str(row["prompts"]),
                "unscored": str(row["unscored"]),
                "truth from": row["truth_by"],
            }
            for row in table.loc[order].to_dict("records")
        ]
    )


def levels_table(found: Profile) -> pd.DataFrame:
    """One row per judge over contents as they are: rates against truth, leniency, scale use."""
    rows = []
    for judge in found.evidence.manifest["command"]["judges"]:
        line = {"judge": judge} | _rates(found.rates, judge)
        own = found.scale[found.scale["judge"] == judge] if len(found.scale) else found.scale
        if len(own):
            first = own.iloc[0]
            ends = (first["leniency"], first["leniency_low"], first["leniency_high"])
            line |= {
                "leniency [95 %]": markup.estimate(*ends),
                "entropy (bits)": markup.number(first["entropy"]),
                "at 1": _percent(first["ceiling"]),
                "at 0": _percent(first["floor"]),
                "ties": _percent(first["ties"]),
                "texts": str(first["n"]),
                "unscored": str(first["unscored"]),
            }
        if len(own) or any(text for name, text in line.items() if name != "judge"):
            rows.append(line)
    return pd.DataFrame(rows).fillna("")


def probes_table(found: Profile) -> pd.DataFrame:
    """One row per judge over all its texts, edited and without content too: rates, length."""
    rows = []
    for judge in found.evidence.manifest["command"]["judges"]:
        line = {"judge": judge} | _rates(found.all_rates, judge)
        own = found.length[found.length["judge"] == judge] if len(found.length) else found.length
        if len(own):
            first = own.iloc[0]
            ends = (first["excess"], first["low"], first["high"])
            line["longer beyond truth [95 %]"] = markup.estimate(*ends)
        texts = found.scores[(found.scores["judge"] == judge) & found.scores["score"].notna()]
        rows.append(line | {"texts": str(len(texts))})
    return pd.DataFrame(rows).fillna("")


def _rates(table: pd.DataFrame, judge: str) -> dict[str, str]:
    own = table[table["judge"] == judge].set_index("measure")
    return {f"{name} [95 %]": _interval(own, name) for name in ("TPR", "FPR", "Youden J", "phi")}


def agreement_table(found: Profile) -> pd.DataFrame:
    """How far the judges agree with each other, as it is read."""
    return pd.DataFrame(
        [
            {
                "texts": row["texts"],
                "judges": row["judges"],
                "measure": row["measure"],
                "value [95 %]": _with_interval(row["value"], row["low"], row["high"]),
                "scored": str(row["scored"]),
                "prompts": str(row["prompts"]),
                "note": row["note"],
            }
            for row in found.agreement.to_dict("records")
        ]
    )


def agreement_sentences(found: Profile) -> list[str]:
    """What the agreement comes to, or why there is none to show."""
    lines = [
        f"{row['judges']} on {row['texts']}: {row['measure']}"
        f" {_with_interval(row['value'], row['low'], row['high'])}"
        f" ({row['scored']} {'pairs' if row['texts'] == 'pairs' else 'texts'} of"
        f" {row['prompts']} prompts)."
        for row in found.agreement.to_dict("records")
        if row["measure"] == ALPHA and not math.isnan(row["value"])
    ]
    kinds = dict(zip(found.scores["judge"], found.scores["pairwise"], strict=True))
    if len(kinds) == 1:
        return ["One judge was probed, so there is no agreement to show."]
    for pairwise, what in ((False, "single texts"), (True, "pairs")):
        alike = [judge for judge, kind in kinds.items() if kind == pairwise]
        if len(alike) == 1:
            lines.append(f"{alike[0]} alone was asked about {what}: none to compare it with.")
    return lines


def sentences(found: Profile) -> list[str]:
    """What was found, judge by judge, with the numbers."""
    lines = []
    for judge in found.evidence.manifest["command"]["judges"]:
        own = found.effects[(found.effects["judge"] == judge) & (found.effects["prompts"] > 0)]
        own = own[own["variant"] != "placebo"]
        pays = own[own["claim"].isin(["bias for it", "bias against it"])]
        pays = pays.loc[pays["effect"].abs().sort_values(ascending=False).index]
        for row in pays.head(3).to_dict("records"):
            lines.append(
                f"{judge} changes by {markup.estimate(row['effect'], row['low'], row['high'])}"
                f" beyond the truth for {row['variant']} ({row['bias']}; Holm p"
                f" {markup.p_value(row['p_holm'])}, {row['pairs']} pairs of {row['prompts']}"
                " prompts)."
            )
        if len(pays) > 3:
            lines.append(f"{judge} has {len(pays) - 3} more biases; the table below has them all.")
        none = own[own["claim"] == "no bias"]
        if len(none):
            lines.append(
                f"{judge} has no bias beyond +-{found.margin:g} for {', '.join(none['variant'])}."
            )
        stuck = own[own["claim"] == END]
        if len(stuck):
            lines.append(
                f"{judge} scores {', '.join(stuck['variant'])} as their counterparts, but at an end"
                " of its scale: a bias beyond that end would not show."
            )
        open_ = own[own["claim"] == "undecided"]
        if len(open_):
            seen = markup.number(open_["smallest"].max())
            lines.append(
                f"{judge}: undecided for {', '.join(open_['variant'])}; these prompts would show"
                f" an effect of {seen} with a chance of 80 %."
            )
        if own.empty:
            lines.append(f"{judge} has no scored pair, so nothing can be said of its biases.")
    lines += [
        f"{row['judge']} scores {row['own']} texts (by {row['texts by']}) by"
        f" {markup.estimate(row['effect'], row['low'], row['high'])} differently at equal truth,"
        f" {markup.number(row['raw'], sign=True)} without regard to it ({row['texts']} texts,"
        f" {row['prompts']} prompts)."
        for row in found.preference.to_dict("records")
    ]
    return lines


def limits(found: Profile) -> list[str]:
    """What cannot be concluded, and why."""
    lines = list(found.evidence.manifest["notes"])
    missing = (
        found.evidence.verdicts["outcome"].ne("scored").groupby(found.evidence.verdicts["judge"])
    )
    lines += [
        f"{int(flags.sum())} of {len(flags)} verdicts of {judge} are missing."
        for judge, flags in missing
        if flags.any()
    ]
    if not found.scores["truth"].notna().any():
        lines.append(
            "No rule knows the truth of these texts: there are no rates against truth, and an "
            "edit's effect rests on its keeping the content."
        )
    few = found.effects[found.effects["claim"] == TOO_FEW]
    for judge, own in few.groupby("judge", sort=False):
        counts = sorted(set(own["prompts"]))
        shown = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        lines.append(
            f"Nothing is claimed of {judge} on {len(own)} edits: {shown} prompts gave a pair with "
            f"both scores, and fewer than {FEW_PROMPTS} carry no claim."
        )
    undone = [row for row in found.effects.to_dict("records") if _undone(row, found.margin)]
    if undone:
        named = ", ".join(f"{row['judge']} on {row['variant']}" for row in undone)
        lines.append(
            "Missing verdicts could undo what is claimed, if they were all of the worst kind:"
            f" {named}."
        )
    ends = found.effects[found.effects["at_end"] > 0.1]
    if len(ends):
        lines.append(
            f"In {len(ends)} of {len(found.effects)} rows more than a tenth of the pairs stand at"
            " an end of the scale, where a bias cannot show in full: the effect may be too small."
        )
    return [*lines, *found.no_preference] or ["Nothing was left out."]


def _undone(row: dict[str, Any], margin: float) -> bool:
    """Whether a claim fails in the worst case over the pairs without a score."""
    low, high = row["bound_low"], row["bound_high"]
    if row["unscored"] == 0 or row["claim"] in ("cannot tell", "undecided", TOO_FEW):
        return False
    if row["claim"] in ("bias for it", "bias against it"):
        return low <= 0 <= high
    return low < -margin or high > margin


def show(found: Profile) -> None:
    """Print the profile."""
    hidden = ("p (BH)", "p (equivalent)", "prompts", "truth from")
    for judge in found.evidence.manifest["command"]["judges"]:
        table = effects_table(found, judge)
        if len(table):
            print_table(_texts(table), f"What {judge} pays for beyond the truth", hidden)
    levels = levels_table(found)
    if len(levels):
        print_table(_texts(levels), "Contents as they are", ("entropy (bits)",))
    for title, table in (
        ("All probes", probes_table(found)),
        ("Judges beside each other", agreement_table(found)),
        ("Own texts", found.preference),
        ("Asked again", found.repeats),
        ("Order swapped", found.positions),
    ):
        if len(table):
            print_table(_texts(table), title)
    for line in sentences(found) + agreement_sentences(found) + limits(found):
        print(line)


def write_report(folder: Path | str, margin: float, threshold: float) -> Path:
    """Execute the notebook on a folder of probes; the HTML file, with the executed notebook beside.

    Raises:
        UserError: it is not a folder of probes.
    """
    folder = Path(folder).absolute()
    read(folder)
    html = folder / "report" / "judge_profile.html"
    values = {"folder": str(folder), "margin": margin, "threshold": threshold}
    source = NOTEBOOK.with_name("judge_profile.py")
    render(source, values, html, f"{folder.name}: judge profile")
    return html


def _texts(table: pd.DataFrame) -> list[dict[str, str]]:
    def text(value: Any) -> str:
        return markup.number(value) if isinstance(value, float) else str(value)

    return [{str(k): text(v) for k, v in row.items()} for row in table.to_dict("records")]


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{100 * share:.0f} %"


def _interval(rates: pd.DataFrame, name: str) -> str:
    if name not in rates.index:
        return ""
    row = rates.loc[name]
    return _with_interval(row["value"], row["low"], row["high"])


def _with_interval(value: float, low: float, high: float) -> str:
    return f"{markup.number(value)} {markup.bracket(low, high)}".strip()
