"""Shared by the tests of judges: a grading that reads one word, and the fault server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from judges.faults import FaultServer
from judges.grading.base import NOTHING, OneRequest
from study.verdict import Outcome, Parsed, Reply, Request


@pytest.fixture(scope="module")
def faults() -> Iterator[Any]:
    with FaultServer() as server:
        yield server


class OneWord(OneRequest):
    """A grading whose replies are ``met`` or ``not_met`` and nothing else."""

    name = "one-word"
    version = "1"
    prompt_sha = "0" * 16
    option_names = ("body",)
    _template = ""

    def messages(self, row: Any, answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{row.prompt_text()}\n---\n{answer}"}]

    def body(self, request: Request = NOTHING) -> dict[str, Any]:
        return dict(self.options.get("body", {}))

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        if reply.finish_reason == "length":
            return Parsed(Outcome.truncated, reason="cut by the token limit")
        if not reply.text:
            return Parsed(Outcome.empty, reason="no text")
        if reply.text == "explode":
            raise IndexError("a bug in the parser")
        if reply.text not in ("met", "not_met"):
            return Parsed(Outcome.unparsed, reason="neither met nor not_met")
        return Parsed(Outcome.scored, (reply.text,), float(reply.text == "met"))


@pytest.fixture
def one_word(monkeypatch: pytest.MonkeyPatch) -> type[OneWord]:
    """The class itself, known to the project as ``grading.name=one-word``."""
    from judges.grading import GRADINGS

    monkeypatch.setitem(GRADINGS, OneWord.name, OneWord)
    return OneWord
