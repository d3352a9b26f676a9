"""The shares of machines that know nothing of each other: each runs some of the cells.

``sweep.engine=shard sweep.shard=1/2`` here and ``2/2`` there, or shortly ``shard=1/2``. Which cells
are whose depends on the study's cells alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, pairwise

from study.cell.cells import Cell
from study.errors import UserError

MOST = 10_000
_SHARD = re.compile(r"([0-9]{1,5})/([0-9]{1,5})", re.ASCII)


def share_of(todo: Sequence[Cell]) -> list[Cell]:
    """The cells that are run here, of the study's ``todo``: all but for ``engine=shard``.
    Raises UserError: ``sweep.shard`` is not a share, or is given to another engine."""
    sweep = todo[0].config.sweep
    if sweep.engine != "shard" and not sweep.shard:
        return list(todo)
    match = _SHARD.fullmatch(sweep.shard)
    number, count = (int(text) for text in match.groups()) if match else (0, 0)
    if not 1 <= number <= count <= MOST:
        raise UserError(
            f"sweep.shard={sweep.shard[:80]} is not a share: it must be I/N in whole numbers, with"
            f" N at most {MOST} and I from 1 to N. For the first of two machines, type shard=1/2"
        )
    if sweep.engine != "shard":
        raise UserError(
            f"sweep.shard={sweep.shard} needs sweep.engine=shard, but sweep.engine={sweep.engine}"
            f" is given. Type shard={sweep.shard}, or leave sweep.shard out."
        )
    mine = shares(todo, count)[number - 1]
    return [cell for cell in todo if cell.id in mine]


def shares(todo: Sequence[Cell], count: int) -> list[set[str]]:
    """Ids of the cells of each of ``count`` shares, whose sizes differ by one at most. The cells of
    one judge are in one share where that is so with whole judges, and else mostly."""
    judge_of = {cell.id: cell.config.judge.name for cell in todo}
    ordered = sorted(judge_of, key=lambda id: (judge_of[id], id))
    judges = [list(ids) for _, ids in groupby(ordered, key=judge_of.__getitem__)]
    whole: list[set[str]] = [set() for _ in range(count)]
    for ids in sorted(judges, key=len, reverse=True):
        min(whole, key=len).update(ids)
    sizes = [len(share) for share in whole]
    if max(sizes) - min(sizes) <= 1:
        return whole
    edges = [len(ordered) * place // count for place in range(count + 1)]
    return [set(ordered[low:high]) for low, high in pairwise(edges)]
