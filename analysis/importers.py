"""What others' judge evaluations and trainers left on disk, as the two plain tables."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.external.importers import alpaca_eval, completions, ifeval, judgebench, llmbar
from study.cli import command, option, word, writes
from study.config.bounds import Choice
from study.errors import UserError
from study.screen import CONTROLS
from study.system.files import write_text

PAIRS = {"alpaca_eval": alpaca_eval, "judgebench": judgebench, "llmbar": llmbar}
COMPLETIONS = ("trl", "verl")


@dataclass(frozen=True)
class Options:
    """Options of `analysis.importers`: the file, the program that wrote it, and the columns."""

    kind: str = word("program that wrote the file", *PAIRS, "ifeval", *COMPLETIONS)
    file: Path = word("the file")
    out: Path = option("CSV file for the table", required=True)
    judge: str = option("name of the judge, if the file has none", "", only=(*PAIRS, "ifeval"))
    by: str = option("row unit", "instruction", Choice(("instruction", "prompt")), only=("ifeval",))
    truth: list[str] = option("columns of truth", [], only=COMPLETIONS)
    raters: list[str] = option("columns of other raters", [], only=COMPLETIONS)

    def check(self) -> None:
        """Refuse a table that is not CSV."""
        if self.out.suffix != ".csv":
            raise UserError(f"out={self.out} must end in .csv.")


@command("analysis.importers judgebench outputs.jsonl out=table.csv judge=gpt-4o", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 written, 2 a user's error."""
    if options.kind in COMPLETIONS:
        table = completions(options.file, options.truth, options.raters)
    elif options.kind == "ifeval":
        table = ifeval(options.file, options.judge or "rule", by=options.by)
    else:
        table = PAIRS[options.kind](options.file, options.judge)
    with writes("out", options.out):
        plain = table.map(
            lambda value: value.translate(CONTROLS) if isinstance(value, str) else value
        )
        write_text(options.out, plain.to_csv(index=False))
    following = "pairwise" if options.kind in PAIRS else "ratings"
    damaged_count = table.attrs.get("lost", 0)
    note = f" {damaged_count} damaged records are lost." if damaged_count else ""
    print(f"{len(table)} rows for python -m analysis.{following} {options.out}.{note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
