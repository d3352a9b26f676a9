"""Judges: whom to ask, what is asked, how the reply is read, and a store that asks only once.

    from judges import GRADINGS, Session, Store
    from study.config.compose import load_presets

    judge, task = load_presets("sim-verbose", "instruct-mini")  # any preset of conf/judge
    with Store("runs/verdicts.db") as store, Session(judge, store, oracle) as session:
        [[verdict]] = session.ask_many([(row, answer)])         # .score is None where .outcome
                                                                # says why there is none
        votes_N = session.ask_many(items, group_size=8)         # groups too, where it compares
        verdict = await session.ask_one(row, answer)            # in any event loop

``GRADINGS`` are the gradings by name, ``judge.grading.name``. ``oracle`` (`study.truth.oracle`) is
what a simulated judge knows; a real judge needs none.
"""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from judges.ask.replies import Store
    from judges.ask.session import Session
    from judges.grading import GRADINGS

lazily = run_path(str(Path(__file__).parents[1] / "study" / "lazy.py"))["lazily"]
"""Read by its path, as another folder may have the name of a package that is needed here."""
__all__ = ["GRADINGS", "Session", "Store"]

_MODULES = {
    "GRADINGS": "judges.grading",
    "Session": "judges.ask.session",
    "Store": "judges.store",
}
"""Name -> where it stands; loaded when it is first used, so that ``import judges`` is cheap."""


__getattr__ = lazily("judges", _MODULES)


def __dir__() -> list[str]:
    return [*__all__]
