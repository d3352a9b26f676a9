"""What every grading is made of: its options, its prompt file, and the replies nobody can read.

A prompt keeps what never changes in front, then the instruction, then the answer, so that a server
that caches prefixes reads the shared part once per prompt group.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from experiments.errors import UserError
from experiments.tasks.row import Row
from judges.fence import fence, fill
from judges.thinking import strip_thinking
from judges.verdict import Outcome, Parsed, Reply

PROMPTS = Path(__file__).parent.parent / "prompts"


class Grading(Protocol):
    """What is asked of a judge and how its reply is read; built from plain options."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Raised when the same reply would be read differently."""
        ...

    @property
    def prompt_sha(self) -> str:
        """16 hex digits of SHA-256 over the prompt template."""
        ...

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """The chat turns that ask about one answer; nothing of ``row.spec`` is in them."""
        ...

    def body(self) -> dict[str, Any]:
        """What the request carries beside messages and sampling."""
        ...

    def parse(self, reply: Reply) -> Parsed:
        """Read the grade. Pure: the same reply gives the same result, and nothing is raised."""
        ...


def check_options(grading: str, options: dict[str, Any], known: Iterable[str]) -> None:
    """Refuse options that the grading does not have.

    Raises:
        UserError: naming the legal ones.
    """
    known = sorted(known)
    unknown = [key for key in options if key not in known]
    if unknown:
        raise UserError(
            f"judge.grading.options has {unknown[0]!r}, which the grading {grading} does not know."
            f" It takes {', '.join(known)}; type for example"
            f" +judge.grading.options.prompt=strict."
        )


def load_prompt(grading: str, prompt: Any, needed: Sequence[str]) -> str:
    """The template of a shipped prompt (``default``, ``strict``) or of a file ending in ``.txt``.

    Raises:
        UserError: there is no such prompt, or it lacks something of ``needed``.
    """
    name = str(prompt)
    path = Path(name) if name.endswith(".txt") else PROMPTS / f"{grading}-{name}.txt"
    if not path.is_file():
        shipped = sorted(file.stem.split("-", 1)[1] for file in PROMPTS.glob(f"{grading}-*.txt"))
        raise UserError(
            f"judge.grading.options.prompt={name!r} is no prompt of the grading {grading}. Give"
            f" one of {', '.join(shipped)}, or the path of a .txt file; type for example"
            f" +judge.grading.options.prompt={shipped[0]}."
        )
    template = path.read_text(encoding="utf-8")
    missing = [text for text in needed if text not in template]
    if missing:
        raise UserError(
            f"The prompt {name} of the grading {grading} does not hold {missing[0]}. It needs"
            f" {', '.join(needed)}; judges/prompts/{grading}-default.txt shows where they stand."
        )
    legal = {text for text in needed if text.startswith("{")} | {"{rubric}"}
    strange = [place for place in re.findall(r"\{[A-Za-z_]\w*\}", template) if place not in legal]
    if strange:
        raise UserError(
            f"The prompt {name} of the grading {grading} holds {strange[0]}, which nothing fills."
            f" Give it {', '.join(sorted(legal))} and no other."
        )
    return template


def prompt_sha(template: str) -> str:
    """16 hex digits of SHA-256 over a template."""
    return hashlib.sha256(template.encode()).hexdigest()[:16]


def ask(template: str, row: Row, answer: str, **words: str) -> list[dict[str, str]]:
    """One user turn: the template with the fenced prompt, rubric (if any) and answer."""
    rubric = ""
    if row.criteria:
        lines = "\n".join(f"- ({item.points:g} points) {item.text}" for item in row.criteria)
        rubric = f"Criteria:\n{fence('rubric', lines)}\n\n"
    content = fill(
        template,
        prompt=fence("prompt", row.prompt_text()),
        rubric=rubric,
        answer=fence("answer", answer),
        **words,
    )
    return [{"role": "user", "content": content.rstrip()}]


def readable(reply: Reply) -> str | Parsed:
    """The reply's answer without thinking, or the result where there is nothing to read."""
    if reply.finish_reason == "length":
        return Parsed(Outcome.truncated, reason="the reply was cut at the token limit")
    if reply.finish_reason == "content_filter":
        return Parsed(Outcome.refused, reason="the endpoint filtered the answer")
    text, _, closed = strip_thinking(reply.text)
    if text:
        return text
    if not closed:
        return Parsed(Outcome.empty, reason="the thinking was never closed")
    only = reply.reasoning.strip() or reply.text.strip()
    return Parsed(Outcome.empty, reason="there is only thinking" if only else "the reply is empty")


def unparsed(reason: str, text: str) -> Parsed:
    """A reply in which no grade was found, with the end of it for people to look at."""
    shown = " ".join(text.split())
    return Parsed(Outcome.unparsed, reason=f"{reason}: …{shown[-60:]!r}" if shown else reason)
