"""Layer 2: what is put before an operator's prompt, and which settings its requests have.

It depends on operator, domain and executor alone, and is applied between program and executor, so
that a policy can neither see nor change it. It changes the world that a policy learns in, so it is
off unless asked for; the version belongs into every record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from study.tables import table

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


def instruction(
    operator: str, hints: Mapping[str, str], domain: str, executor: str, on: bool = False
) -> Instruction:
    """The instruction for one operator in one domain under one executor.

    Args:
        operator: its name.
        hints: domain -> the operator's own line for it.
        executor: name of its preset.
        on: whether layer 2 is in use; without it nothing is changed.
    """
    if not on:
        return Instruction()
    by_operator = _TABLE["operators"].get(operator, {})
    by_executor = _TABLE["executors"].get(executor, {})
    lines = (by_operator.get("text", ""), hints.get(domain, ""), by_executor.get("text", ""))
    parameters = by_operator.get("parameters", {}) | by_executor.get("parameters", {})
    return Instruction("\n".join(filter(None, lines)), parameters)
