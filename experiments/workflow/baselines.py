"""The programs that a policy is compared with, all of them as classes."""

from __future__ import annotations

import functools
import random
from collections import Counter

from experiments.workflow import dsl, static
from experiments.workflow.find import find
from experiments.workflow.operators import OPERATORS
from experiments.workflow.operators.base import DOMAINS
from experiments.workflow.planted import offered, small_programs
from experiments.workflow.program import Refused
from experiments.workflow.templates import AFLOW, FIRST, TEMPLATES
from study.cell.folder import CellFolder
from study.programs.endings import Ending
from study.rows import Row


def domain_of(row: Row) -> str:
    """The domain of a row, as its problem has it."""
    return row.domain or "qa"


def offered_in(template: str) -> tuple[str, ...]:
    """The domains that offer all operators of a template."""
    tree, _ = static.read(find(TEMPLATES[template], "python"))
    assert tree is not None
    operators = [OPERATORS[name] for name in static.operators_made(tree)]
    return tuple(domain for domain in DOMAINS if all(domain in each.domains for each in operators))


def first_template(row: Row) -> str:
    """Name of the template from which AFlow's search starts on the row's data set, or domain."""
    return AFLOW.get(row.dataset, FIRST[domain_of(row)])


def random_program(row: Row, seed: int) -> str:
    """One of the small programs (`planted.small_programs`) whose operators the row's domain offers,
    by ``seed`` and row alone."""
    draw = random.Random(f"{seed} {row.prompt_id}")
    return dsl.compiled(draw.choice(_small(domain_of(row)))).python


@functools.cache
def _small(domain: str) -> list[str]:
    return [text for text in small_programs() if domain in offered(text)]


def frequent(run: CellFolder) -> dict[str, tuple[str, str]]:
    """Domain -> the program of the short form that the policy of a run wrote most often of those
    that ran to an answer, as it is written and as a class."""
    counts: dict[str, Counter[str]] = {}
    for _, table in run.records("rollouts", ["outcome", "domain", "completion"]):
        for record in table.to_pylist():
            if record["outcome"] == Ending.OK:
                counter = counts.setdefault(record["domain"] or "qa", Counter())
                counter[record["completion"].strip()] += 1
    programs = {}
    for domain, counter in counts.items():
        for text, _ in counter.most_common():
            try:
                program = find(text, "dsl")
            except Refused:  # what ran was another program, put in its place
                continue
            programs[domain] = (program.source.strip(), program.python)
            break
    return programs
