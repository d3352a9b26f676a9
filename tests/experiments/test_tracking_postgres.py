"""MLflow on a real PostgreSQL server: two cells logged, read back, and rebuilt as on SQLite."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from experiments.tracking import postgres
from experiments.tracking.__main__ import main as tracking
from experiments.tracking.store import (
    client_of,
    initialise,
    load_sql_store,
    tracking_uri,
)
from study.cell.study_file import write_study
from study.config.schema import Tracking
from study.errors import UserError
from study.system.files import read_json
from tests import commands
from tests.conftest import free_port
from tests.experiments.mlflow_runs import begin, cell_of, logged, record, run_id_of
from tests.waiting import GENEROUS_S, wait_for

PASSWORD = "a-password-of-a-test"
BINARIES = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr/pgsql").glob("bin")]


@dataclass(frozen=True)
class Server:
    folder: Path
    port: int

    def uri(self, user: str = "tracker", database: str = "mlflow") -> str:
        return f"postgresql+psycopg2://{user}@127.0.0.1:{self.port}/{database}"

    def sql(self, text: str, database: str = "postgres") -> None:
        import psycopg2

        admin = psycopg2.connect(
            host=str(self.folder), port=self.port, user="admin", dbname=database
        )
        admin.autocommit = True
        with admin.cursor() as cursor:
            cursor.execute(text)
        admin.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server on a free port and a socket of its own, run by a user who is not root."""
    pytest.importorskip("psycopg2", reason="the extra postgres is not installed")
    initdb = shutil.which("initdb", path=os.pathsep.join([os.defpath, *map(str, BINARIES)]))
    if initdb is None:
        pytest.skip("PostgreSQL's initdb is not installed")
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL does not run as root
        as_user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="pg-") as made:
        folder = Path(made)
        if as_user:
            shutil.chown(folder, as_user["user"])
        rules = folder / "hba.conf"
        rules.write_text("local all admin trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        rules.chmod(0o644)
        words = [initdb, "-D", str(folder / "data"), "-U", "admin", "-A", "trust", "-N"]
        subprocess.run([*words, "-E", "UTF8", "--locale=C"], check=True, cwd=folder,
                       stdout=subprocess.DEVNULL, **as_user)  # fmt: skip
        port = free_port()
        options = {"port": port, "listen_addresses": "127.0.0.1", "fsync": "off", "hba_file": rules,
                   "unix_socket_directories": folder, "max_connections": 30}  # fmt: skip
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        program = str(Path(initdb).with_name("postgres"))
        with (folder / "log").open("w") as log:
            running = subprocess.Popen(
                [program, "-D", str(folder / "data"), *settings],
                stdout=log, stderr=log, cwd=folder, **as_user,
            )  # fmt: skip
        try:
            yield answering(Server(folder, port), running)
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(GENEROUS_S)


def answering(server: Server, running: subprocess.Popen[bytes]) -> Server:
    """The server, once it lets its administrator in and has a user and a database."""
    import psycopg2

    def lets_in() -> bool:
        assert running.poll() is None, (server.folder / "log").read_text()
        try:
            server.sql(f"CREATE USER tracker PASSWORD '{PASSWORD}'")
        except psycopg2.OperationalError:
            return False
        return True

    wait_for(lets_in)
    server.sql("CREATE DATABASE mlflow OWNER tracker")
    return server


def points(uri: str, cell: Any) -> list[tuple[Any, ...]]:
    """All points of a cell's run, by MLflow's own client."""
    client = client_of(uri)
    run = client.get_run(run_id_of(cell))
    assert run.info.status == "FINISHED"
    return sorted(
        (name, point.step, point.timestamp, point.value)
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    )


def test_two_cells_are_logged_read_back_and_rebuilt_as_on_sqlite(
    server, runs, tmp_path, monkeypatch, capsys
) -> None:
    """The password comes from PGPASSWORD first, and from the password file after that."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    config = Tracking(uri=server.uri().replace("+psycopg2", ""), flush_steps=3)
    far = [cell_of(tmp_path / "far", seed=seed, tracking=config) for seed in (0, 1)]
    ids = initialise(tracking_uri(config, tmp_path / "far"), tmp_path / "far", "demo", ["judge"])
    write_study(tmp_path / "far" / "demo", {"factors": ["judge"], "mlflow": ids})
    near = [cell_of(runs, seed=seed) for seed in (0, 1)]
    uri = begin(runs, *near)["uri"]
    for cell in (*far, *near):
        record(cell, 7)
    logged(*far, *near)
    monkeypatch.delenv("PGPASSWORD")
    password_file = tmp_path / "pgpass"
    password_file.write_text(f"127.0.0.1:{server.port}:*:tracker:{PASSWORD}\n")
    password_file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(password_file))
    for one, other in zip(far, near, strict=True):
        assert points(server.uri(), one) == points(uri, other) != []
    client_of(server.uri()).delete_run(run_id_of(far[0]))
    lines = []
    for folder in (tmp_path / "far", runs):
        assert tracking(["rebuild", "study=demo", f"runs_dir={folder}"]) == 0
        lines.append([line.split(": ")[1:] for line in capsys.readouterr().out.splitlines()])
    assert [line[0] for line in lines[0]] == [line[0] for line in lines[1]] == ["done", "done"]
    assert all("21 points, 0 sent" in line[1] for line in (*lines[0], *lines[1]))
    (tmp_path / "far" / "demo" / far[0].folder.name / "mlflow.json").unlink()
    client_of(server.uri()).delete_run(ids["parent_run_id"])
    other_uri = f"uri={server.uri()}?application_name=again"
    assert tracking(["rebuild", "study=demo", f"runs_dir={tmp_path / 'far'}", other_uri]) == 0
    assert points(server.uri(), far[0]) == points(uri, near[0])
    password_file.unlink()
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert PASSWORD.encode() not in path.read_bytes(), path


OTHER_HOST = """
import sys
from pathlib import Path
from experiments.tracking.store import initialise, load_sql_store
runs, uri = Path(sys.argv[1]), sys.argv[2]
load_sql_store()
print("ready", flush=True)
sys.stdin.readline()
print(initialise(uri, runs, "demo", [])["experiment_id"])
"""


def test_hosts_that_start_at_once_on_a_new_database_do_not_break_it(server, tmp_path, monkeypatch):
    """Each has a folder of runs of its own, as on several hosts: no lock file is shared."""
    server.sql("CREATE DATABASE fresh OWNER tracker")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    uri = server.uri(database="fresh")
    load_sql_store()
    words = (tmp_path / "other", uri)
    with commands.start_program(OTHER_HOST, *words, stdin=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        other.stdin.write("\n")
        other.stdin.flush()
        found = initialise(uri, tmp_path / "this", "demo", [])["experiment_id"]
        said, _ = other.communicate(timeout=GENEROUS_S)
    assert other.returncode == 0 and said == f"{found}\n"


@pytest.mark.parametrize(
    ("user", "database", "password", "words"),
    [
        ("tracker", "mlflow", "wrong", "authentication failed.*~/.pgpass"),
        ("tracker", "mlflow", None, "no password supplied.*PGPASSWORD=.*chmod 600"),
        ("nobody", "mlflow", PASSWORD, "authentication failed.*:nobody:PASSWORD"),
        ("tracker", "missing", PASSWORD, "does not exist.*createdb -O tracker missing"),
        ("tracker", "readers", PASSWORD, 'permission denied.*ALTER DATABASE "readers" OWNER'),
    ],
)
def test_what_the_server_refuses_is_told_in_a_paragraph(
    server, tmp_path, monkeypatch, user, database, password, words
) -> None:
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    monkeypatch.delenv("PGPASSWORD", raising=False)
    if password is not None:
        monkeypatch.setenv("PGPASSWORD", password)
    if database == "readers":
        server.sql("CREATE DATABASE readers")
    with pytest.raises(UserError, match=words) as caught:
        initialise(server.uri(user, database), tmp_path, "demo", [])
    assert "\n" not in str(caught.value) and "tracking=none" in str(caught.value)


@pytest.mark.parametrize("port", ["1", "no-number"])
def test_a_server_that_does_not_answer_is_told_at_once(port: str, tmp_path: Path) -> None:
    pytest.importorskip("psycopg2", reason="the extra postgres is not installed")
    uri = f"postgresql+psycopg2://me@127.0.0.1:{port}/db"
    with pytest.raises(UserError, match=r"could not open.*Start the server at") as caught:
        initialise(uri, tmp_path, "demo", [])
    assert "\n" not in str(caught.value)
    cell = cell_of(tmp_path, tracking=Tracking(uri=uri))
    ids = {"uri": uri, "experiment_id": "1", "parent_run_id": "1"}
    write_study(cell.folder.study_dir, {"mlflow": ids})
    record(cell, 2)
    logged(cell)
    assert "could not open" in read_json(cell.folder / "status.json")["tracking_problem"]


def test_a_driver_that_is_missing_is_told_with_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        postgres, "find_spec", lambda name: None if name == "psycopg2" else find_spec(name)
    )
    for uri in ("postgresql://me@host/db", "postgresql+psycopg2://h/db", "postgresql+x://h/db"):
        with pytest.raises(UserError, match=r"pip install -e '\.\[postgres\]'") as caught:
            tracking_uri(Tracking(uri=uri), tmp_path)
        assert "\n" not in str(caught.value) and f"tracking.uri={uri}" in str(caught.value)
