"""What each executed program of a group is paid, and which component moves the rewards.

A row of rows= is {group, member, outcome, correct, efficiency, simplicity, format, repetition}:
shares from 0 to 1, null where unknown, and 1 is best but for repetition. judge and rule may stand
beside correct; where they do not, both are correct. source= says which of them is correct instead.
The result has rows [{group, member, reward, advantage, components}], groups [{group, n, scored,
dropped}] and the effective share of each component. A reward that is missing is null, its
advantage 0; a group with fewer than two rewards is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from experiments.workflow.rows import name_of, rows_of, share_of, word_of
from study.cli import command, option, output, word
from study.config.bounds import Choice
from study.errors import UserError
from study.programs.rewards import (
    FORMULAS,
    OK,
    OUTCOMES,
    SHAPED,
    SHARES,
    SOURCES,
    ExecutedProgram,
    Terms,
    by_source,
    effective_share,
    total,
)
from study.rewards.advantages import advantages
from study.system.files import write_json
from study.tasks.files import refuse

Place = tuple[str | int, str | int]


@dataclass(frozen=True)
class Options:
    """Options of the command ``reward``: the programs, and the formula."""

    what: str = word("compute the rewards of executed programs", "reward")
    rows: Path = option("JSONL file of executed programs", required=True)
    reward: str = option("formula", legal=Choice(tuple(FORMULAS)), required=True)
    source: str | None = option(
        "judge whose verdict counts, in place of the row's", None, Choice(SOURCES)
    )
    out: Path = output("JSON file for the result", required=True)


class PaidRow(TypedDict):
    """What one program is paid; a reward that is missing is null, its advantage 0."""

    group: str | int
    member: str | int
    reward: float | None
    advantage: float
    components: Terms | None


class PaidGroup(TypedDict):
    """One group: how many programs it has, how many of them have a reward, and whether it is
    dropped because fewer than two have."""

    group: str | int
    n: int
    scored: int
    dropped: bool


class Paid(TypedDict):
    """What executed programs are paid; ``effective_share`` is of each component."""

    rows: list[PaidRow]
    groups: list[PaidGroup]
    effective_share: dict[str, float]


def pay(played: Mapping[Place, ExecutedProgram], reward: str) -> Paid:
    """Rows, groups and effective shares of executed programs under (group, member).

    ``reward`` is one of `FORMULAS`; ``rows`` are in the order of ``played``, ``groups`` in that of
    their first rows.
    """
    groups: dict[str | int, list[Place]] = {}
    for place in played:
        groups.setdefault(place[0], []).append(place)
    terms_by_group = {
        name: FORMULAS[reward]([played[place] for place in places])
        for name, places in groups.items()
    }
    rows: dict[Place, PaidRow] = {}
    lines: list[PaidGroup] = []
    for name, places in groups.items():
        terms = terms_by_group[name]
        rewards = [total(parts) for parts in terms]
        pushed = advantages(np.array([rewards], dtype=float))[0].tolist()
        for place, parts, value, advantage in zip(places, terms, rewards, pushed, strict=True):
            rows[place] = {
                "group": place[0],
                "member": place[1],
                "reward": value,
                "advantage": advantage,
                "components": parts,
            }
        scored = sum(value is not None for value in rewards)
        lines.append({"group": name, "n": len(places), "scored": scored, "dropped": scored < 2})
    return {
        "rows": [rows[place] for place in played],
        "groups": lines,
        "effective_share": effective_share(list(terms_by_group.values())),
    }


def read_played(options: Options) -> dict[Place, ExecutedProgram]:
    """The executed programs of the file by group and member.
    Raises UserError: a row is not of the form, or stands twice."""
    played: dict[Place, ExecutedProgram] = {}
    for where, record in rows_of(options.rows, "rows"):
        place = (name_of(record, "group", where), name_of(record, "member", where))
        if place in played:
            refuse(
                where, f"member {place[1]} of group {place[0]} again", "members of a group differ"
            )
        played[place] = _read_program(record, options, where)
    return played


def _read_program(record: Mapping[str, Any], options: Options, where: str) -> ExecutedProgram:
    needed = ("correct",) if options.source is None else ("judge", "rule")
    if not any(key in record for key in needed):
        columns = ", ".join(map(str, record))
        refuse(where, f"no {' or '.join(needed)} (it has {columns})", "a missing verdict is null")
    correct = share_of(record, "correct", where)
    verdicts = {
        key: share_of(record, key, where) if key in record else correct for key in ("judge", "rule")
    }
    if options.source is not None:
        correct = by_source(options.source, **verdicts)
    shares = {key: share_of(record, key, where) for key in SHARES}
    outcome = word_of(record, "outcome", OUTCOMES, where)
    unknown = [key for key, value in shares.items() if value is None]
    if unknown and outcome == OK and correct is not None and options.reward in SHAPED:
        raise UserError(
            f"{where}: {', '.join(unknown)} is unknown of a program that ran and has a verdict."
            " Give a number from 0 to 1, or make correct null."
        )
    known_shares = {key: value for key, value in shares.items() if value is not None}
    return ExecutedProgram(outcome, correct, **known_shares, **verdicts)


@command(
    "experiments.workflow reward rows=F.jsonl reward=workflow-gated out=F.json", __doc__, Options
)
def main(options: Options) -> int:
    """Exit codes: 0 paid, 2 for a user's error."""
    result = pay(read_played(options), options.reward)
    write_json(options.out, result)
    missing = sum(row["reward"] is None for row in result["rows"])
    dropped = sum(group["dropped"] for group in result["groups"])
    print(
        f"{len(result['rows'])} rows, {missing} without reward; {len(result['groups'])} groups,"
        f" {dropped} dropped. {options.out}"
    )
    return 0
