"""What becomes of a sweep's cells: they are checked, planned or run, and reported.

``launch.run_study(cells, None)`` runs them here. Each part is loaded when it is first used: a plan
loads nothing that trains, and ``--help`` loads none of this.
"""

from importlib import import_module
from typing import Any

PARTS = {
    "check": "experiments.preflight",
    "show_plan": "experiments.plan",
    "run_study": "experiments.launch.run",
    "supervise": "experiments.launch.pool",
}


def __getattr__(name: str) -> Any:
    if name not in PARTS:
        raise AttributeError(f"experiments.launch has no {name}; it has {', '.join(PARTS)}")
    return getattr(import_module(PARTS[name]), name)
