"""From recorded rollouts and verdicts to estimates, figures and the bias report.

How much longer do answers get under a judge, with an interval over its runs? ::

    from analysis import read_study

    study = read_study("runs/quickstart")
    print(study.shift("length", judge="sim-verbose"))
    # +12.3 [+4.5, +20.1] over 3 runs

`read_study` gives a `Study`: every `Run` as arrays, its verdicts counted, sentences on what could
not be read, and the shifts of its report. An `Estimate` is a value with its interval, the number
and kind of units behind it, and a note where it is not to be trusted. `write_report` renders a
study's report as one page; `fitted_parts` says what a judge pays for a behaviour, so that it can
be taken out of its scores.
"""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.ledger.fitted_bias import fitted_parts
    from analysis.records.runs import Run
    from analysis.report.writing import write_report
    from analysis.statistics.estimate import Estimate
    from analysis.study import Study, read_study

lazily = run_path(str(Path(__file__).parents[1] / "study" / "lazy.py"))["lazily"]
"""Read by its path, as another folder may have the name of a package that is needed here."""
__all__ = ["Estimate", "Run", "Study", "fitted_parts", "read_study", "write_report"]

_WHERE = {
    "Estimate": "analysis.statistics.estimate",
    "Run": "analysis.records.runs",
    "fitted_parts": "analysis.ledger.fitted_bias",
    "Study": "analysis.study",
    "read_study": "analysis.study",
    "write_report": "analysis.report.writing",
}


__getattr__ = lazily("analysis", _WHERE)


def __dir__() -> list[str]:
    return [*__all__]
