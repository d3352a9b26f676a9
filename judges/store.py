"""Looks after a store of replies: ``python -m judges.store stats`` counts what it holds.

``verify`` checks it, ``export`` and ``copy`` write it elsewhere, ``merge`` makes one store of
several.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from judges.ask.connections import open_to_read
from judges.ask.merging import merge
from judges.ask.replies import Store
from judges.ask.stored import copy, count, export, stats, verify
from study.cli import command, option, word, writes
from study.errors import UserError


@dataclass(frozen=True)
class Options:
    """What is done with reply stores, and their files."""

    what: str = word(
        "count the replies, check, export or copy the store, or merge several",
        *("stats", "verify", "export", "copy", "merge"),
    )
    db: Path = option("the store, verdicts.db in a folder of runs", Path("runs/verdicts.db"))
    out: Path | None = option(
        "Parquet file with one row per request (replies.parquet), or file of the copy",
        only=("export", "copy"),
    )
    sources: list[Path] = option(
        "stores to merge into db", [], required=True, key="from", only=("merge",)
    )

    def check(self) -> None:
        """Refuse a copy without a place, or onto itself."""
        if self.what == "copy" and self.out is None:
            raise UserError("judges.store copy needs out= (file of the copy).")
        for path in [*self.sources, *([self.out] if self.out else [])]:
            if path.resolve() == self.db.resolve():
                raise UserError(f"{path} is db itself. Name another file.")


@command("judges.store stats db=runs/verdicts.db", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0, 1 where ``verify`` found something, 2 for a user's error."""
    db, out = options.db, options.out
    if options.what == "merge":
        return _merge(options.sources, db)
    open_to_read(db).close()
    if options.what == "stats":
        for key, value in stats(db).items():
            print(f"{key:11} {value}")
    elif options.what == "export":
        out = out or Path("replies.parquet")
        with writes("out", out):
            print(f"{export(db, out)} requests written to {out}")
    elif options.what == "copy" and out is not None:
        with writes("out", out):
            print(f"{copy(db, out)} bytes written to {out}")
    else:
        wrong = verify(db)
        print("\n".join(wrong) if wrong else f"{count(db)} replies, all sound")
        return 1 if wrong else 0
    return 0


def _merge(sources: Sequence[Path], db: Path) -> int:
    for path in sources:
        open_to_read(path).close()  # before a new file is made
    with Store(db) as store:
        merged = merge(sources, store.transaction)
        total = store.count()
    print(
        f"{db} holds {total} replies: {merged.new} are new, {merged.replaced} were replaced by"
        f" earlier ones, {merged.kept} were kept"
    )
    for path, rows in merged.unusable.items():
        if rows:
            print(f"{rows} rows of {path} cannot be used and were left out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
