"""Where MLflow keeps the runs: legal URIs, a store that is made exactly once, its first charts.

MLflow's own start breaks a new sqlite file when two processes do it at the same time, so the
store is made under a lock before any cell starts.

MLflow keeps the state of a page of charts as JSON in a tag of the experiment, and a link can name
it. What is written here is what its page reads (checked against MLflow 3.17); a field that another
version does not know is left alone by it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sqlite3
import time
import warnings
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from experiments.tracking import postgres
from study.cell.places import is_url
from study.config.schema import Tracking
from study.errors import UserError
from study.system import locks
from study.system.installed import install
from study.system.mounts import network_kind
from study.system.secret_names import shown_place
from study.system.secrets import holds_credentials, redact

VIEWS = ("judge.name", "judge.family")
"""Axes by which every study has a ready chart view; see `pages.charts_link`."""
CHARTS = {
    "judge/mean": "Judge score",
    "truth/mean": "Truth (rule score)",
    "bias/judge_minus_truth": "Judge minus truth",
    "policy/length": "Words of an answer",
    "judge/unscored_frac": "Share of verdicts that are missing",
}
"""Metric -> what it is; MLflow's page of charts titles each by its metric all the same. The five
that say whether a judge led its policy astray."""
FIRST = "Judge against truth"
"""Title of the section of the five; a longer one is cut off where the page is narrow."""
FOLDED = ("cost", "judge", "policy", "reward", "time", "trainer", "truth")
"""Sections of further charts, by the first part of a metric's name; they can be unfolded."""


def view(axis: str) -> str:
    """State of MLflow's chart view: the cells without their parent, averaged by ``axis``; sorted by
    anything but the time of creation, the page lists child runs in their own right."""
    by_axis = [{"mode": "tag", "groupByData": axis}]
    sections = [_section(FIRST, True), *(_section(name, False) for name in FOLDED)]
    return json.dumps(
        {
            "groupBy": {"aggregateFunction": "average", "groupByKeys": by_axis},
            "searchFilter": "tags.`judgedrift.role` = 'cell'",
            "orderByKey": f"tags.`{axis}`",
            "orderByAsc": True,
            "runsHiddenMode": "SHOW_ALL",
            "useGroupedValuesInCharts": True,
            "hideEmptyCharts": True,
            "isAccordionReordered": True,
            "compareRunSections": sections,
            "compareRunCharts": [_chart(*each) for each in CHARTS.items()],
        }
    )


def _section(name: str, unfolded: bool) -> dict[str, Any]:
    return {
        "uuid": f"judgedrift-{name}",
        "name": name,
        "display": unfolded,
        "isReordered": False,
        "deleted": False,
        "isGenerated": True,
        "columns": 2,
    }


def _chart(metric: str, title: str) -> dict[str, Any]:
    return {
        "uuid": f"judgedrift-{metric}",
        "type": "LINE",
        "runsCountToCompare": 10,
        "metricSectionId": f"judgedrift-{FIRST}",
        "deleted": False,
        "isGenerated": True,
        "displayName": title,
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


SWITCHES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}
"""For every process that runs MLflow, the user interface too."""
CLIENT_SWITCHES = {
    **SWITCHES,
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
KIND = "mlflow.experimentKind"
"""Tag by which MLflow chooses its pages. Without it, it takes a study whose judge calls are traced
for an app, and has no *Training runs* among them."""
ADVICE = (
    "Legal are sqlite:///FILE.db, postgresql://HOST/DB, mysql://HOST/DB, mssql://HOST/DB, "
    "http(s)://SERVER and databricks. Type tracking.uri=null and unset MLFLOW_TRACKING_URI for "
    "sqlite under the runs folder, or tracking=none to do without MLflow."
)
SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")


def load_mlflow() -> Any:
    """Import MLflow with telemetry, server jobs, unpickling and async logging switched off."""
    for name, value in CLIENT_SWITCHES.items():
        os.environ.setdefault(name, value)
    for message in (
        "The ``noload`` loader strategy is deprecated",
        ".{0,9}Any type hint is inferred",
    ):
        warnings.filterwarnings("ignore", message=message)
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it raises them too
    return mlflow


def client_of(uri: str) -> Any:
    """MLflow's client of a store. Raises UserError: a PostgreSQL server does not answer, or lets
    nobody in; other stores are first asked when they are used."""
    mlflow = load_mlflow()
    if uri.startswith(postgres.SCHEME):
        with postgres.connected(uri):
            pass
    return mlflow.MlflowClient(tracking_uri=uri)


def trace_to(uri: str) -> None:
    """Have this process send its traces to ``uri``: where they go is no matter of a client. MLflow
    would leave the URI in the environment too, as if the user had set it."""
    name = "MLFLOW_TRACKING_URI"
    before = os.environ.get(name)
    load_mlflow().set_tracking_uri(uri)
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before


def load_sql_store() -> Any:
    """Import what MLflow would load at a process's first look into a database, which takes longer
    than the look; nothing is opened."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    return SqlAlchemyStore


def tracking_uri(tracking: Tracking, runs_dir: Path) -> str:
    """Where runs are logged: the config, else ``MLFLOW_TRACKING_URI``, else sqlite under the runs.

    The URI means the same in every working folder, and nothing is created. Raises UserError for a
    file store, a password in the URI, a folder that cannot be written.
    """
    source = "tracking.uri" if tracking.uri else "MLFLOW_TRACKING_URI"
    uri = tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
    uri = uri or f"sqlite:///{default_database(runs_dir)}"
    if holds_credentials(uri):
        raise UserError(
            f"{source} holds a user name with a password or a token (not shown), which would be"
            " saved with every run. Remove it from the URI and type MLFLOW_TRACKING_USERNAME=..."
            " MLFLOW_TRACKING_PASSWORD=... (or MLFLOW_TRACKING_TOKEN=...) before the command for"
            " a server, PGPASSWORD=... or the database's own password file for a database."
        )
    scheme = re.split(r"[+:]", uri)[0] if "://" in uri or uri == "databricks" else "file"
    if scheme not in SCHEMES:
        kind = "is a file store, which MLflow has given up" if scheme == "file" else "is not legal"
        raise UserError(f"{source}{shown_place(uri)} {kind}. {ADVICE}")
    if scheme == postgres.SCHEME:
        return postgres.with_driver(source, uri)
    if scheme != "sqlite":
        return uri
    head, _, rest = uri.partition("://")
    name, mark, options = rest.removeprefix("/").partition("?")
    if not name or ":memory:" in name:
        raise UserError(
            f"{source}={uri} does not name a file that several cells can share. {ADVICE}"
        )
    path = Path(name).absolute()
    _check_writable(path)
    return f"{head}:///{path}{mark}{options}"


def artifacts_of(tracking: Tracking) -> str:
    """Where the files of runs go, ``tracking.artifacts``; empty where that is left to MLflow.
    Raises UserError: it is no URL, holds a key, or the package that writes there is missing."""
    place = tracking.artifacts or ""
    secret = holds_credentials(place)
    if place and (secret or not is_url(place)):
        trouble = "holds a key (not shown)" if secret else f"{shown_place(place)} is none"
        raise UserError(
            f"tracking.artifacts must be a URL without keys, but {trouble}. Type for example "
            "tracking.artifacts=s3://my-bucket/mlflow, and the keys as the store's own client "
            "reads them: export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=..."
        )
    if place.startswith("s3://") and find_spec("boto3") is None:
        raise UserError(
            f"tracking.artifacts={place} needs the package boto3, by which MLflow writes to s3 and "
            f"which is not installed here. Type {install('remote')} on every node."
        )
    return place.rstrip("/")


def _check_writable(path: Path) -> None:
    """Refuse a database file that cannot be made or written, without making anything."""
    folder = next(parent for parent in path.parents if parent.exists())
    writable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    if not writable or path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
        raise UserError(
            f"The MLflow database {path} cannot be written: {folder} must be a folder where you"
            " can create files, and the file must be writable. Type runs_dir=FOLDER or"
            " tracking.uri=sqlite:////ABSOLUTE/FILE.db for a writable one, or tracking=none to"
            " run without MLflow."
        )


def initialise(
    uri: str,
    runs_dir: Path,
    study: str,
    factors: list[str],
    artifacts: str = "",
    started_ms: int | None = None,
) -> dict[str, str]:
    """Make or upgrade the store, the study's experiment and its parent run, each once.

    Any number of processes may call this at the same time: one lock file serves them in turn. An
    experiment that is made now keeps its files at ``artifacts`` where that is given, and a parent
    run that is made now began at ``started_ms``.

    Returns:
        {"uri", "experiment_id", "parent_run_id"}; the parent run is RUNNING.

    Raises:
        UserError: the store cannot be opened, or belongs to a newer MLflow.
    """
    database = database_of(uri)
    place = database.parent if database else runs_dir
    try:
        place.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(locks.held(place / ".mlflow.lock"))
            if database:
                _prepare_sqlite(uri, database, runs_dir)
            elif uri.startswith(postgres.SCHEME):
                stack.enter_context(postgres.alone(uri))
            client = client_of(uri)
            experiment_id = _experiment(client, uri, runs_dir, study, artifacts)
            parent_run_id = _parent(client, experiment_id, study, factors, started_ms)
    except UserError:
        raise
    except Exception as error:
        if uri.startswith(postgres.SCHEME):
            raise UserError(postgres.explained(uri, error)) from error
        line = redact(str(error).strip().partition("\n")[0])
        hint = (
            f"If the file is damaged, not of MLflow or of a newer MLflow, move {database} away "
            f"and type python -m experiments.tracking rebuild study={study}"
            if database
            else "Start that server or type tracking.uri=null and unset MLFLOW_TRACKING_URI for "
            "sqlite under the runs folder"
        )
        raise UserError(
            f"MLflow could not open the store {uri} ({type(error).__name__}: {line}). {hint}; to "
            "do without MLflow, type tracking=none."
        ) from error
    return {"uri": uri, "experiment_id": experiment_id, "parent_run_id": parent_run_id}


def _prepare_sqlite(uri: str, database: Path, runs_dir: Path) -> None:
    """Make the file whole under another name, or bring an older one up to date after a copy."""
    load_mlflow()
    from mlflow.db import upgrade
    from mlflow.store.db.utils import _get_latest_schema_revision

    artifacts = str(runs_dir.absolute() / "mlartifacts")
    if not database.exists() or not database.stat().st_size:
        fresh = database.with_name(f".{database.name}.new")
        for leftover in database.parent.glob(f"{fresh.name}*"):
            leftover.unlink()
        load_sql_store()(f"sqlite:///{fresh}", artifacts).engine.dispose()
        fresh.chmod(0o600)
        fresh.replace(database)
    # The file itself is never opened: closing a plain handle would drop the locks of every
    # connection that this process has to it, and others would then lose the WAL.
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection:
        version = connection.execute("select version_num from alembic_version").fetchone()[0]
    if version != _get_latest_schema_revision():
        copy = database.with_name(f"{database.name}.{time.strftime('%Y%m%d-%H%M%S')}.bak")
        with (
            contextlib.closing(sqlite3.connect(database)) as old,
            contextlib.closing(sqlite3.connect(copy)) as new,
        ):
            old.backup(new)
        upgrade.main([uri], standalone_mode=False)
    if not network_kind(database):  # there WAL's shared memory does not work
        with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")  # readers no longer wait for writers


def _experiment(client: Any, uri: str, runs_dir: Path, study: str, artifacts: str) -> str:
    experiment = client.get_experiment_by_name(study)
    served = uri.startswith(("http", "databricks"))
    place = f"{artifacts}/{study}" if artifacts else None
    if not place and not served:
        place = (runs_dir.absolute() / "mlartifacts" / study).as_uri()
    if experiment is not None and _came_along(experiment, uri, runs_dir, place):
        old_id = experiment.experiment_id
        client.rename_experiment(old_id, f"{study} (moved, {old_id})")
        experiment = None
    if experiment is None:
        new_id = client.create_experiment(study, artifact_location=place)
        experiment = client.get_experiment(new_id)
    experiment_id = experiment.experiment_id
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment_id)
    if KIND not in experiment.tags:
        client.set_experiment_tag(experiment_id, KIND, "custom_model_development")
    for axis in VIEWS:
        client.set_experiment_tag(experiment_id, f"mlflow.sharedViewState.{axis}", view(axis))
    return experiment_id


def _came_along(experiment: Any, uri: str, runs_dir: Path, place: str | None) -> bool:
    """Whether the store was made under another folder of runs, where MLflow would go on to write
    the files of this experiment."""
    database, location = database_of(uri), experiment.artifact_location
    own = database is not None and database.resolve() == default_database(runs_dir).resolve()
    if not own or place is None or not (is_file(location) and is_file(place)):
        return False
    return path_of(location).resolve() != path_of(place).resolve()


def is_file(url: str) -> bool:
    """Whether a place is a folder of this machine."""
    return url.startswith("file:")


def path_of(url: str) -> Path:
    """The folder of a ``file:`` URL."""
    return Path(unquote(urlsplit(url).path))


def database_of(uri: str) -> Path | None:
    """The file of a store; None where it is a server or a database server."""
    if not uri.startswith("sqlite"):
        return None
    return Path(uri.partition("://")[2].removeprefix("/").partition("?")[0])


def default_database(runs_dir: Path) -> Path:
    """The store of a folder of runs where no other is asked for."""
    return runs_dir.absolute() / "mlflow.db"


def _parent(
    client: Any, experiment_id: str, study: str, factors: list[str], started_ms: int | None
) -> str:
    for run in client.search_runs([experiment_id], "tags.`judgedrift.role` = 'parent'"):
        if run.data.tags.get("judgedrift.study") == study:
            client.update_run(run.info.run_id, status="RUNNING")
            return run.info.run_id
    tags = {
        "judgedrift.study": study,
        "judgedrift.role": "parent",
        "judgedrift.factors": ",".join(factors),
        "study": study,
    }
    new_run = client.create_run(experiment_id, start_time=started_ms, tags=tags, run_name=study)
    return new_run.info.run_id
