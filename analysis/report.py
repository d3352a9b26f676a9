"""Render a study's bias report: ``python -m analysis.report study=NAME [runs_dir=runs]``."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

from analysis.reports.notebook import write_report
from study.errors import UserError
from study.storage import explained


def main(arguments: list[str]) -> int:
    """Command line. Exit codes: 0 written, 2 a user's error."""
    try:
        given: dict[str, Any] = dict(_pair(argument) for argument in arguments)
        study, runs_dir = given.pop("study", None), given.pop("runs_dir", "runs")
        if not study:
            raise UserError(
                "No study was named. Type for example: python -m analysis.report study=quickstart"
            )
        print(write_report(Path(str(runs_dir)) / str(study), given))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        trouble = explained(error, Path(str(runs_dir)))
        if trouble is None:
            raise
        print(trouble, file=sys.stderr)
        return 2
    return 0


def _pair(argument: str) -> tuple[str, Any]:
    key, equals, text = argument.partition("=")
    if not equals or not key:
        raise UserError(
            f"{argument!r} is not of the form key=value. Type for example: "
            "python -m analysis.report study=quickstart runs_dir=runs"
        )
    if key in ("study", "runs_dir"):
        return key, text
    try:
        return key, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return key, text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
