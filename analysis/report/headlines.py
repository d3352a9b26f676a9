"""The report's first screen in words: one sentence per judge, with its numbers.

A sentence says what training under the judge taught beyond the base arm, what that cost in truth,
and how sure both are::

    print(*headlines(gather("runs/quickstart")).values(), sep="\\n")
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from analysis.display.markup import TEXTS, bracket, cut, listed, number, p_value, render_text
from analysis.report.evidence import Evidence
from analysis.report.tables import difference, row_of, shifts_of
from analysis.report.words import FURTHEST
from study.screen import plural

SURE = 0.05
"""Holm p below which a sentence says that a behaviour was taught."""
ROUNDING = 1e-7
"""What is left of no change."""
_say = partial(render_text, "headlines")
WORDS: dict[str, list[str]] = TEXTS["taught"]
"""Behaviour -> what more and what less of it is called."""


def headlines(evidence: Evidence) -> dict[str, str]:
    """Arm -> its sentence: the base arm's is about its own shifts, the others' about what they
    moved beyond it."""
    return {arm: _headline(evidence, arm) for arm in evidence.arms}


def _headline(evidence: Evidence, arm: str) -> str:
    has_base = evidence.base is not None and arm != evidence.base
    if has_base:
        taught, sure = _taught(evidence, arm)
        if taught:
            truth, ahead = (_moved(evidence, arm, name, "diff") for name in ("truth", "gap"))
            return _say("beyond", arm=arm, taught=taught, truth=truth, ahead=ahead, sure=sure)
    others = len(evidence.arms) > 1 and not has_base
    row = row_of(evidence.score_shifts, arm, "judge_score")
    if row is None or math.isnan(row["shift"]):
        return _say("nothing", arm=arm)
    return _say(
        "alone",
        arm=arm,
        base=_say("base") if others else "",
        truth=_moved(evidence, arm, "truth", "shift"),
        ahead=_moved(evidence, arm, "gap", "shift"),
        furthest=_furthest(evidence, arm),
        runs=plural(int(row["n"]), "run"),
    )


def _taught(evidence: Evidence, arm: str) -> tuple[str, str]:
    """What an arm taught beyond the base, and how sure that is; two empty texts where the two
    have no seed in common or no behaviour that could be compared."""
    rows = shifts_of(evidence, arm).to_dict("records")
    ranked = sorted(rows, key=lambda row: -_size(evidence, row))
    ranked = [row for row in ranked if _size(evidence, row) > 1e-9]
    if not ranked:
        pairs = plural(int(rows[0]["pairs"]), "pair of runs", "pairs of runs") if rows else ""
        return (_say("no_behaviour", base=evidence.base), f"over {pairs}") if rows else ("", "")
    pairs = plural(int(ranked[0]["pairs"]), "pair of runs", "pairs of runs")
    if ranked[0]["pairs"] < 2:
        named = _named(evidence, ranked[0], "diff", names_base=True)
        return _say("perhaps", behaviours=named), _say("one_pair", pairs=pairs)
    compared = {"comparisons": int(evidence.feature_shifts["p_holm"].notna().sum())}
    sure = [row for row in ranked if row["p_holm"] < SURE][:FURTHEST]
    if sure:
        named = [_named(evidence, row, "diff", names_base=k == 0) for k, row in enumerate(sure)]
        worst = p_value(max(row["p_holm"] for row in sure))
        taught = _say("taught", behaviours=listed(named))
        return taught, _say("sure", p=worst, pairs=pairs, **compared)
    first = ranked[0]
    named = _named(evidence, first, "diff", names_base=True)
    clear = first["diff_low"] > 0 or first["diff_high"] < 0
    p = p_value(first["p_holm"])
    if clear:
        return _say("perhaps", behaviours=named), _say("likely", p=p, pairs=pairs, **compared)
    return _say("unsure", behaviours=named), _say("chance", p=p, pairs=pairs, **compared)


def _furthest(evidence: Evidence, arm: str) -> str:
    """The behaviour that moved furthest in the arm itself."""
    rows = shifts_of(evidence, arm, "shift").to_dict("records")
    first = max(rows, key=lambda row: _size(evidence, row, "shift"), default=None)
    if first is None or _size(evidence, first, "shift") <= 1e-9:
        return _say("no_furthest")
    return _say("furthest", behaviour=_named(evidence, first, "shift", names_base=False))


def _moved(evidence: Evidence, arm: str, metric: str, of: str) -> str:
    """What became of the truth, or of judge minus truth: lost, gained, or not to be told."""
    row = row_of(evidence.score_shifts, arm, metric)
    if row is None or math.isnan(row[of]):
        return _say(f"{metric}_unknown")
    value, (low, high) = row[of], _ends(evidence, row, of)
    if math.isnan(low) or low <= 0 <= high:
        if max(map(abs, (value, low, high))) < ROUNDING:
            return _say(f"{metric}_same")
        interval = bracket(low, high) or "no interval"
        return _say(f"{metric}_unclear", moved=f"{number(value, True)} {interval}")
    if value < 0:
        value, low, high = -value, -high, -low
        return _say(f"{metric}_fell", moved=number(value), interval=bracket(low, high))
    return _say(f"{metric}_rose", moved=number(value), interval=bracket(low, high))


def _named(evidence: Evidence, row: dict[str, Any], of: str, names_base: bool) -> str:
    """``longer answers (+62 words [50, 74] beyond sim-fair, +1.9 SD)``"""
    metric, value = row["metric"], row[of]
    more, less = WORDS.get(metric, [f"more {metric}", f"less {metric}"])
    sds = number(value / evidence.spread[metric], True)
    moved = f"{number(value, True)} {row['unit']}"
    moved = f"{moved} {bracket(*_ends(evidence, row, of))}".strip()
    than = f" beyond {evidence.base}" if names_base else ""
    return f"{more if value > 0 else less} ({moved}{than}, {sds} SD)"


def _size(evidence: Evidence, row: dict[str, Any], of: str = "diff") -> float:
    """How far a behaviour moved, in standard deviations over all answers; 0 where it never
    varies."""
    return abs(row[of]) / evidence.spread.get(row["metric"], math.inf)


def _ends(evidence: Evidence, row: dict[str, Any], of: str) -> tuple[float, float]:
    return cut(row) if of == "shift" else difference(evidence, row)
