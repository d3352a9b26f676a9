"""How the program of one rollout ended."""

from __future__ import annotations

from enum import StrEnum


class Ending(StrEnum):
    """How a rollout ended: one of these. The last two say nothing of the program."""

    OK = "ok"
    SYNTAX_ERROR = "syntax_error"
    FORBIDDEN = "forbidden"
    CONTRACT_ERROR = "contract_error"
    DRY_RUN_ERROR = "dry_run_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    BUDGET_EXCEEDED = "budget_exceeded"
    OPERATOR_ERROR = "operator_error"
    SANDBOX_ERROR = "sandbox_error"


REFUSED = (
    *(Ending.SYNTAX_ERROR, Ending.FORBIDDEN, Ending.CONTRACT_ERROR),
    Ending.DRY_RUN_ERROR,
)
"""Endings of programs that were not run, the gravest first."""
INFRASTRUCTURE = (Ending.OPERATOR_ERROR, Ending.SANDBOX_ERROR)
"""Endings that no program is to blame for."""
