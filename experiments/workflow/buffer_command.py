"""Builds an experience buffer from rows of executed programs, and asks it for examples.

A row of rows= is {id, domain, problem, program, group_key, correct, verified, total}: correct is
the judge's verdict, verified whether the rule says that the answer is right. query= is a problem
{id, domain, prompt, group_key}, in a file or as JSON itself. The result has size, refused
{unverified, duplicate, below}, retrieved [{id, similarity}], contamination (share of the kept rows
that the judge holds for right and the rule for wrong) and the buffer's hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.workflow.experience import CAP, MODES, VERSION, Buffer, Entry, Query
from experiments.workflow.problem import read_problem
from experiments.workflow.rows import (
    group_key_of,
    name_of,
    number_of,
    rows_of,
    share_of,
    text_of,
)
from study.cli import command, option, output, word
from study.config.bounds import Choice, Number
from study.errors import UserError
from study.system.files import write_json
from study.tasks.files import refuse, short


@dataclass(frozen=True)
class Options:
    """Options of the command ``buffer``: the programs, the query, and how to choose."""

    what: str = word("build an experience buffer and choose examples from it", "buffer")
    rows: Path = option("JSONL file of executed programs", required=True)
    query: str = option("problem to choose examples for: a JSON file", required=True)
    mode: str = option("how examples are chosen", "cosine", Choice(MODES))
    k: int = option("examples", 3, Number(low=1, high=CAP))
    verified: bool = option("whether the rule must say that an answer is right", True)
    quantile: float = option(
        "quantile of a domain's totals; programs below it are left out", 0.0, Number(low=0, below=1)
    )
    out: Path = output("JSON file for the result", required=True)


def read_buffer(path: Path, key: str, verified: bool = True, quantile: float = 0.0) -> Buffer:
    """The buffer of the rows in a file, which ``key`` names.
    Raises UserError: a row is not of the form, or of another version."""
    entries = [_entry(record, where) for where, record in rows_of(path, key)]
    return Buffer(verified=verified, quantile=quantile).updated(entries)


def _entry(record: Mapping[str, Any], where: str) -> Entry:
    if record.get("version", VERSION) != VERSION:
        raise UserError(
            f"{where}: a row of version {short(record['version'])}, but this version is {VERSION}."
            " Build the buffer again from the records of its run, or remove the row."
        )
    verified = number_of(record, "verified", where)
    if verified not in (None, 0.0, 1.0):
        refuse(where, f"verified {verified:g}", "verified is true, false or null")
    return Entry(
        id=name_of(record, "id", where),
        domain=text_of(record, "domain", where),
        problem=text_of(record, "problem", where),
        program=text_of(record, "program", where),
        group_key=group_key_of(record, where),
        correct=share_of(record, "correct", where),
        verified=None if verified is None else bool(verified),
        total=number_of(record, "total", where),
    )


EXAMPLE = "experiments.workflow buffer rows=rows.jsonl query=problem.json mode=mmr out=buffer.json"


@command(EXAMPLE, __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 built and asked, 2 for a user's error."""
    query = Query.of(read_problem(options.query, "query"))
    buffer = read_buffer(options.rows, "rows", options.verified, options.quantile)
    retrieved = buffer.retrieve(query, options.mode, options.k)
    result = {
        "size": len(buffer.entries),
        "refused": buffer.refused,
        "retrieved": [{"id": entry.id, "similarity": like} for entry, like in retrieved],
        "contamination": buffer.contamination,
        "sha": buffer.sha,
    }
    write_json(options.out, result)
    counts = ", ".join(f"{count} {reason}" for reason, count in buffer.refused.items())
    print(f"{len(buffer.entries)} programs kept, refused: {counts}. {options.out}")
    return 0
