"""The operators that a program may call. Each is one file here, with an `OPERATOR`; a file more is
an operator more."""

from __future__ import annotations

import importlib
import pkgutil

from experiments.workflow.operators.base import Operator

ORDER = (
    "Custom AnswerGenerate CustomCodeGenerate ScEnsemble MdEnsemble Programmer Test Format Review"
    " Revise"
).split()


def declared() -> dict[str, Operator]:
    """Name -> operator, in the order of the published ten; those that are new come last."""
    modules = [
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
        if module.name != "base"
    ]
    operators = sorted(
        (module.OPERATOR for module in modules),
        key=lambda operator: (
            ORDER.index(operator.name) if operator.name in ORDER else len(ORDER),
            operator.name,
        ),
    )
    return {operator.name: operator for operator in operators}


OPERATORS = declared()

__all__ = ["OPERATORS", "ORDER", "Operator", "declared"]


def __dir__() -> list[str]:
    return [*__all__]
