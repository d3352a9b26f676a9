"""The kinds of grading, and what they share: options, prompt files, replies without a grade, and
verdicts in ``[[...]]``.

A prompt keeps what never changes in front, then the instruction, then the answer, so that a server
that caches prefixes reads the shared part once per prompt group.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from judges.endpoint.dialects import Body
from judges.grading.delimiters import delimit, fill
from judges.grading.vocabulary import LONGEST
from study.answers import strip_thinking
from study.config import bounds
from study.config.simulated import DOMAINS
from study.errors import UserError
from study.rows import Row
from study.verdict import DIFFERENT, Outcome, Parsed, Reply, Request

T = TypeVar("T")
PROMPTS = Path(__file__).parent.parent / "prompts"
REFERENCE = "Reference answer, known to be right; another wording or form of it is as good:"
"""Stands before a reference in prompts that have no place for one."""
NOTHING = Request()
"""The request of a grading whose replies are read alike whatever was asked."""
TAIL = 200
"""Characters of a reply in which some published readers look for a verdict."""
SENTENCE_TOKENS = 128
"""Room for a sentence and a verdict."""
_BRACKETS = re.compile(r"\[\[([^\[\]]*)\]\]")


@dataclass(frozen=True, eq=False)
class Grading:
    """What is asked of a judge and how its reply is read; built from plain options.
    Raises UserError: an unknown option, a value that it does not take, or an unfit prompt."""

    options: dict[str, Any] = field(default_factory=dict)
    name: ClassVar[str] = ""
    version: ClassVar[str] = "2"
    """Raised when the same reply would be read differently."""
    choices: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Options of few legal values, the first the default."""
    option_names: ClassVar[tuple[str, ...]] = ("prompt",)
    """Options of any other value."""
    needed: ClassVar[tuple[str, ...]] = ()
    """What a prompt must hold."""
    optional: ClassVar[tuple[str, ...]] = ("{rubric}",)
    """Placeholders that it may hold besides."""

    def __post_init__(self) -> None:
        legal = sorted({*self.option_names, *self.choices})
        unknown = [key for key in self.options if key not in legal]
        if unknown:
            raise UserError(
                f"judge.grading.options has {unknown[0]!r}, which the grading {self.name} does not"
                f" have. Legal are {', '.join(legal)}. Type for example"
                " +judge.grading.options.prompt=mine.txt"
            )
        _ = self.chosen
        _ = self._templates

    @cached_property
    def chosen(self) -> dict[str, Any]:
        """The value of each option of few values. Raises UserError: a value that is not legal."""
        return {key: self._choose(key) for key in self.choices}

    def _choose(self, key: str) -> Any:
        """One of a few values. YAML's words for true, false and null count as ``on``, ``off`` and
        ``none`` where those are legal.
        Raises UserError: another value."""
        legal = self.choices[key]
        value = self.options.get(key, legal[0])
        yaml_names = {True: "on", False: "off", None: "none"}
        if (value is None or isinstance(value, bool)) and value not in legal:
            value = yaml_names[value]
        if not any(value is item or (value == item and isinstance(value, str)) for item in legal):
            legal_words = [
                str(item).lower() if isinstance(item, bool) else str(item) for item in legal
            ]
            raise UserError(
                f"judge.grading.options.{key}={self.options[key]!r} is not legal for the grading"
                f" {self.name}. Legal are {', '.join(legal_words)}; type for example"
                f" +judge.grading.options.{key}={legal_words[0]}."
            )
        return value

    @property
    def shows_reference(self) -> bool:
        """Whether the judge is shown ``row.reference``."""
        return self.chosen.get("reference") == "shown"

    @property
    def shows_rubric(self) -> bool:
        """Whether the judge is shown ``row.criteria``, where its prompt has a place for them."""
        return self.chosen.get("rubric") != "hidden"

    @property
    def default_prompt(self) -> str:
        """The prompt that is taken where none is named."""
        return "default"

    @cached_property
    def _template(self) -> str:
        """The prompt, with places for what belongs to a row or an answer."""
        return self.load_prompt(self.name, self.options.get("prompt", self.default_prompt))

    @cached_property
    def _templates(self) -> dict[str, str]:
        """Domain of a row -> its prompt; "" is of any other row.
        Raises UserError: as `load_prompt`, or ``prompts`` is no table of domains."""
        key, by_domain = "judge.grading.options.prompts", self.options.get("prompts") or {}
        if not isinstance(by_domain, Mapping):
            bounds.refuse(key, by_domain, "a table of domains, such as {math:math,qa:qa,code:code}")
        for domain in by_domain:
            bounds.check(f"a key of {key}", domain, bounds.Choice(DOMAINS))
        return {"": self._template} | {
            domain: self.load_prompt(self.name, prompt, f"prompts.{domain}")
            for domain, prompt in sorted(by_domain.items())
            if prompt is not None
        }

    def holds(self, text: str) -> bool:
        """Whether the prompt of any domain holds ``text``."""
        return any(text in template for template in self._templates.values())

    def load_prompt(self, family: str, prompt: Any, option: str = "prompt") -> str:
        """The template of a shipped prompt (``default``, ``strict``) of a family, or of a ``.txt``
        file, which ``option`` names.
        Raises UserError: there is no such prompt, or it lacks something of ``needed``."""
        name = str(prompt)
        path = Path(name) if name.endswith(".txt") else PROMPTS / f"{family}-{name}.txt"
        if not path.is_file():
            shipped = sorted(file.stem.split("-", 1)[1] for file in PROMPTS.glob(f"{family}-*.txt"))
            example = f"[{shipped[0]}]" if option == "ensemble" else shipped[0]
            raise UserError(
                f"judge.grading.options.{option}={name!r} is not a prompt of the grading {family}."
                f" Give one of {', '.join(shipped)}, or the path of a .txt file; type for example"
                f" +judge.grading.options.{option}={example}."
            )
        template = path.read_text(encoding="utf-8")
        missing = [text for text in self.needed if text not in template]
        if missing:
            raise UserError(
                f"The prompt {name} of the grading {family} does not hold {missing[0]}. It needs"
                f" {', '.join(self.needed)}; judges/prompts/{family}-*.txt show where to put them."
            )
        legal = {text for text in self.needed if text.startswith("{")} | set(self.optional)
        legal |= {"{reference}"} if self.shows_reference else set()
        places = re.findall(r"\{[A-Za-z_]\w*\}", template)
        strange = [place for place in places if place not in legal]
        if strange:
            fillable = strange[0] == "{reference}" and "reference" in self.choices
            raise UserError(
                f"The prompt {name} of the grading {family} holds {strange[0]}, which the grading"
                f" does not fill. Give it only {', '.join(sorted(legal))}."
                + " To fill {reference}, type judge.grading.options.reference=shown."
                * fillable
            )
        return template

    def turn(self, row: Row, **texts: str) -> list[dict[str, str]]:
        """One user turn: the template of the row's domain with the delimited prompt, rubric (where
        it is not hidden, the template has a place for it and the row criteria) and ``texts``. A
        reference that is shown stands in its place in the template, or behind the prompt."""
        return self.filled(self._templates.get(row.domain, self._template), row, **texts)

    def filled(self, template: str, row: Row, **texts: str) -> list[dict[str, str]]:
        """`turn` with another template."""
        rubric = ""
        if row.criteria and self.shows_rubric and "{rubric}" in template:
            lines = "\n".join(f"- ({item.points:g} points) {item.text}" for item in row.criteria)
            rubric = f"Criteria:\n{delimit('rubric', lines)}\n\n"
        prompt = delimit("prompt", row.prompt_text())
        reference = delimit("reference", row.reference or "") if self.shows_reference else ""
        if reference and "{reference}" not in template:
            prompt = f"{prompt}\n\n{REFERENCE}\n{reference}"
        content = fill(template, prompt=prompt, rubric=rubric, reference=reference, **texts)
        return [{"role": "user", "content": content.rstrip()}]

    @cached_property
    def prompt_sha(self) -> str:
        """16 hex digits of SHA-256 over the prompt template, and over what is laid beside it: the
        templates of single domains, the words before a reference, and a rubric that is hidden."""
        parts = [self._template]
        parts += [f"{domain}: {text}" for domain, text in self._templates.items() if domain]
        if self.shows_reference and any("{reference}" not in part for part in parts):
            parts.append(REFERENCE)
        if not self.shows_rubric:
            parts.append("rubric hidden")
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    @property
    def reply_form(self) -> str:
        """What a reply must hold to be read, for messages."""
        raise NotImplementedError

    def body(self, request: Request = NOTHING) -> Body:
        """What the request carries beside messages and sampling."""
        return {}

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """Read one reply. Labels are those of ``request.criteria``, ``unknown`` where there is
        none; with labels that are not all known the outcome is not ``scored``. Pure: the same
        reply gives the same result, and nothing is raised."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class AnswerGrading(Grading):
    """A grading that judges each answer by itself; a verdict may take several requests."""

    def problem(self, row: Row) -> str:
        """Why the row cannot be graded so, in one clause; empty where it can."""
        return ""

    def requests(self, row: Row, answer: str) -> tuple[Request, ...]:
        """The requests of one verdict; none where the row has a problem."""
        raise NotImplementedError

    def follow_up(self, row: Row, answer: str, request: Request, parsed: Parsed) -> Request | None:
        """One more request, about nothing but the criteria that the reply left out."""
        return None

    def combine(self, row: Row, parts: Sequence[tuple[Request, Parsed]]) -> Parsed:
        """The verdict that the parts make, follow-ups behind what they follow: K labels, and a
        score or the reason why there is none."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class OneRequest(AnswerGrading):
    """A grading whose verdict is one request and its reply."""

    def problem(self, row: Row) -> str:
        """Why the row cannot be graded: no reference to show; empty if it can."""
        if self.shows_reference and not (row.reference or "").strip():
            return "it has no reference answer (judge.grading.options.reference=hidden shows none)"
        return ""

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """The chat turns that ask about one answer; nothing of ``row.spec`` is in them."""
        return self.turn(row, answer=delimit("answer", answer))

    def requests(self, row: Row, answer: str) -> tuple[Request, ...]:
        """The one request; none where the row has a problem."""
        return () if self.problem(row) else (Request(self.messages(row, answer)),)

    def combine(self, row: Row, parts: Sequence[tuple[Request, Parsed]]) -> Parsed:
        """The one part; ``unparsed`` where nothing was asked."""
        if parts:
            return parts[0][1]
        return Parsed(Outcome.unparsed, reason=f"{self.problem(row)}: nothing was asked")


@dataclass(frozen=True, eq=False)
class GroupGrading(Grading):
    """A grading that judges the G answers to one prompt against each other."""

    def group_requests(self, row: Row, answers: Sequence[str]) -> tuple[Request, ...]:
        """The requests about one group."""
        raise NotImplementedError

    def group_combine(
        self, row: Row, answers: Sequence[str], parts: Sequence[tuple[Request, Parsed]]
    ) -> list[Parsed]:
        """The G verdicts that the parts make, in the order of the answers."""
        raise NotImplementedError


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
    excerpt = " ".join(text[-600:].split())
    return Parsed(Outcome.unparsed, reason=f"{reason}: …{excerpt[-60:]!r}" if excerpt else reason)


def different(*verdicts: str, text: str) -> Parsed:
    """A reply with two verdicts: one of them may be a quotation, and nothing tells which."""
    short = [word if len(word) <= 40 else f"{word[:40]}…" for word in verdicts]
    return unparsed(f"{DIFFERENT}: {' and '.join(short)}", text)


def in_brackets(reply: Reply, legal: Callable[[str], T | None], expected: str) -> T | Parsed:
    """The one verdict in the double brackets of a reply, or why there is none.

    The last brackets must hold a verdict. Others may stand before them as long as they say the
    same: of two different verdicts nobody knows which one is the judge's own and which it quotes.
    ``legal`` gives the verdict that a bare lower-case text is, or None; ``expected`` says what is
    legal."""
    text = readable(reply)
    if isinstance(text, Parsed):
        return text
    words = [inside.strip().casefold() for inside in _BRACKETS.findall(text[-LONGEST:])]
    if not words:
        return unparsed("no [[verdict]]", text)
    verdicts = [(word, value) for word in words if (value := legal(word)) is not None]
    if not verdicts or legal(words[-1]) is None:
        return unparsed(f"the last verdict is not {expected}", f"[[{words[-1]}]]")
    word, last = verdicts[-1]
    other = next((word for word, value in verdicts if value != last), None)
    if other is not None:
        return different(f"[[{other}]]", f"[[{word}]]", text=text)
    return last


def score_in_brackets(reply: Reply, legal: Callable[[str], float | None], expected: str) -> Parsed:
    """The verdict in the brackets as a score."""
    score = in_brackets(reply, legal, expected)
    return score if isinstance(score, Parsed) else Parsed(Outcome.scored, score=score)


def word_in_brackets(reply: Reply, scores: dict[str, float]) -> Parsed:
    """The score of the word in the brackets."""
    return score_in_brackets(
        reply, scores.get, f"one of {', '.join(f'[[{word}]]' for word in scores)}"
    )


def loosely(reply: Reply, tail: bool, words: tuple[str, ...]) -> Parsed:
    """1 where any of ``words`` stands in the last `TAIL` characters, or anywhere, else 0: never
    missing. Published judges are read so."""
    text = reply.text[-TAIL:] if tail else reply.text
    ending = text[-LONGEST:].casefold()
    return Parsed(Outcome.scored, score=float(any(word in ending for word in words)))


def binary_body(structured: bool, words: list[str], room: int = SENTENCE_TOKENS) -> Body:
    """What the request of such a grading carries: tokens at least, or a forced choice."""
    if structured:
        return {"structured_outputs": {"choice": [f"[[{word}]]" for word in words]}}
    return {"max_tokens_at_least": room}


def check_rows(
    grading: AnswerGrading | GroupGrading, rows: Iterable[Row], group_size: int | None = None
) -> None:
    """Find out before any training whether a task can feed a grading.
    Raises UserError: the grading needs a group and there is none, or a row that it cannot grade."""
    if isinstance(grading, GroupGrading):
        if group_size is not None:
            check_group(grading.name, group_size)
        return
    for row in rows:
        if problem := grading.problem(row):
            raise UserError(
                f"The grading {grading.name} cannot grade the row with prompt_id={row.prompt_id}:"
                f" {problem}. Correct or remove the row in the task's data, or choose another"
                " grading, for example judge.grading.name=likert."
            )


def check_group(name: str, size: int) -> None:
    """Refuse a group of one, which has no other answer to compare.
    Raises UserError: the group is smaller than two."""
    if size < 2:
        raise UserError(
            f"The grading {name} needs a group; trainer.group_size is {size}. Give 2 or more, for"
            " example trainer.group_size=8, or a grading of single answers, for example"
            " judge.grading.name=likert."
        )
