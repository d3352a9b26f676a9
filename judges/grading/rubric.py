"""What the three rubric gradings share: they differ only in how many criteria one request has.

score = points of the met criteria, negative ones too / points of the positive criteria.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from judges.endpoint.dialects import Body
from judges.grading import base
from judges.grading.base import NOTHING
from judges.grading.delimiters import delimit, fill
from judges.grading.vocabulary import (
    VOCABULARIES,
    disagreement,
    form,
    largest_number,
    read_labels,
)
from study.config import bounds
from study.errors import UserError
from study.rows import Criterion, Row
from study.truth.rubric import rubric_score
from study.verdict import DIFFERENT, Outcome, Parsed, Reply, Request

FAMILY = "rubric"
"""The first part of the prompt files' names."""
TOKENS_PER_LABEL, TOKENS_PER_REASON, TOKENS_BESIDE = 16, 64, 48
"""Room that a reply gets at least, whatever the sampling allows."""

_SECTION = re.compile(r"^### (\w+)\n", re.MULTILINE)
_ORDERS = {
    "cacheable": ("instructions", "conversation", "rubric", "response"),
    "ancestor": ("conversation", "response", "rubric", "instructions"),
}


class Rubric(base.AnswerGrading):
    """Options (first value: the default):

    ``vocabulary`` met | present | bool | yes_no; ``points`` hidden | shown; ``polarity_guidance``
    on | off, advice on criteria that describe a fault; ``reason`` none | before | after the
    verdict; ``clip`` zero | none, the floor of the score; ``layout`` cacheable (response last) |
    ancestor (instructions last); ``partial`` none | renormalise, which scores over the criteria
    whose label is known and says so in ``reason``; ``structured`` false | true, a JSON schema;
    ``prompt`` default, strict, ancestor, or a .txt file with the same sections.
    Raises UserError: an unknown option, a value that it does not take, or an unfit prompt."""

    version = "4"
    choices: ClassVar = {
        "vocabulary": tuple(VOCABULARIES),
        "points": ("hidden", "shown"),
        "polarity_guidance": ("on", "off"),
        "reason": ("none", "before", "after"),
        "clip": ("zero", "none"),
        "layout": tuple(_ORDERS),
        "partial": ("none", "renormalise"),
        "structured": (False, True),
    }
    needed = ("{yes}", "{no}", "{form}")
    optional = ()
    per_request: ClassVar[int | None] = None
    """The most criteria of one request; None for all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = self.chosen["reason"]
        if self.chosen["structured"] and reason != "none":
            raise UserError(
                f"judge.grading.options.structured=true forces a {self.name} reply to be the"
                f" verdict alone, so reason={reason} cannot be given. Type"
                " +judge.grading.options.reason=none, or leave structured out."
            )

    @cached_property
    def _template(self) -> str:
        """The sections of the prompt that the options call for, without anything of a row."""
        prompt = self.options.get("prompt", "default")
        _, *parts = _SECTION.split(self.load_prompt(FAMILY, prompt))
        sections = dict(zip(parts[::2], parts[1::2], strict=True))
        pieces = ["instructions"]
        pieces += ["points"] if self.chosen["points"] == "shown" else []
        pieces += ["polarity"] if self.chosen["polarity_guidance"] == "on" else []
        pieces += [f"reason_{self.chosen['reason']}", "form"]
        missing = [section for section in pieces if section not in sections]
        if missing:
            raise UserError(
                f"The prompt {prompt} of the grading {self.name} has no section"
                f" '### {missing[0]}', which its options need. It needs"
                f" {', '.join(pieces)}; judges/prompts/{FAMILY}-default.txt shows them."
            )
        words = VOCABULARIES[self.chosen["vocabulary"]]
        yes, no = (str(word).lower() if isinstance(word, bool) else word for word in words)
        joined = "\n\n".join(sections[section].strip() for section in pieces)
        return fill(joined, yes=yes, no=no, form=form(self.chosen["vocabulary"]))

    @cached_property
    def prompt_sha(self) -> str:
        """16 hex digits of SHA-256 over all of the prompt that is not the row's or the answer."""
        content = f"{self.chosen['layout']}\n{self._template}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def chunks(self, count: int) -> list[tuple[int, ...]]:
        """Which criteria go into each request, in the order of the rubric."""
        step = self.options.get("k", self.per_request) or max(count, 1)
        return [tuple(range(start, min(start + step, count))) for start in range(0, count, step)]

    def problem(self, row: Row) -> str:
        """Why the row has no rubric score; empty where it has one."""
        texts = [item.text.strip() for item in row.criteria]
        if not texts:
            return "the rubric has no criteria"
        first = {text: number for number, text in reversed(list(enumerate(texts, 1)))}
        repeated = next((n for n, text in enumerate(texts, 1) if first[text] < n), None)
        if repeated:
            return f"criterion {repeated} of the rubric repeats an earlier one"
        if not all(item.points == 0 or 1e-9 <= abs(item.points) <= 1e9 for item in row.criteria):
            return "the rubric has points outside 1e-9 to 1e9"
        if not any(item.points > 0 for item in row.criteria):
            return "the rubric has no criterion with positive points"
        return ""

    def requests(self, row: Row, answer: str) -> tuple[Request, ...]:
        """A request per chunk; none where the row has a problem."""
        if self.problem(row):
            return ()
        return tuple(self._request(row, answer, chunk) for chunk in self.chunks(len(row.criteria)))

    def _request(self, row: Row, answer: str, criteria: tuple[int, ...]) -> Request:
        lines = (self._line(place + 1, row.criteria[place]) for place in criteria)
        blocks = {
            "instructions": self._template,
            "conversation": "Conversation:\n" + delimit("prompt", row.prompt_text()),
            "rubric": "Rubric:\n" + delimit("rubric", "\n".join(lines)),
            "response": "Response:\n" + delimit("answer", answer),
        }
        order = _ORDERS[self.chosen["layout"]]
        content = "\n\n".join(blocks[block] for block in order)
        return Request([{"role": "user", "content": content}], criteria)

    def _line(self, number: int, item: Criterion) -> str:
        """A numbered criterion; further lines of its text are indented, so numbers stand alone."""
        points = f"(points: {item.points:g}) " if self.chosen["points"] == "shown" else ""
        return f"{number}. {points}{item.text.strip()}".replace("\n", "\n   ")

    def body(self, request: Request = NOTHING) -> Body:
        """Room for every label, and a JSON schema if asked for."""
        each = TOKENS_PER_LABEL + (TOKENS_PER_REASON if self.chosen["reason"] != "none" else 0)
        extra: Body = {"max_tokens_at_least": TOKENS_BESIDE + each * len(request.criteria)}
        if not self.chosen["structured"]:
            return extra
        names = [str(place + 1) for place in request.criteria]
        word = {"enum": list(VOCABULARIES[self.chosen["vocabulary"]])}
        schema = {
            "type": "object",
            "properties": dict.fromkeys(names, word),
            "required": names,
            "additionalProperties": False,
        }
        return extra | {"structured_outputs": {"json": schema}}

    @property
    def reply_form(self) -> str:
        """A verdict for each number."""
        return f"a JSON object with a verdict for each criterion: {form(self.chosen['vocabulary'])}"

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """Labels of the criteria asked about. The score of a part is its share of met criteria,
        given where all labels are known; only ``combine`` knows the points."""
        text = base.readable(reply)
        blank = ("unknown",) * len(request.criteria)
        if isinstance(text, Parsed):
            return replace(text, labels=blank)
        numbers = [place + 1 for place in request.criteria]
        by_number = read_labels(text, numbers, self.chosen["vocabulary"])
        twice = None if by_number else disagreement(text, numbers, self.chosen["vocabulary"])
        if twice is not None:
            return replace(base.unparsed(f"{DIFFERENT}: criterion {twice}", text), labels=blank)
        labels = tuple(by_number.get(number, "unknown") for number in numbers)
        missing = _unknown(request.criteria, labels)
        if missing or not labels:
            reason = f"no label for {_listed(missing)}" if missing else "no verdict"
            return replace(base.unparsed(reason, text), labels=labels)
        return Parsed(Outcome.scored, labels, labels.count("met") / len(labels))

    def count(self, reply: Reply) -> tuple[int, bool]:
        """How many criteria a reply seems to be about, where nobody kept the rubric, and whether
        it is cut, so that there may have been more."""
        text = base.readable(reply)
        if isinstance(text, Parsed):
            return 0, False
        return largest_number(text, self.chosen["vocabulary"])

    def follow_up(self, row: Row, answer: str, request: Request, parsed: Parsed) -> Request | None:
        """Ask again for what a partial reply left out; a reply without any label is the client's
        to repeat."""
        missing = _unknown(request.criteria, parsed.labels)
        partial = 0 < len(missing) < len(request.criteria)
        return self._request(row, answer, tuple(missing)) if partial else None

    def combine(self, row: Row, parts: Sequence[tuple[Request, Parsed]]) -> Parsed:
        """K labels; the score, or ``unparsed`` (the failure of a request, if one failed)."""
        labels = ["unknown"] * len(row.criteria)
        for request, parsed in parts:
            for place, label in zip(request.criteria, parsed.labels, strict=True):
                if label != "unknown":
                    labels[place] = label
        problem = self.problem(row)
        if problem:
            return Parsed(Outcome.unparsed, tuple(labels), reason=f"{problem}: nothing to score")
        missing = set(_unknown(range(len(labels)), labels))
        outcome, reason = _failure(parts, missing) if missing else (Outcome.scored, "")
        score = rubric_score(row.criteria, labels)
        if missing and self.chosen["partial"] == "none":
            return Parsed(outcome, tuple(labels), reason=reason)
        if score is None:
            reason = f"no criterion with positive points is known; {reason}"
            return Parsed(outcome, tuple(labels), reason=reason)
        if missing:
            reason = f"renormalised over the known; {reason}"
        if self.chosen["clip"] == "zero":
            score = max(0.0, score)
        return Parsed(Outcome.scored, tuple(labels), score, reason)


class RubricBatch(Rubric):
    """All criteria of a rubric in one request: the cheapest, and one bad reply loses the most."""

    name = "rubric_batch"


class RubricItem(Rubric):
    """One request per criterion: no criterion colours another, at K times the requests."""

    name = "rubric_item"
    per_request = 1


class RubricChunk(Rubric):
    """Requests of at most ``k`` (10) criteria; ``k`` is one option more.
    Raises UserError: as ``Rubric``, or k is not a whole number above 0."""

    name = "rubric_chunk"
    option_names = (*Rubric.option_names, "k")
    per_request = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        k = self.options.get("k", self.per_request)
        where = "+judge.grading.options.k"
        bounds.check(where, bounds.check_kind(where, k, int, 10), bounds.Number(low=1), 10)


def _failure(parts: Sequence[tuple[Request, Parsed]], missing: set[int]) -> tuple[Outcome, str]:
    """The outcome and reason of a verdict without some labels: of the first request that failed
    in another way than by an unreadable reply, else ``unparsed``."""
    why = [parsed for request, parsed in parts if missing & set(request.criteria)]
    failed = [parsed for parsed in why if parsed.outcome not in (Outcome.unparsed, Outcome.scored)]
    first = (failed or why)[0]
    reason = first.reason if failed or len(why) == 1 else ""
    outcome = first.outcome if failed else Outcome.unparsed
    named = f"no label for {_listed(sorted(missing))}"
    return outcome, reason if reason.startswith(named) else ": ".join(filter(None, [named, reason]))


def _unknown(places: Iterable[int], labels: Sequence[str]) -> list[int]:
    """The places whose label is not known."""
    return [place for place, label in zip(places, labels, strict=True) if label == "unknown"]


def _listed(places: Sequence[int]) -> str:
    numbers = ", ".join(str(place + 1) for place in places)
    return f"criterion {numbers}" if len(places) == 1 else f"criteria {numbers}"
