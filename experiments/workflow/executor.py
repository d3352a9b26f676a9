"""Who answers the operators: anything with `ask`. Here a script, for tests and dry counts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar, cast

from experiments.workflow.operators import OPERATORS
from study.cell.completions import json_object, sound_records
from study.config.schema import Price
from study.errors import UserError
from study.screen import plural

FAILURES = ("timeout", "http_500", "empty")
ATTEMPTS = 3
"""How often the script is asked for one reply, as an endpoint's client would."""


@dataclass(frozen=True)
class Question:
    """One model call: who asks what, and how long the reply may be. ``sample`` is its place among
    the same questions of its run, so that three equal ones are three draws; ``parameters`` go over
    the executor's own settings."""

    operator: str
    messages: tuple[dict[str, str], ...]
    max_tokens: int
    sample: int = 0
    parameters: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Answer:
    """What a question got, after all attempts; it may be empty. Tokens are None where unknown.

    Attributes:
        attempts: requests sent now; 0 where the store had it.
        cost_usd: what it cost now; None where unknown.
        key: where the store keeps it; empty for nowhere.
    """

    text: str
    tokens_in: int | None = None
    tokens_out: int | None = None
    attempts: int = 1
    cost_usd: float | None = None
    key: str = ""


class Down(Exception):
    """The executor gave no reply in any attempt: nothing is said of the program."""


Number = TypeVar("Number", int, float)


def total(counts: Iterable[Number | None]) -> Number | None:
    """The sum; None where a part of it is unknown."""
    values = list(counts)
    return None if None in values else sum(value for value in values if value is not None)


class Executor(Protocol):
    """A model behind an endpoint, with its own attempts, limits and store.

    Attributes:
        name: for the records.
        price: US dollars per million tokens; None where it is unknown.
    """

    name: str
    price: Price | None

    async def ask(self, question: Question) -> Answer:
        """The reply, which may be empty. Raises Down: there is none."""
        ...


class Line(TypedDict, total=False):
    """One reply of a script; one with an operator answers only that operator, which then has no
    other. ``fail`` is one of `FAILURES`."""

    text: str
    tokens_in: int | None
    tokens_out: int | None
    fail: str | None
    operator: str | None


class Script:
    """Replies from a file, in the order of model calls, the last one again and again."""

    def __init__(self, lines: list[Line]) -> None:
        self.name = "scripted"
        self.price: Price | None = Price()
        self.lines = lines
        self._lines: defaultdict[str, list[Line]] = defaultdict(list)
        self._used: Counter[str] = Counter()
        for line in lines:
            self._lines[line.get("operator") or ""].append(line)

    async def ask(self, question: Question) -> Answer:
        """The next reply with words in it; tokens are those of all attempts."""
        replies: list[Line] = []
        text = ""
        failure = ""
        for _ in range(ATTEMPTS):
            line = self._next(question.operator)
            if (failure := line.get("fail") or "empty") in ("timeout", "http_500"):
                continue
            text = line["text"] if line.get("fail") is None else ""
            replies.append(line)
            if text.strip():
                break
        if not replies or failure in ("timeout", "http_500"):
            raise Down(f"{failure} in {ATTEMPTS} attempts")
        return Answer(
            text,
            total(line.get("tokens_in") for line in replies),
            total(line.get("tokens_out") for line in replies),
            len(replies),
        )

    def again(self) -> Script:
        """The same script from its beginning."""
        script = Script(self.lines)
        script.price = self.price
        return script

    def _next(self, operator: str) -> Line:
        name = operator if operator in self._lines else ""
        lines = self._lines.get(name)
        if not lines:
            raise Down(f"the script has no line for {operator}")
        place = min(self._used[name], len(lines) - 1)
        self._used[name] += 1
        return lines[place]


LEGAL = (
    '{"text": TEXT, "tokens_in": N, "tokens_out": N, "fail": timeout|http_500|empty, "operator":'
    " NAME} with text or fail; the other keys are optional"
)


def read_script(path: Path) -> Script:
    """The script of a file. Raises UserError: there is none, or a line is not legal."""
    lines: list[Line] = []
    for place, line in enumerate(read_lines("script", path), 1):
        wrong = ""
        for key in ("tokens_in", "tokens_out"):
            if not isinstance(line.get(key, 0), int | None) or (line.get(key) or 0) < 0:
                wrong = f"its {key} is {line[key]!r}"
        if line.get("operator") is not None and line["operator"] not in OPERATORS:
            wrong = f"its operator is {line['operator']!r}; legal are {', '.join(OPERATORS)}"
        if line.get("fail") is not None and line["fail"] not in FAILURES:
            wrong = f"its fail is {line['fail']!r}"
        if not line.get("fail") and not isinstance(line.get("text"), str):
            wrong = "it has no text"
        if wrong:
            raise UserError(f"Line {place} of script={path}: {wrong}. A line is {LEGAL}.")
        lines.append(cast(Line, line))
    if not lines:
        raise UserError(f"script={path} holds no line. A line is {LEGAL}.")
    return Script(lines)


def read_lines(key: str, path: Path) -> list[dict[str, Any]]:
    """The records of a JSONL file. Raises UserError: there is none, or a line is no JSON object."""
    if not path.is_file():
        raise UserError(f"{key}={path} is not a file. Give a file with one JSON object a line.")
    try:
        records, n_bad = sound_records(path.read_bytes(), json_object)
    except OSError as error:
        raise UserError(f"{key}={path} cannot be read: {error.strerror}.") from error
    if n_bad:
        raise UserError(
            f"{key}={path} has {plural(n_bad, 'line')} without a complete JSON object. Correct the"
            f" file, for example with: {json.dumps({'text': '...'})}"
        )
    return [record for _, record in records]
