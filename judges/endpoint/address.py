"""What is an address of a model behind an endpoint."""

from __future__ import annotations

from urllib.parse import urlsplit

from study.errors import UserError
from study.system.secret_names import is_plain_place, shown_place

CALLS = ("/chat/completions", "/completions", "/models", "/embeddings")
"""Paths of an endpoint's calls below its base, which is its address."""


def check_address(url: str, role: str = "judge", in_process: bool = False) -> None:
    """Refuse what is no address of a model.

    Args:
        in_process: whether the model is simulated or a scorer, so that ``asgi`` is legal.

    Raises UserError: another scheme than http, https or asgi, no host, or the address of a call.
    """
    shown_url = f"={url!r}" if is_plain_place(url) else shown_place(url)
    try:
        parts = urlsplit(url)
        legal = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or a bracket is missing
        parts, legal = None, False
    if not legal and not (in_process and parts is not None and parts.scheme == "asgi"):
        inside = ", or asgi://simulated for a judge that has `simulated` or `scorer` settings"
        raise UserError(
            f"{role}.endpoint.url{shown_url} is not a legal address of a {role}. Give"
            f" http://host:port/v1, https://host/v1{inside if role == 'judge' else ''}."
        )
    path = parts.path.rstrip("/") if parts else ""
    if call := next((call for call in CALLS if path.endswith(call)), ""):
        raise UserError(
            f"{role}.endpoint.url{shown_url} is the address of one call. Give it without {call}:"
            " the requests add that."
        )
