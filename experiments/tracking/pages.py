"""MLflow's pages on the store of a study: what to type, the links, and a server until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from experiments.tracking.store import (
    SWITCHES,
    database_of,
    default_database,
    is_file,
    path_of,
)
from study.cell.places import shown
from study.errors import UserError
from study.progress import work
from study.system.stopping import end_with_parent

HOST = "127.0.0.1"
START_S = 120.0
"""MLflow is given up that has not answered by then; it takes about five seconds."""
POLL_S = 0.1
TAIL = 2_000
"""Characters of a server's output that are shown where it ended."""


def command(uri: str, port: int) -> list[str]:
    """The words of MLflow's server: on this machine only, and nothing switched on behind it."""
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    words = [str(python), "-m", "mlflow", "ui", "--backend-store-uri", uri]
    words += ["--host", HOST, "--port", str(port), "--workers", "1"]
    # the Host header is compared whole: without the port every page is answered 403
    return [*words, "--allowed-hosts", f"localhost:{port},{HOST}:{port}"]


def typed_command(uri: str, port: int) -> str:
    """`command` as it is typed, with its environment."""
    switches = [f"{name}={value}" for name, value in SWITCHES.items()]
    return shlex.join([*switches, *command(uri, port)])


def address(uri: str, port: int) -> str:
    """Where the pages of a store are: at its own server, or at one on this machine."""
    return uri.rstrip("/") if uri.startswith("http") else f"http://{HOST}:{port}"


def charts_link(page: str, ids: dict[str, str], by: str = "judge.name") -> str:
    """Address of a study's charts, averaged by an axis of `store.VIEWS`; ``ids`` are what
    `store.initialise` returned."""
    runs = f"{page}/#/experiments/{ids['experiment_id']}/runs"
    return f"{runs}?compareRunsMode=CHART&viewStateShareKey={by}"


def parent_link(page: str, ids: dict[str, str]) -> str:
    """Address of the study's own run: what was found, in words, and the report."""
    return f"{page}/#/experiments/{ids['experiment_id']}/runs/{ids['parent_run_id']}"


def here(ids: dict[str, str], study_dir: Path) -> tuple[dict[str, str], str]:
    """The ids of a study's runs where it lies now, and a remark where that is another place.

    A study that was moved or copied takes the store beside it, where that has its runs.
    Raises UserError: no store has them.
    """
    recorded, own = database_of(ids["uri"]), default_database(study_dir.parent)
    if recorded is None or (recorded.exists() and not _is_of_another(recorded, own, study_dir)):
        return ids, ""
    rebuild = (
        f"python -m experiments.tracking rebuild study={study_dir.name}"
        f" runs_dir={shown(study_dir.parent)}"
    )
    location = _location(own, ids["parent_run_id"])
    if location is None:
        gone = "is not there" if not recorded.exists() else f"is that of {shown(recorded.parent)}"
        raise UserError(
            f"The study {study_dir.name} in {shown(study_dir.parent)} was copied or moved: the"
            f" store of its runs, {recorded}, {gone}, and there is none here that has them. To send"
            f" its records to a store of its own, type {rebuild}"
        )
    remark = ""
    kept = study_dir.parent / "mlartifacts" / study_dir.name
    if is_file(location) and not path_of(location).resolve().is_relative_to(kept.resolve()):
        remark = (
            f"{study_dir.name} was moved or copied: its runs are read from {own}, but MLflow looks"
            f" for their files (report, figures, samples) in {path_of(location)}. To have them"
            f" here, type {rebuild}"
        )
    return {**ids, "uri": f"sqlite:///{own}"}, remark


def _is_of_another(recorded: Path, own: Path, study_dir: Path) -> bool:
    """Whether a store is that of another folder of runs, which has or had this study."""
    same = recorded.resolve() == own.resolve()
    return not same and recorded.name == own.name and (recorded.parent / study_dir.name).is_dir()


def _location(database: Path, run_id: str) -> str | None:
    """Where the store has the files of a run; None where it has no such run."""
    if not database.exists():
        return None
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection:
        try:
            row = connection.execute(
                "select artifact_uri from runs where run_uuid = ? and lifecycle_stage = 'active'",
                (run_id,),
            ).fetchone()
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"{database} is no store of MLflow ({error}). Move it away and type python -m"
                f" experiments.tracking rebuild study=NAME runs_dir={shown(database.parent)}"
            ) from error
    return None if row is None else str(row[0])


def serve(uri: str, port: int, ready: Callable[[], None]) -> int:
    """Start MLflow on a store, call ``ready`` when its pages answer, and wait for its end or for an
    interruption, which ends it; the exit code.
    Raises UserError: it ended before it answered, or did not answer in time."""
    words, variables = command(uri, port), os.environ | SWITCHES
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            words,
            env=variables,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=end_with_parent,
        ) as server,
    ):
        try:
            with work("MLflow starts"):
                _wait_for_answer(server, port, log)
            ready()
            return server.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(server.pid, signal.SIGTERM)


def _wait_for_answer(server: subprocess.Popen[bytes], port: int, log: IO[str]) -> None:
    began = time.monotonic()
    # a proxy that the environment names is not for servers on this machine
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        if server.poll() is not None:
            log.seek(0)
            end = log.read()[-TAIL:].strip() or "nothing"
            raise UserError(
                f"MLflow ended with exit code {server.returncode} before it answered on port"
                f" {port}. Its last output: {end}"
            )
        with contextlib.suppress(OSError), opener.open(f"http://{HOST}:{port}/health", timeout=5):
            return
        if time.monotonic() - began > START_S:
            raise UserError(
                f"MLflow did not answer on port {port} within {START_S:g} s. Type the command"
                " again, with print_only=true to see what it would start"
            )
        time.sleep(POLL_S)
