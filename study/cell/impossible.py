"""Rows of records that are well formed but impossible: a reader of the step gets an error instead.

A score is a finite number where the outcome is ``scored``, and nowhere else; no rollout stands
twice; a rollout's id has its step. `analysis.records` looks at several files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute

from study.cell.records import PLACE
from study.programs.endings import Ending
from study.verdict import Outcome

pc: Any = pyarrow.compute
"""Its functions are made as it is loaded, so nothing static knows of them."""
ROLES = ("acting", "shadow", "audit", "replay")
OF_A_VERDICT = ("rollout_id", "role", "judge", "sample_index")
"""Columns that no two verdicts of a step have in common."""
NUMBERS = ("truth", "judge_score", "reward", "advantage", "logprob_sum")
"""Columns of a rollout that are finite where they are known."""
NEEDED = {
    "rollouts": (*PLACE, "answer", "judge_score", "reward"),
    "replays": (*PLACE, "judge_score", "reward"),
    "verdicts": ("rollout_id", "step", "role", "judge", "outcome", "score"),
}
"""Kind -> columns that every version has written."""
PLACED = ("step", "group", "member")
MOST_PLACES = 4096
"""A step has fewer groups, and a group fewer members, unless it has as many rows."""
UNBOUNDED = "rubric"
"""How gradings begin whose scores may be below 0: criteria may take points away."""
SLACK = 1e-9
MOST_STEP = 10**12 - 1
MOST = 1e12
"""No number of a rollout or verdict is as large."""


def impossible(kind: str, rows: pa.Table) -> str:
    """Why rows of a kind cannot be, by those columns that were read; empty where they can."""
    checks = CHECKS.get(kind, ())
    return next((why for check in checks if (why := check(rows))), "")


def lacking(kind: str, names: list[str]) -> str:
    """Which columns a file of a kind lacks; empty where it has all that it needs."""
    if twice := {name for name in names if names.count(name) > 1}:
        return f"has the column {min(twice)} twice"
    schema_kind = "replays" if kind == "rollouts" and "original_score" in names else kind
    missing = [name for name in NEEDED.get(schema_kind, ()) if name not in names]
    return f"has no column {', '.join(missing)}" if missing else ""


def _has(rows: pa.Table, *names: str) -> bool:
    return rows.num_rows > 0 and set(names) <= set(rows.column_names)


def _first(rows: pa.Table, wrong: Any) -> str:
    """How many rows are wrong, and the id of the first."""
    hits = rows.filter(pc.fill_null(wrong, False))
    name = hits["rollout_id"][0].as_py() if _has(hits, "rollout_id") else None
    return f"{len(hits)} of {len(rows)} rows" + (f", first {name!r:.60}" if name else "")


def _rollout_twice(rows: pa.Table) -> str:
    return "holds a rollout twice" if _repeats(rows, "rollout_id") else ""


def _no_place(rows: pa.Table) -> str:
    """Every row says where it is, and no two rollouts are at one place."""
    if not rows.num_rows:
        return ""
    for name in ("rollout_id", *PLACED):
        if name in rows.column_names and rows[name].null_count:
            return f"has no {name} in {rows[name].null_count} of {len(rows)} rows"
    for name in PLACED:
        least, most = (0, MOST_STEP) if name == "step" else (0, max(MOST_PLACES, len(rows)) - 1)
        ends = pc.min_max(rows[name]).as_py() if name in rows.column_names else None
        if ends and (ends["min"] < least or ends["max"] > most):
            return f"has a {name} of {ends['min'] if ends['min'] < least else ends['max']}"
    if not _has(rows, *PLACED):
        return ""
    places = rows.select(PLACED).group_by([*PLACED]).aggregate([])
    return "has two rollouts with one group and place" if len(places) < len(rows) else ""


def _no_word(rows: pa.Table) -> str:
    """Every verdict says what it is and whose."""
    words = [name for name in ("role", "judge", "outcome") if name in rows.column_names]
    column = next((name for name in words if rows[name].null_count), "")
    return f"has no {column} in {rows[column].null_count} of {len(rows)} rows" if column else ""


def _no_rows(rows: pa.Table) -> str:
    return "" if rows.num_rows else "has no rows"


def _verdict_twice(rows: pa.Table) -> str:
    if not _has(rows, *OF_A_VERDICT) or not _repeats(rows, "rollout_id"):
        return ""
    with_id = rows.filter(pc.is_valid(rows["rollout_id"]))
    texts = [pc.fill_null(with_id[name].cast(pa.string()), "") for name in OF_A_VERDICT]
    distinct = pc.count_distinct(pc.binary_join_element_wise(*texts, "\x00")).as_py()
    return f"has {len(with_id) - distinct} verdicts twice" if distinct < len(with_id) else ""


def _repeats(rows: pa.Table, name: str) -> bool:
    if not _has(rows, name):
        return False
    column = rows[name]
    return pc.count_distinct(column).as_py() < len(column) - column.null_count


def _other_step(rows: pa.Table) -> str:
    """The first and the last id have the first and the last step; those between are signed."""
    if not _has(rows, "rollout_id", "step"):
        return ""
    names, steps = pc.min_max(rows["rollout_id"]).as_py(), pc.min_max(rows["step"]).as_py()
    for end in ("min", "max"):
        own, step = (names[end] or "").partition("-")[0], steps[end]
        if own.isdecimal() and len(own) == 6 and step < 1_000_000 and int(own) != step:
            return f"has rollout {names[end]!r:.40} among those of step {step}"
    return ""


def _not_finite(rows: pa.Table) -> str:
    for name in (*NUMBERS, "score"):
        if not _has(rows, name):
            continue
        finite = pc.less(pc.abs(rows[name]), MOST)
        if pc.all(finite).as_py() is False:
            return f"has a {name} that is not a finite number ({_first(rows, pc.invert(finite))})"
    return ""


def _unknown(name: str, legal: tuple[str, ...]) -> Callable[[pa.Table], str]:
    legal_values = {None, *map(str, legal)}

    def check(rows: pa.Table) -> str:
        others = set(pc.unique(rows[name]).to_pylist()) - legal_values if _has(rows, name) else None
        return f"has a {name} that does not exist ({min(others)!r:.40})" if others else ""

    return check


def _score(rows: pa.Table) -> str:
    if not _has(rows, "score"):
        return ""
    score = rows["score"]
    if _has(rows, "outcome"):
        wrong = pc.xor(pc.equal(rows["outcome"], Outcome.scored.value), pc.is_valid(score))
        if pc.any(wrong).as_py():
            return (
                "has a score without the outcome scored, or the outcome scored without a score"
                f" ({_first(rows, wrong)})"
            )
    ends = pc.min_max(score).as_py()
    if ends["min"] is None or (ends["min"] >= -SLACK and ends["max"] <= 1 + SLACK):
        return ""
    wrong = pc.greater(score, 1 + SLACK)
    if _has(rows, "grading"):
        bounded = pc.invert(pc.starts_with(rows["grading"], UNBOUNDED))
        wrong = pc.or_(wrong, pc.and_(bounded, pc.less(score, -SLACK)))
    return (
        f"has a score outside its grading's scale ({_first(rows, wrong)})"
        if pc.any(wrong).as_py()
        else ""
    )


CHECKS: dict[str, tuple[Callable[[pa.Table], str], ...]] = {
    "rollouts": (
        _no_rows,
        _rollout_twice,
        _no_place,
        _other_step,
        _not_finite,
        _unknown("outcome", tuple(Ending)),
    ),
    "verdicts": (
        _no_place,
        _no_word,
        _not_finite,
        _unknown("outcome", tuple(Outcome)),
        _score,
        _unknown("role", ROLES),
        _verdict_twice,
        _other_step,
    ),
}
"""Kind -> what is looked at, in turn."""
