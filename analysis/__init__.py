"""From recorded rollouts and verdicts to estimates, figures and the bias report."""

from importlib import import_module
from typing import Any

FACE = {"write_report": "analysis.reports.notebook"}


def __getattr__(name: str) -> Any:
    if name not in FACE:
        raise AttributeError(f"analysis has no {name}; it has {', '.join(FACE)}")
    return getattr(import_module(FACE[name]), name)
