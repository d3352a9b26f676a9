"""Are the numbers in the pages those of the study that they are said to be from?

``python -m tests.claims study=quickstart`` computes every number that ``reading.toml`` has of a
study from its records, and prints a line for each: page, number as the page has it, as computed,
and whether it is the same, rounded alike. Without ``study=`` it takes all studies of the table, and
says of those that are not in ``runs_dir`` what makes them. ``write=true`` puts what was computed
into the pages.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from study.cli import command, option
from study.errors import UserError
from tests.claims.reading import (
    Claim,
    Computed,
    Made,
    claimed,
    claims,
    digest_of,
    rounds_to,
    studies,
    written,
)
from tests.commands import ROOT


@dataclass(frozen=True)
class Options:
    """The command line; see the module."""

    study: str = option("name of a study of the table; left out, all of them", "", empty=True)
    runs_dir: Path = option("folder that holds the studies", Path("runs"))
    write: bool = option("write the computed numbers into the pages", False)


@dataclass(frozen=True)
class Checked:
    """A number of a page and what its study gives."""

    claim: Claim
    text: str
    at: int
    """Where it begins in its page."""
    value: float
    words: str

    @property
    def verdict(self) -> str:
        """Whether the page has what was computed; unknown where the study cannot tell it yet."""
        if self.value != self.value:
            return "unknown"
        return "same" if rounds_to(self.text, self.value) else "DIFFERS"

    def line(self) -> str:
        """For people."""
        value = f"{self.value:.4g}"
        return f"{self.claim.page:24} {self.text:>8} {value:>10}  {self.verdict:8} {self.words}"


def check(study_dir: Path, made: Made, of: Sequence[Claim], root: Path = ROOT) -> list[Checked]:
    """Every number of these claims, computed from one study.
    Raises ValueError: a page has not the text of a claim. Raises LookupError: no such number."""
    computed = Computed(study_dir, made.commands)
    return [
        Checked(claim, text, at, computed.number(words), words)
        for claim in of
        for (text, at), words in zip(
            claimed(claim, (root / claim.page).read_text(encoding="utf-8")),
            claim.numbers,
            strict=True,
        )
    ]


def write(lines: Sequence[Checked], root: Path = ROOT) -> None:
    """Put what differs into the pages, in the form that each number has there."""
    for each in sorted(lines, key=lambda line: (line.claim.page, -line.at)):
        if each.verdict == "DIFFERS":
            path = root / each.claim.page
            text = path.read_text(encoding="utf-8")
            number = written(each.value, each.text)
            text = text[: each.at] + number + text[each.at + len(each.text) :]
            path.write_text(text, encoding="utf-8")


@command("tests.claims study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 nothing that could be computed differs, 1 something does, 2 a user's error."""
    every = studies()
    if options.study and options.study not in every:
        raise UserError(f"No page has numbers of study={options.study}. Legal: {', '.join(every)}.")
    differ = 0
    for name, made in every.items():
        if options.study not in ("", name):
            continue
        of = [claim for claim in claims() if claim.study == name]
        folder = (options.runs_dir / name).absolute()
        then = "; ".join(f"judgedrift {words} study={name}" for words in made.then)
        print(f"{name}, made by: {made.command}{then and f'; {then}'}")
        if not folder.is_dir():
            print(f"  not here: {sum(len(claim.numbers) for claim in of)} numbers")
            continue
        lines = check(folder, made, of)
        print("\n".join(each.line() for each in lines))
        print(f"  {len(lines)} numbers; digest of the records {digest_of(folder)}")
        if options.write:
            write(lines)
        differ += sum(each.verdict == "DIFFERS" for each in lines)
    print(f"{differ} differ")
    return min(differ, 1)


if __name__ == "__main__":
    sys.exit(main())
