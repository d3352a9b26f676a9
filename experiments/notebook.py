"""Shows where a study's notebook lies, and makes it where there is none.

``python -m experiments.notebook study=NAME``. The notebook asks one question for each short cell,
and is there to be changed: once you have changed it, it is never written again.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from analysis.report.study_notebook import PLACE, is_ours, write_notebook
from study.cli import StudyOptions, command, option


@dataclass(frozen=True)
class Options(StudyOptions):
    """Options of `experiments.notebook`: the study, and whether to execute again."""

    refresh: bool = option("execute it again on the records as they are now", False, former="again")


@command("experiments.notebook study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 there, 2 a user's error."""
    path = options.folder / PLACE
    changed = not is_ours(path)
    if options.refresh or not path.exists():
        write_notebook(options.folder)
    place = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    print(f"{place}{': you have changed it, so it was not rewritten' if changed else ''}")
    print(f"To open it, type: {opener(place)}")
    return 0


def opener(path: Path) -> str:
    """What to type to open a notebook with what is installed here."""
    python = Path(sys.executable)
    python = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    words = [str(python), "-m", "jupyterlab", str(path)]
    if find_spec("jupyterlab"):
        return shlex.join(words)
    install = shlex.join([str(python), "-m", "pip", "install", "jupyterlab"])
    return f"{install} && {shlex.join(words)}  (or open the file in an editor that has notebooks)"


if __name__ == "__main__":
    sys.exit(main())
