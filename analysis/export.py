"""Writes the answers of a study, with every judge's verdicts, as files for other programs.

csv and parquet write one file, a row for each verdict on each answer; hf writes a folder of the
same rows for Hugging Face's datasets; inspect writes a folder of .eval logs, one or more of each
run, for ``inspect view`` (pip install -e '.[inspect]').
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.answers.files import check_new, write_csv, write_hf, write_parquet
from analysis.answers.inspect_logs import write_inspect
from analysis.answers.reading import read_answers
from analysis.display.printed import with_problems
from study.cli import StudyOptions, check_place, command, option, writes
from study.config.bounds import Choice
from study.errors import UserError
from study.screen import visible

FILES, FOLDERS = ("csv", "parquet"), ("hf", "inspect")
WRITERS = {"csv": write_csv, "parquet": write_parquet, "hf": write_hf, "inspect": write_inspect}


@dataclass(frozen=True)
class Options(StudyOptions):
    """Options of `analysis.export`: the study, the format, and the file or folder."""

    format: str = option("format of the files", "", Choice((*FILES, *FOLDERS)), required=True)
    out: Path = option("file to write, or the new folder of hf and inspect", None, required=True)

    def check(self) -> None:
        """Refuse a place that cannot be written, before anything is read."""
        super().check()
        if self.format in FILES:
            check_place("out", self.out)


@command("analysis.export study=quickstart format=parquet out=answers.parquet", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 written, 2 a user's error."""
    if options.format in FOLDERS:
        check_new("out", options.out)
    answers = read_answers(options.folder)
    if not answers.sources:
        raise UserError(
            f"study={options.study} has no recorded answer to export. To see its progress, type:"
            f" judgedrift status study={options.study}"
        )
    with writes("out", options.out):
        count = WRITERS[options.format](answers, options.out)
    noun = "answers" if options.format == "inspect" else "rows"
    print(visible(with_problems([str(options.out), f"{count:,} {noun}"], answers.problems)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
