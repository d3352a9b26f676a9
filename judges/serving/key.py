"""The API key of a service: 32 random bytes in a file for one account, and in the environment of
the processes that serve or ask. It is in no config, record, log, argument or book.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

from judges.endpoint.keys import check_key
from judges.serving.book import Service, is_wide
from study.config.schema import Model
from study.errors import UserError
from study.system.files import Damaged, read_text

_OWN_KEY_ADVICE = (
    "Or use your own key, the same for server and client: `export JUDGE_KEY=...` on"
    " every node, and {role}.endpoint.api_key_env=JUDGE_KEY in both commands."
)


def with_key(model: Model, service: Service, makes: bool = False) -> Model:
    """``model`` with the key of its service in a variable of this process. A key that the model's
    own ``api_key_env`` names takes its place; a service on loopback has none.

    Args:
        makes: the caller owns the service, and makes a key where there is none.

    Raises:
        UserError: the key cannot be read, or not be kept to one account.
    """
    if not is_wide(model):
        return model
    if model.endpoint.api_key_env:
        check_key(model.endpoint, f"The service {service.name}")
        return model
    if makes:
        _make(service.key_path, model.role)
    digest = hashlib.sha256(service.name.encode()).hexdigest()[:12]
    variable = f"JUDGEDRIFT_KEY_{digest.upper()}"
    os.environ[variable] = _read(service.key_path, model)
    endpoint = dataclasses.replace(model.endpoint, api_key_env=variable)
    return dataclasses.replace(model, endpoint=endpoint)


def _make(path: Path, role: str) -> None:
    if path.exists() and (_is_open(path) or not path.stat().st_size):
        path.unlink()
    with suppress(FileExistsError):  # that of an owner who was killed: its users know it
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    if _is_open(path):
        path.unlink()
        raise UserError(
            f"{path} would hold the API key of the service, but its file system lets other"
            f" accounts read it. {_OWN_KEY_ADVICE.format(role=role)}"
        )


def _is_open(path: Path) -> bool:
    """Whether other accounts may read or write a file."""
    return bool(os.stat(path).st_mode & 0o077)


def _read(path: Path, model: Model) -> str:
    try:
        return read_text(path).strip()
    except (FileNotFoundError, Damaged) as error:
        why = error.why if isinstance(error, Damaged) else "is not there"
        raise UserError(
            f"{path} should hold the API key of the service of {model.role}={model.name}, but it"
            f" {why}. Only the account that started the service can read it. Run this as that"
            f" account (see: ls -l {path}). {_OWN_KEY_ADVICE.format(role=model.role)}"
        ) from None
