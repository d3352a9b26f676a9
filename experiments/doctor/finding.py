"""What was found of one part of this machine, and what to type where it is not as it should be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How grave a finding is; only a problem keeps the quickstart or a named model from working."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "PROBLEM"


@dataclass(frozen=True)
class Finding:
    """One line of the screen."""

    what: str
    state: State
    message: str
    type: str = ""
    """What to type, or to do; empty where nothing has to be done."""


def ok(what: str, message: str) -> Finding:
    """A finding that asks for nothing."""
    return Finding(what, State.OK, message)


def note(what: str, message: str, type: str = "") -> Finding:
    """A finding that stops no study; ``type`` is an advice."""
    return Finding(what, State.NOTE, message, type)


def problem(what: str, message: str, type: str) -> Finding:
    """A finding that has to be put right first, by what ``type`` says."""
    return Finding(what, State.PROBLEM, message, type)
