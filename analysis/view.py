"""Writes one page in which the answers of a study are browsed, each with its verdicts.

It holds the answers with the largest gaps between judge and truth and a random sample, and says how
many of how many. Open it in a browser: it needs no server and no network.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.answers import MOST, MOST_MB
from analysis.answers.page import write_page
from analysis.display.printed import with_problems
from study.cli import StudyOptions, command, option, output, writes
from study.config.bounds import Number
from study.screen import visible


@dataclass(frozen=True)
class Options(StudyOptions):
    """Options of `analysis.view`: the study, and how large its page of answers may be."""

    answers: int = option("most answers on the page", MOST, Number(low=1, high=50_000))
    seed: int = option("seed of the random sample", 0, Number(low=0))
    max_mb: float = option(
        "most megabytes of the page; answers are left out to keep it",
        MOST_MB,
        Number(low=0.2, high=200),
    )
    out: Path | None = output("HTML file, instead of report/answers.html in the study's folder")


@command("analysis.view study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 written, 2 a user's error."""
    key, place = ("out", options.out) if options.out else ("runs_dir", options.runs_dir)
    with writes(key, place):
        page = write_page(
            options.folder, options.out, options.answers, options.seed, options.max_mb
        )
    lines = [str(page.path), f"{page.how} {page.bytes / 1e6:.1f} MB."]
    print(visible(with_problems(lines, page.problems)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
