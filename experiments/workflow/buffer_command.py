"""Builds an experience buffer from rows of executed programs, and asks it for examples.

A row of rows= is {id, domain, problem, program, group_key, correct, verified, total}: correct is
the judge's verdict, verified whether the rule says that the answer is right. query= is a problem
{id, domain, prompt, group_key}, in a file or as JSON itself. The result has size, refused
{unverified, duplicate, below}, retrieved [{id, similarity}], contamination (share of the kept rows
that the judge holds for right and the rule for wrong), the buffer's hash, and without_vector
{problem: why} where url= and model= name an embedder.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.workflow.embedding import Embeddings
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
from judges.endpoint.address import check_address
from study.cli import command, option, output, word
from study.config.bounds import Choice, Number
from study.config.schema import Embedder, Endpoint
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
    url: str = option("address of an embeddings endpoint that says how alike problems are", "")
    model: str = option("name of the embedder there", "")
    api_key_env: str = option("environment variable that holds its key", "")
    out: Path = output("JSON file for the result", required=True)

    def check(self) -> None:
        """Raises UserError: an address without a model, or a model without an address."""
        if bool(self.url) != bool(self.model) or (self.api_key_env and not self.url):
            raise UserError(
                f"url={self.url} and model={self.model} name an embedder together. Give both, or"
                " neither: words then say which problems are alike."
            )
        if self.url:
            check_address(self.url, Embedder.role)


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
    key = options.api_key_env or None
    endpoint = Endpoint(url=options.url, model=options.model, api_key_env=key)
    embedder = Embedder(name=options.model, endpoint=endpoint)
    with Embeddings(embedder, None) if options.url else nullcontext() as vectors:
        buffer = replace(buffer, vectors=vectors)
        retrieved = buffer.retrieve(query, options.mode, options.k)
    result = {
        "size": len(buffer.entries),
        "refused": buffer.refused,
        "retrieved": [{"id": entry.id, "similarity": like} for entry, like in retrieved],
        "contamination": buffer.contamination,
        "sha": buffer.sha,
        "without_vector": vectors.lost if vectors is not None else {},
    }
    write_json(options.out, result)
    counts = ", ".join(f"{count} {reason}" for reason, count in buffer.refused.items())
    print(f"{len(buffer.entries)} programs kept, refused: {counts}. {options.out}")
    return 0
