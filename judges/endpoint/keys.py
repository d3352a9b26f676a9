"""Where an endpoint's key is: in an environment variable, and nowhere else."""

from __future__ import annotations

import os

from study.config.schema import Endpoint
from study.errors import UserError


def read_key(endpoint: Endpoint) -> str:
    """The key in the environment variable that an endpoint names; empty if there is none."""
    return os.environ.get(endpoint.api_key_env or "", "").strip()


def check_key(endpoint: Endpoint, who: str) -> None:
    """Refuse an endpoint whose key is not in the environment; ``who`` needs it and begins the
    sentence.
    Raises UserError: with the variable to set."""
    name = endpoint.api_key_env
    if name and not read_key(endpoint):
        raise UserError(
            f"{who} needs its API key in the environment variable {name}, which is not set. Type "
            f"`export {name}=...` with the key, and rerun the command; the key is never written to"
            " a file."
        )
