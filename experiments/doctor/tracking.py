"""The store of MLflow, as a sweep without other settings would use it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from experiments.tracking.store import tracking_uri
from study.config.schema import Tracking
from study.errors import UserError
from study.finding import Finding, ok, problem
from study.system.secrets import redact


def store(here: dict[str, str], runs_dir: Path) -> Finding:
    """Whether the store can be made or opened; a server is not asked.

    Args:
        here: what is installed.
    """
    version = here.get("mlflow")
    if version is None:
        return problem("MLflow", "not installed", "pip install -e ., or tracking=none")
    try:
        uri = tracking_uri(Tracking(), runs_dir)
    except UserError as error:
        return problem("MLflow", f"{version}: {error}", "tracking=none does without")
    if not uri.startswith("sqlite:///"):
        return ok("MLflow", f"{version}, store {redact(uri)} (a server, not asked)")
    path = Path(uri.partition("sqlite:///")[2].partition("?")[0])
    if not path.exists() or not path.stat().st_size:
        return ok("MLflow", f"{version}, store {path} is made by the first sweep")
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=0.5)
        ) as database:
            runs = database.execute("select count(*) from runs").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            return ok("MLflow", f"{version}, store {path} is in use now")
        return problem(
            "MLflow",
            f"{version}, store {path} cannot be read ({error})",
            f"mv {path} {path}.old, then judgedrift tracking rebuild study=NAME",
        )
    return ok("MLflow", f"{version}, store {path} holds {runs} runs")
