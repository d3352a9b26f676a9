"""What a check found, and what a stage of a study does with the findings of its checks.

A check is a generator of findings, and a stage (the plan, the start of a sweep, a node, the doctor)
is one that runs its checks in their order by ``yield from``. The doctor shows all that is found;
every other stage is ended by the first problem, so that a check may rely on those before it.

    def check_device(todo: Sequence[Cell]) -> Iterator[Finding]:
        if len({cell.config.device for cell in todo}) > 1:
            yield problem("device", "device= is one for all cells. Type one of them.")

    stop_at_problem(check_device(todo))

What a check calls may also raise UserError, which ends a stage as a problem does.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from study.errors import UserError
from study.screen import visible
from study.system.files import say

WIDTH = 100


class State(StrEnum):
    """How grave a finding is: a note stops nothing, a problem has to be put right first."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "PROBLEM"


@dataclass(frozen=True)
class Finding:
    """What one check says of one thing."""

    what: str
    """What was looked at, such as ``disk``."""
    state: State
    message: str
    """One paragraph; what ends a stage says in it what was given, what is legal, what to type."""
    type: str = ""
    """What to type, or to do, for a line of its own; empty where nothing has to be done, or where
    the message says it."""


def ok(what: str, message: str) -> Finding:
    """A finding that asks for nothing."""
    return Finding(what, State.OK, message)


def note(what: str, message: str, type: str = "") -> Finding:
    """A finding that stops no study; ``type`` is an advice."""
    return Finding(what, State.NOTE, message, type)


def problem(what: str, message: str, type: str = "") -> Finding:
    """A finding that has to be put right first."""
    return Finding(what, State.PROBLEM, message, type)


def as_notes(findings: Iterable[Finding], planned: bool) -> Iterator[Finding]:
    """The findings, where a study is only ``planned`` as notes: its figures are shown all the
    same."""
    for finding in findings:
        yield replace(finding, state=State.NOTE) if planned else finding


def stop_at_problem(findings: Iterable[Finding]) -> None:
    """Run the checks of a stage: say each note, once per process, and run no check behind a
    problem. Raises UserError: the problem."""
    for finding in findings:
        if finding.state is State.PROBLEM:
            raise UserError(finding.message)
        if finding.state is State.NOTE:
            say(finding.message)


def print_findings(findings: Sequence[Finding]) -> int:
    """Print a line for each finding, and one for what to type; returns how many are problems."""
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        head = f"{finding.state:<8} {finding.what:<{width}}  "
        margin = " " * len(head)
        text = textwrap.fill(
            visible(finding.message),
            WIDTH,
            initial_indent=head,
            subsequent_indent=margin,
            break_on_hyphens=False,
            break_long_words=False,
        )
        print(f"{text}\n{margin}type: {visible(finding.type)}" if finding.type else text)
    return sum(finding.state is State.PROBLEM for finding in findings)
