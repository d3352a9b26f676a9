"""What of a cell goes to MLflow: its axes, an allow-listed config and the recorded metrics.

The records under ``runs/`` are the truth and this is how they are projected, as plain data and
without MLflow: the live log and the rebuild use the same functions, so both store the same
points. Nothing that looks like a secret passes.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Mapping
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
    swept = {
        key: value
        for key, value in flatten(cell.data).items()
        if any(_sweeps(factor, key, cell.data) for factor in config.factors)
    }
    unset = {key: "-" for key, value in values.items() if value == ""}
    return _texts(cell, {**swept, **values}) | unset


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
