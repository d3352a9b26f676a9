"""Run `uv pip`, pinned in installers.txt, for this Python's environment and from pip's index.

    .venv/bin/python requirements/uv_pip.py install --require-hashes -r constraints.txt

uv reads none of pip's configuration. What pip is told about its index (index-url, extra-index-url,
find-links, no-index, trusted-host, cert, proxy) is therefore handed on. Of uv's own settings those
hold that say where and how files are fetched and kept; no other can change what is installed.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

KEPT = (
    "UV_CACHE_DIR UV_CONCURRENT_ UV_CREDENTIALS_DIR UV_DEFAULT_INDEX UV_EXTRA_INDEX_URL"
    " UV_FIND_LINKS UV_HTTP_ UV_INDEX UV_INSECURE_HOST UV_KEYRING_PROVIDER UV_LINK_MODE"
    " UV_LOCK_TIMEOUT UV_NATIVE_TLS UV_NO_CACHE UV_OFFLINE UV_REQUEST_TIMEOUT UV_SYSTEM_CERTS"
).split()
"""How the settings begin that may stay in uv's environment."""
OPTIONS = {
    "index-url": "--default-index",
    "trusted-host": "--allow-insecure-host",
    "extra-index-url": "--index",
    "find-links": "--find-links",
}
"""Settings of pip, with what uv calls them; each may have several values."""
FURTHER = ("extra-index-url", "find-links")
"""Places beside the index. Nothing is pinned from them: they may be there on one machine alone."""


def read_settings(listing: str) -> dict[str, str]:
    """Value by name of what pip is told about `pip install`, by the lines of `pip config list`."""
    found: dict[str, str] = {}
    lines = [line.partition("=") for line in listing.splitlines()]
    for section in ("global", "install", ":env:"):
        for key, _, value in lines:
            place, _, name = key.rpartition(".")
            if place == section:
                found[name] = ast.literal_eval(value)
    return found


def uv_options(
    words: Sequence[str], settings: Mapping[str, str], environment: Mapping[str, str]
) -> list[str]:
    """What uv is told beside ``words``; an index that uv has been given itself holds."""
    left_out = set(FURTHER) if words[0] == "compile" else set()
    if "--no-index" in words:  # what is to be installed already comes from no other place either
        left_out |= set(OPTIONS)
    if {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & set(environment):
        left_out.add("index-url")
    options = ["--no-config", "--quiet", "--python", sys.executable]
    options += ["--index-strategy", "unsafe-best-match"]
    for name in (name for name in OPTIONS if name not in left_out):
        for value in settings.get(name, "").split():
            options += [OPTIONS[name], value]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t"):
        options += [] if "--no-index" in words else ["--no-index"]
    return options


def uv_environment(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that uv runs in: without what names another Python or another set."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")
        and (not name.startswith("UV_") or name.startswith(tuple(KEPT)))
    }
    if "cert" in settings:
        kept.setdefault("SSL_CERT_FILE", settings["cert"])
    if "proxy" in settings:
        kept.setdefault("ALL_PROXY", settings["proxy"])
    return kept


def main(words: list[str]) -> int:
    """Run `uv pip WORDS`, first from its cache alone where hashes say which files are meant.

    Returns 0 where the cache has all of them, 2 where a Python of the system would be touched; else
    this process becomes uv."""
    if sys.prefix == sys.base_prefix:
        print(
            f"{sys.executable} is no virtual environment, and nothing is installed into any other"
            " Python. Type: make setup",
            file=sys.stderr,
        )
        return 2
    listing = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    done = subprocess.run(listing, capture_output=True, text=True, check=True)
    settings = read_settings(done.stdout)
    command = [sys.executable, "-m", "uv", "pip", *words, *uv_options(words, settings, os.environ)]
    environment = uv_environment(settings, os.environ)
    if "--require-hashes" in words:
        cached = subprocess.run([*command, "--offline"], capture_output=True, env=environment)
        if cached.returncode == 0:
            return 0
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
