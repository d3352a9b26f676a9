"""What a study is: its config, tasks and rewards, its cells and their records.

    >>> from study import Judge, Row, UserError, advantages, features, load_judge
    >>> load_judge("sim-verbose", "judge.sampling.votes=3").sampling.votes
    3
    >>> features.features("**Yes**, it does.")["bold"]
    1.0
    >>> advantages([[0.0, 1.0]], scale="none").tolist()
    [[-0.5, 0.5]]

``features`` is the module `study.features`; every other name is looked up in the module that makes
it when it is first used, so that ``import study`` loads nothing else. Nothing in this package
imports torch, MLflow, aiohttp or transformers.
"""

import importlib
from typing import Any

from study.lazy import lazily

FACE = {
    "Study": "study.config.schema",
    "Judge": "study.config.schema",
    "Row": "study.rows",
    "Truth": "study.rows",
    "Verdict": "study.verdict",
    "Outcome": "study.verdict",
    "Cell": "study.cell.cells",
    "UserError": "study.errors",
    "load_judge": "study.config.compose",
    "advantages": "study.rewards.advantages",
}
"""Name -> the module that makes it."""
_offered = lazily("study", FACE)


def __getattr__(name: str) -> Any:
    if name == "features":
        return importlib.import_module("study.features")
    return _offered(name)


def __dir__() -> list[str]:
    return [*FACE, "features"]
