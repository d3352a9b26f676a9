"""Writes the page of answers: one file with its data, style and script, which needs nothing else.

Whatever a policy, a judge or a task wrote goes in as JSON that no reader of HTML takes for markup,
and the script makes text nodes of it. The page's policy lets no other script run, loads nothing,
and forbids the script to make elements from text.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.answers import MOST, MOST_MB
from analysis.answers.choice import ALL, BOTH, GAP, RANDOM, STEPS, choose
from analysis.answers.content import content, escaped
from analysis.answers.reading import read_answers
from analysis.display.markup import environment
from study.cell.places import shown
from study.errors import UserError
from study.system.files import clear_leftovers, write_text

WEB = Path(__file__).parent / "web"
PLACE = "report/answers.html"
"""Where the page is in a study's folder, beside the report."""
FRAME = 64_000
"""Bytes that are kept for what is not an answer: style, script, names."""


@dataclass(frozen=True)
class Written:
    """A page, and what it says of itself."""

    path: Path
    bytes: int
    how: str
    problems: list[str]


def write_page(
    study_dir: Path | str,
    out: Path | None = None,
    most: int = MOST,
    seed: int = 0,
    most_mb: float = MOST_MB,
) -> Written:
    """Write the page of a study's answers.

    Args:
        out: the file; without it `PLACE` in the study's folder.
        most: answers that it holds at most.
        seed: of the random sample.
        most_mb: megabytes that it has at most; answers are left out for it.

    Raises:
        UserError: there is no answer on record, or the study has another format.
    """
    answers = read_answers(study_dir)
    choice = choose(answers, most, seed)
    if not choice.total:
        why = answers.problems[0] if answers.problems else "no run of it has finished a step"
        raise UserError(
            f"{shown(answers.folder)} has no recorded answer: {why}. To see its progress, type:"
            f" python -m experiments.monitor study={answers.folder.name}"
        )
    page_content = content(answers, choice, int(most_mb * 1e6) - FRAME)
    path = out or answers.folder / PLACE
    text = rendered(page_content)
    clear_leftovers((answers.folder / PLACE).parent)
    write_text(path, text)
    return Written(path, len(text.encode()), how(page_content), answers.problems)


def rendered(page_content: dict[str, Any]) -> str:
    """The page of what `content` told."""
    script, style = (
        (WEB / name).read_text(encoding="utf-8").strip() for name in ("page.js", "page.css")
    )
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )
    page = environment(WEB).get_template("page.html")
    data = escaped(page_content)
    return page.render(
        content=page_content,
        how=how(page_content),
        policy=policy,
        style=style,
        script=script,
        data=data,
    )


def _hash(text: str) -> str:
    """What a Content-Security-Policy calls an inline script or style."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def how(page_content: dict[str, Any]) -> str:
    """How many of a study's answers a page holds, and how they were chosen."""
    count, total = len(page_content["answers"]), page_content["total"]
    if page_content["whole"]:
        return f"All {total:,} answers of the study are here."
    why = Counter(row[page_content["fields"].index("why")] for row in page_content["answers"])
    parts = [f"Here are {count:,} of the study's {total:,} answers."]
    if why[GAP] + why[BOTH]:
        parts.append(
            f"{why[GAP] + why[BOTH]:,} have the largest gaps between judge and truth, either way, "
            "with an equal share for each arm."
        )
    if why[RANDOM] + why[BOTH]:
        parts.append(
            f"{why[RANDOM] + why[BOTH]:,} are a random sample (seed {page_content['seed']}): "
            "prompts drawn at random, and one answer of each group that a run gave to them at up "
            f"to {STEPS} random steps; where these are too few, answers drawn from all."
        )
    if why[BOTH]:
        parts.append(f"{why[BOTH]:,} are both.")
    if why[ALL]:
        parts.append(
            "They were chosen alternately from those with the largest gaps between judge and"
            f" truth, either way, and from a random order (seed {page_content['seed']})."
        )
    if count < page_content["chosen"]:
        parts.append(
            f"{page_content['chosen'] - count:,} more were left out to keep the page small."
        )
    return " ".join(parts)
