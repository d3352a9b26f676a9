"""Imports of workflow programs, AFlow's and MetaGPT's, that stand for names they are given."""

from __future__ import annotations

from collections.abc import Sequence

SCOPE_NAMES = ("operator", "prompt_custom", "create_llm_instance", "DatasetType", "CostManager")
"""The names that a program has without any import."""
OPERATORS, PROMPTS = "template.operator", "prompt"
"""The ends of the modules that are imported under a name of their own."""
MEMBERS = {
    "scripts.async_llm": "create_llm_instance",
    "metagpt.provider.llm_provider_registry": "create_llm_instance",
    "scripts.evaluator": "DatasetType",
    "metagpt.ext.aflow.scripts.evaluator": "DatasetType",
    "metagpt.utils.cost_manager": "CostManager",
}
"""Module -> the one name that is imported from it."""


def ends(module: str, end: str) -> bool:
    """Whether the dotted name ``module`` ends with the parts of ``end``."""
    return module == end or module.endswith(f".{end}")


def is_module(module: str, alias: str | None) -> bool:
    """Whether ``import module as alias`` is a header."""
    return (alias == "operator" and ends(module, OPERATORS)) or (
        alias == "prompt_custom" and ends(module, PROMPTS)
    )


def is_member(module: str, names: Sequence[str]) -> bool:
    """Whether ``from module import names`` is a header."""
    return list(names) == [MEMBERS.get(module)]
