"""What of a cell goes to MLflow: its axes, an allow-listed config and the recorded metrics.

The records under ``runs/`` are the truth and this is how they are projected, as plain data and
without MLflow: the live log and the rebuild use the same functions, so both store the same
points. Nothing that looks like a secret passes.
"""

from __future__ import annotations

import itertools
import json
import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from judges.endpoint.keys import read_key
from study.cell.cells import Cell, models_of
from study.config import marks
from study.config.identity import flatten
from study.config.marks import marked_keys, under
from study.config.schema import Study
from study.system.secret_names import is_secret_name
from study.system.secrets import redact

LISTED = marked_keys(Study, marks.MLFLOW_PARAM)
"""Config that may become a parameter; anything else stays in the cell's ``config.yaml``."""
VALUE_LIMIT = 500
NONFINITE = "tracking/nonfinite"
"""How many values of a step were None, NaN or infinite, and so were not sent."""


class Point(NamedTuple):
    """One value of a metric; equal points are stored once, however often they are sent."""

    name: str
    value: float
    time_ms: int
    step: int


def axes(cell: Cell) -> dict[str, str]:
    """What a study groups by, for parameters and tags alike; a value that is not set reads "-"."""
    config, judge, policy = cell.config, cell.config.judge, cell.config.policy
    values = {
        "judge.name": judge.name,
        "judge.family": judge.family,
        "judge.size": judge.size,
        "judge.grading": judge.grading.name,
        "judge.on_failure": judge.on_failure,
        "reward": config.reward.name,
        "policy": policy.name,
        "policy.family": policy.family,
        "policy.size": policy.size,
        "task": config.task.name,
        "seed": config.seed,
        "scaffold": config.scaffold.name,
        "cell": cell.name,
        "study": config.study,
    }
    unset = {key: "-" for key, value in values.items() if value == ""}
    return _texts(cell, {**_swept(cell), **values}) | unset


def _swept(cell: Cell) -> dict[str, object]:
    """The part of the flat config by which the study's factors differ."""
    return {
        key: value
        for key, value in flatten(cell.data).items()
        if any(_sweeps(factor, key, cell.data) for factor in cell.config.factors)
    }


def factors(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """The values of each factor of a study, in the order of its cells; of a factor that is a whole
    part of the config, those settings that differ."""
    values: dict[str, dict[str, None]] = {}
    for cell in cells:
        for key, value in _texts(cell, _swept(cell)).items():
            values.setdefault(key, {})[value] = None
    named = {name for cell in cells for name in cell.config.factors}
    return {
        key.removesuffix(".name"): list(texts)
        for key, texts in values.items()
        if key.removesuffix(".name") in named or len(texts) > 1
    }


def factor_params(values: Mapping[str, Sequence[str]], before: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a study's run that have the values of its factors. Parameters are
    write-once: those that are not among ``before`` yet get parameters of their own, ``judge 2``."""
    new = {}
    for factor, texts in values.items():
        names = itertools.chain([factor], (f"{factor} {n}" for n in itertools.count(2)))
        name, listed = next(names), ", "
        while name in before:
            listed += f"{before[name]}, "
            name = next(names)
        for line in _packed([text for text in texts if f", {text}, " not in listed]):
            new[name] = line
            name = next(names)
    return new


def _packed(texts: Sequence[str]) -> list[str]:
    """The texts after each other, in lines of `VALUE_LIMIT` characters."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + 2 + len(text) <= VALUE_LIMIT:
            lines[-1] += f", {text}"
        else:
            lines.append(text)
    return lines


def params(cell: Cell) -> dict[str, str]:
    """The axes, and the listed part of the flat config; what is not set is left out."""
    listed = {key: value for key, value in flatten(cell.data).items() if under(key, LISTED)}
    if cell.config.shadow:
        listed["shadow"] = ",".join(cell.config.shadow)
    return _texts(cell, listed) | axes(cell)


def _sweeps(factor: str, key: str, data: Mapping[str, object]) -> bool:
    """Whether ``key`` is an axis by ``factor``; a group with a name is one axis, not its parts."""
    node: object = data
    for part in factor.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    if isinstance(node, Mapping) and "name" in node:
        return key == f"{factor}.name"
    return under(key, (factor,))


def keys_of(cell: Cell) -> list[str]:
    """The keys by which a cell reaches its judges and its executor: no text of it may hold them."""
    keys = {read_key(model.endpoint) for model in models_of([cell])}
    return sorted(keys - {""})


def _texts(cell: Cell, values: dict[str, Any]) -> dict[str, str]:
    """Keys and values as MLflow takes them, secrets out, long values cut."""
    keys = keys_of(cell)
    texts = {}
    for key, value in values.items():
        if value in ("", None, [], {}):
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        last = key.rpartition(".")[2]
        if is_secret_name(last) or last.lower().endswith("token"):
            text = "***"
        elif key.endswith(".url"):
            text = _address(text)
        texts[_name(key)] = redact(text, keys)[:VALUE_LIMIT]
    return texts


def _address(url: str) -> str:
    """Scheme, host, port and path of ``url``: no user, no password, no query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _name(key: str) -> str:
    """``key`` in the letters that MLflow allows, at most 250 of them."""
    plain = re.sub(r"[^/\w.\- :]", "_", key)
    return posixpath.normpath(plain).lstrip("./")[:250] or "_"


def points(step: int, time_ms: int, metrics: dict[str, Any]) -> list[Point]:
    """The finite values of one step as points, and how many there were that are not finite."""
    finite = {
        name: float(value)
        for name, value in metrics.items()
        if value is not None and math.isfinite(value)
    }
    if len(finite) < len(metrics):
        finite[NONFINITE] = float(len(metrics) - len(finite))
    return [Point(_name(name), value, time_ms, step) for name, value in finite.items()]
