"""Opens MLflow's pages on the store of the studies: on this machine alone, until Ctrl-C.

    judgedrift ui
    judgedrift ui study=NAME

The links are printed when the pages answer; with a study, those of its charts and of what was
found.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.studies.list import studies
from experiments.tracking import pages
from experiments.tracking.store import database_of, tracking_uri
from judges.serving.server import listen
from study.cell.places import shown
from study.cell.study_file import read_study
from study.cli import AnyStudyOptions, command, option
from study.config.bounds import Number
from study.config.schema import Tracking
from study.errors import UserError
from study.system.files import say


@dataclass(frozen=True)
class Options(AnyStudyOptions):
    """Options of `experiments.ui`: the study, the port, and whether only to print the links."""

    port: int = option("port of the pages; 0 takes a free one", 0, Number(low=0, high=65535))
    print_only: bool = option("print the command and the links", False)


@command("experiments.ui study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: those of MLflow; 0 where there is nothing to start, 2 for a user's error."""
    ids = tracked(options.runs_dir, options.study)
    uri = ids["uri"]
    if uri.startswith("http"):
        _print_links(options, ids, 0)
        return 0
    with listen(pages.HOST, options.port, "another port=, or leave it out for a free one") as free:
        port = free.getsockname()[1]
    if options.print_only:
        _print_links(options, ids, port)
        print(pages.typed_command(uri, port))
        return 0
    return pages.serve(uri, port, lambda: _print_links(options, ids, port))


def _print_links(options: Options, ids: dict[str, str], port: int) -> None:
    page = pages.address(ids["uri"], port)
    if "experiment_id" not in ids:
        print(f"All studies: {page}", flush=True)
        return
    print(f"The charts of {options.study}: {pages.charts_link(page, ids)}")
    print(f"What was found: {pages.parent_link(page, ids)}", flush=True)


def tracked(runs_dir: Path, study: str | None) -> dict[str, str]:
    """The store of a study, with the ids of its runs, or that of the folder.
    Raises UserError: nothing was tracked there, or the study was moved away from its store."""
    if study is not None:
        ids = read_study(runs_dir / study).get("mlflow", {})
        if ids:
            ids, remark = pages.here(ids, (runs_dir / study).absolute())
            if remark:
                say(remark)
            return ids
        raise UserError(
            f"The study {study} in {shown(runs_dir)} was not sent to MLflow. Type"
            f" judgedrift tracking rebuild study={study} runs_dir={runs_dir}"
        )
    uri = tracking_uri(Tracking(), runs_dir)
    database = database_of(uri)
    if database is not None and not database.exists():
        names = ", ".join(folder.name for folder in studies(runs_dir)) or "none"
        raise UserError(
            f"{shown(runs_dir)} has no MLflow store ({database} is missing); its studies:"
            f" {names}. Type runs_dir=FOLDER, or study=NAME for a study with another store."
        )
    return {"uri": uri}


if __name__ == "__main__":
    sys.exit(main())
