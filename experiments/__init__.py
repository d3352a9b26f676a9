"""The roof: from a study's cells to their records.

    from experiments import Scorer, make_trainer, run_cell

    run_cell(Path("runs/my-study/sim-fair-seed0-1a2b3c4d"))  # train, or go on where it stopped

`run_cell` trains one cell of a study to its end. `make_trainer` builds TRL's GRPO trainer for it,
and `Scorer` is the reward function that this trainer calls: the acting judge, the shadow judges,
the rules and the truth about each rollout. Each is loaded when it is first used; ``import
experiments`` loads no torch.
"""

from pathlib import Path
from runpy import run_path

lazily = run_path(str(Path(__file__).parents[1] / "study" / "lazy.py"))["lazily"]
"""Read by its path, as another folder may have the name of a package that is needed here."""
FACE = {
    "Scorer": "experiments.trainer.scorer",
    "make_trainer": "experiments.trainer.grpo",
    "run_cell": "experiments.train",
}
__all__ = ["Scorer", "make_trainer", "run_cell"]


__getattr__ = lazily("experiments", FACE)


def __dir__() -> list[str]:
    return [*__all__]
