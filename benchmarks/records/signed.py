"""What it costs that records say whose they are: reading with and without the check.

    python -m benchmarks.records.signed [steps=350] [rounds=25]

The run of `benchmarks.records.merged`, in parts and merged. Both ways must read the same tables;
then they take turns in one process, from a warm page cache, every file hashed anew each time as on
a first reading. Prints the median CPU ms of the rounds, and the median over rounds of by how much
the check makes it longer.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from statistics import median
from unittest.mock import patch

import pyarrow as pa

from benchmarks.race import read_sizes
from benchmarks.records.merged import READ, taken, whole, write
from study.cell import signature
from study.cell.merged import merge


def unchecked(folder: Path, columns: list[str]) -> pa.Table:
    with (
        patch("study.cell.parts.contradiction", lambda *_: ""),
        patch.object(signature.Contents, "altered", lambda *_: ""),
        patch.object(signature.Contents, "unread", lambda _: None),
    ):
        return whole(folder, columns)


def checked(folder: Path, columns: list[str]) -> pa.Table:
    signature.forget()
    return whole(folder, columns)


def main() -> None:
    sizes = read_sizes(steps=350, rounds=25)
    with tempfile.TemporaryDirectory() as scratch:
        apart, merged = Path(scratch) / "parts" / "cell", Path(scratch) / "merged" / "cell"
        write(apart, sizes["steps"])
        shutil.copytree(apart, merged)
        for kind, columns in READ.items():
            merge(merged / kind)
            for name, cell in (("parts", apart), ("merged", merged)):
                folder = cell / kind
                assert checked(folder, columns).equals(unchecked(folder, columns))
                times = [
                    [taken(lambda f, w=work, c=columns: w(f, c), folder) for work in WAYS]
                    for _ in range(sizes["rounds"])
                ]
                bare, with_check = (median(column) for column in zip(*times, strict=True))
                more = 100 * median(after / before - 1 for before, after in times)
                print(f"{kind:9} {name:7} {bare:8.1f} ms {with_check:8.1f} ms  {more:+5.1f} %")


WAYS = (unchecked, checked)

if __name__ == "__main__":
    main()
