"""What every grading is made of: its asks, its options, its prompt file, and unreadable replies.

A prompt keeps what never changes in front, then the instruction, then the answer, so that a server
that caches prefixes reads the shared part once per prompt group.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from judges.grading.delimiters import fence, fill
from study.answers import strip_thinking
from study.errors import UserError
from study.rows import Row
from study.verdict import DIFFERENT, Outcome, Parsed, Reply

PROMPTS = Path(__file__).parent.parent / "prompts"


@dataclass(frozen=True)
class Ask:
    """One request of a verdict: what is sent, and what of the verdict its reply decides."""

    messages: Sequence[dict[str, str]]
    criteria: tuple[int, ...] = ()
    """Places in ``row.criteria`` that are asked about; the judge is shown place + 1."""
    members: tuple[int, ...] = ()
    """Answers of a group that are asked about, in the order they are shown."""


class Named(Protocol):
    """What a verdict says of the grading it came from."""

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


class OneAsk(Named, Protocol):
    """A grading whose verdict is one request and its reply; built from plain options.

    It may also have ``problem(row) -> str``: why the row cannot be graded so, or nothing.
    """

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """The chat turns that ask about one answer; nothing of ``row.spec`` is in them."""
        ...

    def body(self) -> dict[str, Any]:
        """What the request carries beside messages and sampling."""
        ...

    def parse(self, reply: Reply) -> Parsed:
        """Read the grade. Pure: the same reply gives the same result, and nothing is raised."""
        ...


class Reading(Named, Protocol):
    """How the replies to asks are read, whatever they are about."""

    def body(self, ask: Ask) -> dict[str, Any]:
        """What the request carries beside messages and sampling. ``max_tokens_at_least`` raises
        the sampling's token limit where it is lower."""
        ...

    def parse(self, reply: Reply, ask: Ask) -> Parsed:
        """Read one reply. Labels are those of ``ask.criteria``, ``unknown`` where there is none;
        with labels that are not all known the outcome is not ``scored``. Pure, raises nothing."""
        ...


class Grading(Reading, Protocol):
    """A grading whose verdict on one answer may take several requests."""

    def problem(self, row: Row) -> str:
        """Why the row cannot be graded so, in one clause; empty where it can."""
        ...

    def asks(self, row: Row, answer: str) -> tuple[Ask, ...]:
        """The requests of one verdict; none where the row has a problem."""
        ...

    def narrow(self, row: Row, answer: str, ask: Ask, parsed: Parsed) -> Ask | None:
        """The one follow-up, about nothing but the criteria that the reply left out."""
        ...

    def combine(self, row: Row, parts: Sequence[tuple[Ask, Parsed]]) -> Parsed:
        """The verdict that the parts make, follow-ups behind what they follow: K labels, and a
        score or the reason why there is none."""
        ...


class GroupGrading(Reading, Protocol):
    """A grading that judges the G answers to one prompt against each other."""

    def group_asks(self, row: Row, answers: Sequence[str]) -> tuple[Ask, ...]:
        """The requests about one group."""
        ...

    def group_combine(
        self, row: Row, answers: Sequence[str], parts: Sequence[tuple[Ask, Parsed]]
    ) -> list[Parsed]:
        """The G verdicts that the parts make, in the order of the answers."""
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
            f" +judge.grading.options.prompt=mine.txt."
        )


def choose(grading: str, options: dict[str, Any], key: str, legal: Sequence[Any]) -> Any:
    """One of a few values; the first is the default. YAML's words for true, false and null count
    as ``on``, ``off`` and ``none`` where those are legal.

    Raises:
        UserError: another value.
    """
    value = options.get(key, legal[0])
    spoken = {True: "on", False: "off", None: "none"}
    if (value is None or isinstance(value, bool)) and value not in legal:
        value = spoken[value]
    if not any(value is item or (value == item and isinstance(value, str)) for item in legal):
        shown = [str(item).lower() if isinstance(item, bool) else str(item) for item in legal]
        raise UserError(
            f"judge.grading.options.{key}={options[key]!r} is nothing that the grading {grading}"
            f" can do. Give {', '.join(shown)}; type for example"
            f" +judge.grading.options.{key}={shown[0]}."
        )
    return value


def load_prompt(
    grading: str, prompt: Any, needed: Sequence[str], optional: Sequence[str] = ("{rubric}",)
) -> str:
    """The template of a shipped prompt (``default``, ``strict``) or of a file ending in ``.txt``.

    Args:
        grading: whose prompts; the first part of the shipped files' names.
        prompt: the name or the path.
        needed: what the template must hold.
        optional: placeholders that it may hold besides.

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
            f" {', '.join(needed)}; judges/prompts/{grading}-*.txt show where they stand."
        )
    legal = {text for text in needed if text.startswith("{")} | set(optional)
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
    content = fill(
        template,
        prompt=fence("prompt", row.prompt_text()),
        rubric=rubric_block(row),
        answer=fence("answer", answer),
        **words,
    )
    return [{"role": "user", "content": content.rstrip()}]


def rubric_block(row: Row) -> str:
    """The row's criteria with their points, fenced, for gradings that do not label them."""
    if not row.criteria:
        return ""
    lines = "\n".join(f"- ({item.points:g} points) {item.text}" for item in row.criteria)
    return f"Criteria:\n{fence('rubric', lines)}\n\n"


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
    shown = " ".join(text[-600:].split())
    return Parsed(Outcome.unparsed, reason=f"{reason}: …{shown[-60:]!r}" if shown else reason)


def different(one: str, other: str, text: str) -> Parsed:
    """A reply with two verdicts: one of them may be a quotation, and nothing tells which."""
    return unparsed(f"{DIFFERENT}: {_short(one)} and {_short(other)}", text)


def _short(said: str) -> str:
    return said if len(said) <= 40 else f"{said[:40]}…"
