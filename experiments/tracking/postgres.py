"""PostgreSQL under MLflow: its driver, its start by one process at a time, and what is wrong."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from study.errors import UserError
from study.system.installed import install
from study.system.secrets import redact

if TYPE_CHECKING:
    from sqlalchemy import Connection

SCHEME = "postgresql"
DRIVERS = ("psycopg2", "psycopg")
"""What may stand behind the + of a URI, and the module's name; the first is the extra's."""
CONNECT_S = 10
MOST_SAID = 600
_LOCK = 0x6A756467656472
"""Number of the advisory lock under which a store is made."""
OTHERWISE = "To do without it, type tracking.uri=null for sqlite, or tracking=none."
REMEDIES = {
    r"password|pg_hba|authentication|peer": (
        "Set PGPASSWORD=... before the command, or put the line {host}:{port}:{database}:{user}:"
        "PASSWORD into ~/.pgpass and type chmod 600 ~/.pgpass, on every node; a password in the URI"
        " is refused. The server's pg_hba.conf must admit this host"
    ),
    r"role .* does not exist": "Make the user on the server: createuser {user}",
    r"database .* does not exist": "Make it on the server: createdb -O {user} {database}",
    r"permission denied|InsufficientPrivilege|must be owner|read-only": (
        "The user must be able to create tables: on the server, type psql -c 'ALTER DATABASE"
        ' "{database}" OWNER TO "{user}"\'  -c \'GRANT ALL ON SCHEMA public TO "{user}"\''
        " {database}"
    ),
    r"out-of-date database schema|Can't locate revision|alembic": (
        "The database is of another version of MLflow. If it is older, back it up and type python"
        " -m mlflow db upgrade {uri}"
    ),
    r"too many (connections|clients)|remaining connection slots": (
        "Each cell holds a connection: raise max_connections on the server, or run fewer at once"
    ),
}
"""What the server says -> what to do. Its words are those of its own language: of another one, the
last remedy is given."""
START = (
    "Start the server at {host}:{port}, or name another one: tracking.uri=postgresql://U@HOST/DB"
)


def with_driver(source: str, uri: str) -> str:
    """The URI with the driver that is installed where it names none: SQLAlchemy takes another one
    from version to version. Raises UserError: the driver is not installed."""
    scheme, colon, rest = uri.partition(":")
    name = scheme.removeprefix(SCHEME).removeprefix("+")
    for driver in DRIVERS:
        if name in ("", driver) and find_spec(driver):
            return f"{SCHEME}+{driver}{colon}{rest}"
    raise UserError(
        f"{source}={redact(uri)} needs the driver {name or DRIVERS[0]}, which is not installed"
        f" here. Type {install('postgres')} on every node, and"
        f" tracking.uri=postgresql://USER@HOST/DB. {OTHERWISE}"
    )


@contextlib.contextmanager
def connected(uri: str) -> Generator[Connection]:
    """A connection of the block's own; MLflow would try for 100 seconds where nobody answers.
    Raises UserError: the server does not answer, or lets nobody in."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    once = {"poolclass": NullPool, "isolation_level": "AUTOCOMMIT"}
    try:
        engine = create_engine(uri, connect_args={"connect_timeout": CONNECT_S}, **once)
        connection = engine.connect()
    except Exception as error:
        raise UserError(explained(uri, error)) from error
    with connection:
        yield connection


@contextlib.contextmanager
def alone(uri: str) -> Generator[None]:
    """Within the block no other process that asks for it, on any host, makes tables in the
    database. Raises as `connected` does."""
    from sqlalchemy import text

    with connected(uri) as connection:  # the lock ends with it
        connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _LOCK})
        yield


def explained(uri: str, error: Exception) -> str:
    """The paragraph for a database that MLflow could not open."""
    # the server is tried at each of its addresses, and a line for each
    line = redact(" ".join(str(error).partition("(Background on")[0].split()))[:MOST_SAID]
    words = {"uri": redact(uri), "host": "HOST", "port": 5432, "user": "USER", "database": "DB"}
    with contextlib.suppress(ValueError):  # no address
        parts = urlsplit(uri)
        words |= {"host": parts.hostname or "localhost", "port": parts.port or 5432}
        words |= {"user": unquote(parts.username or "USER")}
        words |= {"database": unquote(parts.path.strip("/") or "DB")}
    remedies = [remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, line, re.I)]
    remedy = (remedies or [START])[0].format(**words)
    return f"MLflow could not open the store {redact(uri)} ({line}). {remedy}. {OTHERWISE}"
