"""Where runs lie: a folder of this machine, or a URL such as ``s3://bucket/runs`` with a copy here.

`local` turns either into a folder. That of a URL mirrors it below `scratch`, so that a folder says
itself which URL it is the copy of (`url_of`). `study.cell.exchange` moves records between the two.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from study.errors import UserError, chain
from study.system import storage
from study.system.clock import boot
from study.system.files import first_line, read_left
from study.system.installed import install
from study.system.machine import has_process
from study.system.secrets import holds_credentials, redact

VARIABLE = "JUDGEDRIFT_SCRATCH"
URL = re.compile(r"([a-z][a-z0-9+-]{1,30})://(.*)", re.IGNORECASE | re.DOTALL)
BUCKETS = ("s3", "s3a", "gs", "gcs", "abfs", "az", "oss", "oci")
"""Schemes of object stores: the first word of their address is a bucket, made by hand."""
LOCK = ".lock"
"""In a cell's folder: a process that runs or changes the cell holds it."""
LEASE = ".lease.json"
"""In a cell's folder: who ran it elsewhere when that was last looked at."""
_KEYS = ("NoCredentials", "PartialCredentials", "Unauthorized", "AccessDenied", "InvalidAccess")
_GONE = ("Connection", "Connect", "Endpoint", "Timeout", "ServerDisconnected", "IncompleteRead")
"""What the names of errors of their clients hold that is no OSError."""


class StorageError(UserError):
    """A place elsewhere cannot be read or written; what is here is kept."""


def scratch() -> Path:
    """Folder of the copies of remote files: the one that ``JUDGEDRIFT_SCRATCH`` names,
    else ``judgedrift`` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(VARIABLE) or Path(cache) / "judgedrift").expanduser().absolute()


def is_url(place: str | Path) -> bool:
    """Whether a place is written as a URL."""
    return URL.fullmatch(str(place)) is not None


def local(place: str | Path) -> Path:
    """The folder of a place: itself, or where the copy of a URL is; nothing is made or fetched.
    Raises UserError: a URL with a key in it, or that does not name a folder."""
    parsed = URL.fullmatch(str(place))
    if parsed is None:
        return Path(place)
    text = str(place)
    if holds_credentials(text):
        raise UserError(
            "runs_dir is an address with a key or a password in it (not shown), and would be saved "
            "with every run. Remove it, and set it where the store's own client reads it. For s3,"
            " type: export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=..., or: export"
            " AWS_PROFILE=NAME"
        )
    scheme, rest = parsed[1].lower(), parsed[2].strip("/")
    words = rest.split("/")
    if not all(re.fullmatch(r"[\w.:@=+-]{1,255}", word) and word.strip(".") for word in words):
        raise UserError(
            f"runs_dir= gives a {parsed[1][:30]}:// address (the rest is not shown, for it may"
            " hold a key) that does not name a remote folder. Legal is SCHEME://BUCKET/FOLDER of"
            " letters, digits and . _ - in each word. Type for example"
            " runs_dir=s3://my-bucket/runs"
        )
    return scratch().joinpath("places", scheme, *words)


def url_of(folder: Path) -> str:
    """The URL that ``folder`` is the copy of; empty for a folder of this machine alone."""
    try:
        scheme, *words = folder.absolute().relative_to(scratch() / "places").parts
    except ValueError:
        return ""
    return f"{scheme}://{'/' if scheme in ('file', 'local') else ''}{'/'.join(words)}"


def holds(lease: Mapping[str, object]) -> bool:
    """Whether a lease (`study.cell.lease`) stands, as far as this machine can tell."""
    ends = lease.get("expires")
    if not isinstance(ends, int | float) or ends < time.time():
        return False
    return not _of_here(lease) or has_process(lease.get("pid"))


def _of_here(lease: Mapping[str, object]) -> bool:
    return (lease.get("host"), lease.get("boot")) == (socket.gethostname(), boot())


def runs_elsewhere(folder: Path) -> bool:
    """Whether another machine ran a cell when its study was fetched, and may still do so."""
    if not (folder / LEASE).exists():
        return False
    lease = read_left(folder / LEASE, "it counts as not running")
    return holds(lease) and not _of_here(lease)


def shown(folder: Path) -> str:
    """A folder as a reader of a message knows it."""
    return url_of(folder) or str(folder)


def opened(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path in it.
    Raises StorageError: no such scheme, or its package is missing."""
    import fsspec.core

    scheme = url.partition("://")[0]
    options = {"auto_mkdir": True} if scheme in ("file", "local") else {}
    try:
        with trouble(url):
            return fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    except StorageError as error:
        if isinstance(error.__cause__, ValueError):  # as fsspec says of a scheme
            raise StorageError(
                f"{url} begins with {scheme}://, which no installed package can read or write."
                " Legal are for example abfs, file, gs, s3, sftp. Type"
                " runs_dir=s3://BUCKET/FOLDER, or a plain folder."
            ) from error
        raise


@contextlib.contextmanager
def trouble(url: str) -> Generator[None]:
    """Within the block, errors of a place elsewhere become one paragraph, without any key.
    Raises StorageError: that. Raises DiskError: this machine's own disk is full."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        full = storage.explained(error, scratch())
        raise full or StorageError(paragraph(url, error)) from error


def paragraph(url: str, error: BaseException) -> str:
    """What an error of a place elsewhere means and what to type."""
    scheme, _, rest = url.partition("://")
    names = [type(link).__name__ for link in chain(error)]
    line = redact(first_line(error))
    kept = "Local records are kept; rerun the command to resume"
    if isinstance(error, ImportError):
        return (
            f"{url} cannot be opened: the package that reads {scheme}:// is not installed "
            f"({line}). Type {install('remote')} for s3, install that package, or type"
            " runs_dir=FOLDER for a folder on this machine."
        )
    if isinstance(error, FileNotFoundError) and scheme in BUCKETS:
        bucket = rest.partition("/")[0]
        return (
            f"{url} cannot be used: there is no bucket {bucket} that you may see ({line}). Create"
            f" it with the store's own tool, for example aws s3 mb s3://{bucket}, or type another"
            " runs_dir=. For your own server, type: export AWS_ENDPOINT_URL=http://HOST:PORT."
        )
    if isinstance(error, PermissionError) or _any(names, _KEYS):
        return (
            f"{url} cannot be read or written with the keys that are set ({line}). Set other keys"
            " where the store's own client reads them. For s3, type: export AWS_ACCESS_KEY_ID=..."
            f" AWS_SECRET_ACCESS_KEY=... or AWS_PROFILE=NAME. {kept}."
        )
    if isinstance(error, ConnectionError | TimeoutError) or _any(names, _GONE):
        return (
            f"{url} does not answer, or the connection broke off ({names[0]}: {line}). No"
            f" half-written file is read there. {kept} once the store answers."
        )
    return f"{url} could not be used ({names[0]}: {line}). {kept}."


def _any(names: Sequence[str], words: Sequence[str]) -> bool:
    return any(word in name for name in names for word in words)
