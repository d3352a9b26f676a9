"""What an operator declares, and what it may do while it works."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from judges.grading.delimiters import fill
from study.answers import answer_of
from study.config.simulated import DOMAINS

LETTERS = string.ascii_uppercase


@dataclass(frozen=True)
class Argument:
    """One argument: ``type`` is str, int or list[str]; one with a default is not required."""

    name: str
    type: str = "str"
    required: bool = True
    default: str | int | None = None


class Desk(Protocol):
    """What the broker lends an operator for one call."""

    domain: str
    entry_point: str
    random: Random
    """Seeded by the call, so that it can be repeated."""

    async def ask(self, prompt: str) -> str:
        """The model's reply, which may be empty. The call ends where its model calls are used up,
        the budget is spent or the executor is down; an operator does not see that."""
        ...

    async def compute(self, source: str, function: str) -> tuple[str | None, str]:
        """What ``function()`` of ``source`` returned in a sandbox, as text; or None and why."""
        ...

    async def test(self, code: str) -> tuple[bool | None, str]:
        """Whether ``code`` passes the problem's public tests, and what went wrong; None where there
        are none."""
        ...


Value = str | int | list[str] | None
"""What an argument may be."""
Arguments = Mapping[str, Value]
"""Of one call, by name, each of the type that its operator declares."""
Results = dict[str, str | bool]
"""Of one call: the declared keys, ``ok`` and ``error``."""
Play = Callable[..., Awaitable[Results]]
"""``play(desk, operator, **arguments)`` turns the arguments of a call into its results; ``error``
among them says what is not as asked, and what is not said gets an empty value."""


@dataclass(frozen=True)
class Operator:
    """An operator, declared once: prompt docs, validator, broker and the child's stand-ins are made
    from this.

    Attributes:
        about: one line for the policy.
        arguments: in the order of positional ones.
        results: key -> str or bool; every call also has ``ok`` and ``error``.
        prompt: template of what the model is asked, with ``{names}`` that `play` fills.
        play: how replies become results.
        domains: where it is offered.
        max_model_calls: of one call.
        max_tokens: of one reply.
        hints: domain -> a line that layer 2 may put before the prompt.
    """

    name: str
    about: str
    arguments: tuple[Argument, ...]
    results: Mapping[str, str]
    prompt: str
    play: Play
    version: int = 1
    domains: tuple[str, ...] = DOMAINS
    executes_code: bool = False
    max_model_calls: int = 1
    max_tokens: int = 1024
    hints: Mapping[str, str] = field(default_factory=dict)

    @property
    def returns(self) -> dict[str, str]:
        """Every key of a result and its type."""
        return {**self.results, "ok": "bool", "error": "str"}

    @property
    def template_sha(self) -> str:
        """SHA-256 of the prompt's template."""
        return hashlib.sha256(self.prompt.encode()).hexdigest()

    def fill_prompt(self, **values: str) -> str:
        """The prompt with its values."""
        return fill(self.prompt, **values)

    def result(self, values: Mapping[str, str | bool]) -> Results:
        """A result with every declared key, from what a play returned."""
        empty: Results = {"str": "", "bool": False}
        error = str(values.get("error", ""))
        filled = {key: values.get(key, empty[kind]) for key, kind in self.results.items()}
        return {**filled, "ok": not error, "error": error}


def field_of(name: str, text: str) -> str | None:
    """What stands between ``<name>`` and the ``</name>`` that closes it, in any case; up to the end
    where nothing does; None where there is no such tag. A tag around a tag of its name is none."""
    begin, depth, end = -1, 0, len(text)
    for tag in re.finditer(rf"<(/?)\s{{0,8}}{name}\s{{0,8}}>", text, re.IGNORECASE):
        if begin < 0:
            if not tag[1]:
                begin, depth = tag.end(), 1
            continue
        depth += -1 if tag[1] else 1
        if not depth:
            end = tag.start()
            break
        end = tag.start() if tag[1] else len(text)
    if begin < 0:
        return None
    inner = text[begin:end].strip()
    tags = re.compile(rf"</?\s{{0,8}}{name}\s{{0,8}}>", re.IGNORECASE)
    return tags.sub("", inner).strip()


def strip_thinking(text: str) -> str:
    """A reply without thinking; all of it where it was cut off while it thought, which may be a tag
    that is asked for."""
    answer = answer_of(text)
    return text.strip() if answer is None else answer.strip()


def place_of(reply: str, n: int) -> int | None:
    """Which of ``n`` lettered solutions a reply names, from 0; None where it names none or several.
    A letter counts alone, in a tag, or behind "solution", "answer" or "option"."""
    text = field_of("solution_letter", reply) or strip_thinking(reply)
    for pattern in (
        r"\A[\s\"'`(\[*]{0,8}([A-Za-z])[\s\"'`)\]*.:]{0,8}\Z",
        r"(?i:\b(?:solution|answer|option|choice)(?:\s{1,4}is)?\s{0,4}:?\s{0,4})[(\[*\"]{0,2}([A-Z])\b",
        r"\A[\s\"'`(\[*]{0,8}([A-Z])[)\].:*]",
    ):
        places = {LETTERS.index(letter.upper()) for letter in re.findall(pattern, text)}
        if len(places) == 1 and (place := places.pop()) < n:
            return place
        if places:
            return None
    return None


def lettered(solutions: list[str]) -> str:
    """Solutions under letters, for a prompt."""
    return "\n\n".join(f"{LETTERS[n]}:\n{text}" for n, text in enumerate(solutions))


def code_of(reply: str, blocks: list[str], is_wanted: Callable[[str], bool]) -> str:
    """The code of a reply: of its fenced ``blocks`` the last that ``is_wanted``, else the first,
    else all of it."""
    return next(
        (block for block in reversed(blocks) if is_wanted(block)), [*blocks, reply][0]
    ).strip()
