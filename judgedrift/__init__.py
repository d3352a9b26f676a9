"""The face of the four packages, for a notebook or a script.

    import judgedrift as jd

    jd.ask("sim-verbose", "Name a fruit.", "An apple.").score
    study = jd.sweep(judge=["sim-fair", "sim-verbose"], seed=[0, 1], study="mine")
    study = jd.read("runs/mine")                      # the same, later
    study.shift("length", judge="sim-verbose", beyond="sim-fair")
    jd.compare("runs/mine", "runs/quickstart").shifts
    jd.forecast(judges=["sim-flattery"])

Each is loaded when it is first used: ``import judgedrift`` loads nothing else. The packages
`study`, `judges`, `analysis` and `experiments` have all the rest.
"""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.compare.estimate import compare as compare
    from analysis.forecast.judges import forecast as forecast
    from analysis.study import Study as Study
    from analysis.study import read_study as read
    from experiments.studies.run import sweep as sweep
    from judges.ask.once import ask as ask

_lazily = run_path(str(Path(__file__).parents[1] / "study" / "lazy.py"))["lazily"]
"""Read by its path, as another folder may have the name of one of the packages."""
_FACE = {
    "Study": "analysis.study",
    "ask": "judges.ask.once",
    "compare": "analysis.compare.estimate",
    "forecast": "analysis.forecast.judges",
    "read": "analysis.study:read_study",
    "sweep": "experiments.studies.run",
}
"""Name -> where it stands."""
__all__ = ["Study", "ask", "compare", "forecast", "read", "sweep"]
__getattr__ = _lazily("judgedrift", _FACE)


def __dir__() -> list[str]:
    return [*__all__]
