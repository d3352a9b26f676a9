"""What becomes of a sweep's cells: they are checked, planned or run, and reported.

``launch.run_study(cells, None)`` runs them here. Each part is loaded when it is first used: a plan
loads nothing that trains, and ``--help`` loads none of this.
"""

from study.lazy import lazily

PARTS = {
    "check_sweep": "experiments.plan.preflight",
    "show_plan": "experiments.plan.plan",
    "run_study": "experiments.launch.run",
    "supervise": "experiments.launch.pool",
    "check_policies": "experiments.plan.preflight",
    "check_configs": "experiments.plan.preflight",
    "check_writable": "experiments.plan.preflight",
}
__getattr__ = lazily("experiments.launch", PARTS)


def __dir__() -> list[str]:
    return [*PARTS]
