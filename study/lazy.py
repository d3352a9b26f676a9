"""What a package offers by name, each loaded when it is first used.

``__getattr__ = lazily("judges", {"Session": "judges.ask.session"})`` in a package's ``__init__``.
A package above `study` runs this file by its path, for where another folder has the name of a
package of ours, `study` itself may be that one; then Python ends in a paragraph, not in a search
for the fault.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = ("study", "judges", "analysis", "experiments", "judgedrift")
"""Each needs those before it."""
ROOT = Path(__file__).parents[1]
"""Where they lie."""


class HiddenPackage(ImportError):
    """Another folder has the name of a package of ours, and Python finds it first."""

    __module__ = "study.lazy"


def lazily(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: name -> what the module ``where[name]`` calls so, or
    ``MODULE:NAME`` where it has another name there.
    Raises AttributeError: from what is returned, for a name that the package does not offer.
    Raises HiddenPackage: a package that it needs is hidden; a command ends with what to do."""
    if package in PACKAGES:
        refuse_hidden(PACKAGES[: PACKAGES.index(package)])

    def offered(name: str) -> Any:
        if name not in where:
            offers = ", ".join(where)
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it offers {offers}"
            )
        module, _, other = where[name].partition(":")
        return getattr(import_module(module), other or name)

    return offered


def refuse_hidden(packages: tuple[str, ...]) -> None:
    """As `lazily` says."""
    is_module = sys.argv[:1] == ["-m"]
    is_command = is_module or Path(sys.argv[0] if sys.argv else "").name == "judgedrift"
    for name in packages:
        place = _place(name)
        if place is None or _is_ours(place, name):
            continue
        instead = "Rename it, or start Python in another folder."
        if is_module:
            instead = (
                "Type the command by its name, judgedrift COMMAND, which works here; or rename"
                f" {place.name}, or type it in another folder."
            )
        problem = (
            f"{place} hides the package {name!r} of judgedrift, which lies in {ROOT}: Python looks"
            f" in {place.parent} first. {instead}"
        )
        if is_command:
            print(problem, file=sys.stderr)
            raise SystemExit(2)
        raise HiddenPackage(problem)
    if is_command and any(map(_is_beside, PACKAGES)):
        os.environ["PYTHONSAFEPATH"] = "1"  # or processes that are started would take those


def _place(name: str) -> Path | None:
    """Where Python takes a package from; None for nowhere."""
    module = sys.modules.get(name)
    spec = find_spec(name) if module is None else getattr(module, "__spec__", None)
    folders = list(getattr(spec, "submodule_search_locations", None) or [])
    file = getattr(spec, "origin", None) or getattr(module, "__file__", None)
    return Path(folders[0]) if folders else Path(file) if file else None


def _is_ours(place: Path, name: str) -> bool:
    return place.exists() and place.samefile(ROOT / name)


def _is_beside(name: str) -> bool:
    """Whether the working directory has a folder or file that would be taken for this package."""
    places = [place for place in (Path(name), Path(f"{name}.py")) if place.exists()]
    return any(not _is_ours(place, name) for place in places)
