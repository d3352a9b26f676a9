"""Layer 2: what is put before an operator's prompt, and which settings its requests have.

It depends on operator, domain and executor alone, and is applied between program and executor, so
that a policy can neither see nor change it. It changes the world that a policy learns in, so it is
off unless a broker is given it; the version belongs into every record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from experiments.workflow.operators.base import Operator
from study.system.tables import table

_TABLE = table(__file__)
VERSION: int = _TABLE["version"]
PARAMETERS = ("temperature", "top_p", "max_tokens")
"""Settings of a request that may be overridden."""


@dataclass(frozen=True)
class Instruction:
    """``text`` goes before the operator's prompt, empty for nothing; ``parameters`` go over the
    executor's own."""

    text: str = ""
    parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def sha(self) -> str:
        """Hash of what it changes; that of an instruction that changes nothing is empty."""
        if not self.text and not self.parameters:
            return ""
        changes = json.dumps([self.text, sorted(self.parameters.items())])
        return hashlib.sha256(changes.encode()).hexdigest()


def instruction(operator: Operator, domain: str, executor: str) -> Instruction:
    """The instruction for one operator in one domain; ``executor`` is the name of its preset."""
    by_operator = _TABLE["operators"].get(operator.name, {})
    by_executor = _TABLE["executors"].get(executor, {})
    hint = operator.hints.get(domain, "")
    lines = (by_operator.get("text", ""), hint, by_executor.get("text", ""))
    parameters = by_operator.get("parameters", {}) | by_executor.get("parameters", {})
    return Instruction("\n".join(filter(None, lines)), parameters)


def layer2(executor: str) -> Callable[[Operator, str], Instruction]:
    """What a broker takes as its ``instruct``: (operator, domain) -> instruction."""
    return partial(instruction, executor=executor)
