"""Table, figure and sentences of an audit, for the report and for its command."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.audit.estimate import StudyAudit
from analysis.audit.plan import RISES, Share
from analysis.display.figures import ALONE, looks, marks_of, single, style
from analysis.display.markup import (
    MISSING,
    TEXTS,
    listed,
    number,
    paragraph,
    picture,
    render_text,
    sentences,
    sheet,
    signed,
    title,
    with_interval,
)
from analysis.display.printed import aligned, as_text, with_problems
from study.cell.audit import PERSON, STRETCHES
from study.screen import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def who(audit: StudyAudit) -> str:
    """The reference, for people."""
    if audit.audit.by_person:
        return f"a {PERSON}"
    names = listed(audit.audit.reference)
    return names if len(audit.audit.reference) == 1 else f"the mean of {names}"


def extent(audit: StudyAudit) -> str:
    """Whose word the truth is, and of how many answers, in a sentence."""
    groups, of = (sum(getattr(arm, name) for arm in audit.arms) for name in ("groups", "of"))
    key = "truth" if audit.is_truth else "beside_rule"
    text = render_text("audit", key, who=who(audit), groups=f"{groups:,}", of=f"{of:,}")
    return text[0].upper() + text[1:] if text.startswith(("a ", "the ")) else text


def findings(audit: StudyAudit) -> list[str]:
    """What the reference says of each arm's judge, and what missing answers may hide."""
    waiting = 0 if audit.audit.by_person else len(audit.audit.groups) - audit.audit.asked
    lines = [render_text("audit", "waiting", groups=f"{waiting:,}")] if waiting else []
    for arm in audit.arms:
        line = render_text("audit", "gap", arm=arm.arm, gap=signed(arm.gap))
        if arm.missing:
            line += " " + render_text(
                "audit",
                "missing",
                missing=f"{arm.missing:,}",
                answers=f"{arm.answers:,}",
                least=number(arm.least, sign=True),
                most=number(arm.most, sign=True),
            )
        if arm.has_rule:
            line += " " + render_text("audit", "by_rule", gap=signed(arm.by_rule))
        lines.append(line)
    return lines


def audit_table(audit: StudyAudit) -> pd.DataFrame:
    """A row for each arm."""
    rows: list[dict[str, Any]] = []
    for arm in audit.arms:
        could = f"{number(arm.least, sign=True)} to {number(arm.most, sign=True)}"
        rows.append(
            {
                "arm": arm.arm,
                "groups": f"{arm.groups:,} of {arm.of:,}",
                "answers": arm.answers,
                "missing": arm.missing,
                "judge - reference [95 %]": signed(arm.gap),
                "could be": could if arm.missing else "",
                "truth [95 %]": with_interval(arm.truth),
                "with reference": with_interval(arm.agreement),
                "judge - rule [95 %]": signed(arm.by_rule) if arm.has_rule else "",
                "runs": arm.runs,
            }
        )
    table = pd.DataFrame(rows)
    return table.loc[:, [name for name in table if name == "arm" or (table[name] != "").any()]]


@style()
def gap_by_stretch(audit: StudyAudit) -> Figure:
    """How far is each judge above the reference along the training? A line for each arm, its
    points in the middle of each tenth of the steps."""
    import seaborn as sns

    look = looks([arm.arm for arm in audit.arms])
    figure, axes = single(ALONE, 3.6)
    axes.axhline(0, color="0.7", linewidth=1, zorder=0)
    for place, arm in enumerate(audit.arms):
        marks = marks_of(look[arm.arm])
        beside = (place - (len(audit.arms) - 1) / 2) * 0.08
        middles = [n + 0.5 + beside for n in range(STRETCHES)]
        values = [each.value for each in arm.by_stretch]
        sns.lineplot(x=middles, y=values, ax=axes, label=arm.arm, linewidth=1.2, **marks)
        below, above = (
            [abs(each.value - end) for each, end in zip(arm.by_stretch, ends, strict=True)]
            for ends in zip(*((each.low, each.high) for each in arm.by_stretch), strict=True)
        )
        axes.errorbar(
            middles, values, [below, above], fmt="none", ecolor=marks["color"], elinewidth=0.8
        )
    axes.set(
        xlabel="tenth of the steps",
        ylabel="judge - reference (score)",
        xticks=[n + 0.5 for n in range(STRETCHES)],
        xticklabels=[str(n + 1) for n in range(STRETCHES)],
    )
    return figure


def audit_text(audit: StudyAudit, problems: list[str]) -> str:
    """The sentences and the table."""
    legend = TEXTS["paragraphs"]["audit"].strip()
    table = as_text(audit_table(audit))
    return with_problems([extent(audit), *findings(audit), "", table, "", legend], problems)


def section(audit: StudyAudit) -> list[str]:
    """What the audit says, for the report."""
    return [
        title("audit"),
        sentences([extent(audit), *findings(audit)]),
        picture("audit", gap_by_stretch, audit),
        sheet("audit", audit_table(audit)),
        paragraph(TEXTS["paragraphs"]["audit"]),
    ]


def plan_text(shares: Sequence[Share], *, study: str, steps: int, members: int, runs: int) -> str:
    """What each share would tell of a run, as a table, and how to begin."""
    rows = [
        {
            "share": f"{each.share:g}",
            "groups a run": f"{each.groups:,}",
            "answers": f"{each.groups * members * runs:,}",
            "gap +-": number(each.half),
            "its shift +-": number(each.shift_half),
            **{
                f"steps to the alarm, +{rise:g}": MISSING
                if isnan(steps_taken)
                else f"{steps_taken:.0f}"
                for rise, steps_taken in zip(RISES, each.delays, strict=True)
            },
        }
        for each in shares
    ]
    begin = render_text("audit", "begin", study=study)
    head = render_text("audit", "plan", runs=plural(runs, "run"), steps=steps, members=members)
    return "\n".join([head, "", *aligned(rows), "", begin])
