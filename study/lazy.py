"""What a package offers by name, each loaded when it is first used.

``__getattr__ = lazily("judges", {"Session": "judges.ask.session"})`` in a package's ``__init__``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: name -> what the module ``where[name]`` calls so.
    Raises AttributeError: from what is returned, for a name that the package does not offer."""

    def offered(name: str) -> Any:
        if name not in where:
            offers = ", ".join(where)
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it offers {offers}"
            )
        return getattr(import_module(where[name]), name)

    return offered
