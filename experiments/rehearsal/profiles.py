"""How a named model answers: its distributions, limits and failures, from ``profiles.toml``."""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from study.config.schema import Model
from study.errors import UserError

FILE = Path(__file__).with_name("profiles.toml")
Z_99 = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""
FAILURES = ("http_500", "hang", "unparsed", "empty", "refused")
SOURCES = ("latency", "tokens", "limits", "failures")


@dataclass(frozen=True)
class Spread:
    """A log-normal distribution by its median and its 99th percentile."""

    median: float
    p99: float

    def at(self, z: float) -> float:
        """Its value where a standard normal distribution has ``z``."""
        if not self.median:
            return 0.0
        return self.median * math.exp(z * math.log(self.p99 / self.median) / Z_99)


NONE = Spread(0.0, 0.0)


@dataclass(frozen=True)
class Draw:
    """How one request is answered: seconds and tokens at full size, nothing divided."""

    first_token_s: float
    token_s: float
    reasoning_tokens: int
    spoken_tokens: int
    failure: str
    """One of `FAILURES`; empty where there is none."""

    def seconds(self, tokens: float) -> float:
        """Of a reply with so many tokens, those of the reasoning included."""
        return self.first_token_s + tokens * self.token_s


@dataclass(frozen=True)
class Profile:
    """How one model answers; ``profiles.toml`` says what each number is."""

    first_token_s: Spread
    token_s: Spread
    spoken_tokens: Spread
    reasoning_tokens: Spread = NONE
    requests_per_min: float | None = None
    tokens_per_min: float | None = None
    failures: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def draw(self, random_numbers: random.Random) -> Draw:
        """How one request is answered. The order of the draws is fixed."""
        first, token, reasoning, spoken = (
            spread.at(random_numbers.gauss(0.0, 1.0))
            for spread in (
                self.first_token_s,
                self.token_s,
                self.reasoning_tokens,
                self.spoken_tokens,
            )
        )
        failing, failure = random_numbers.random(), ""
        for kind, share in self.failures.items():
            if 0 <= failing < share:
                failure = kind
            failing -= share
        return Draw(first, token, round(reasoning), round(spoken), failure)


Profiles = Mapping[str, Mapping[str, Profile]]
"""Role, judge or executor -> name of the preset -> its profile."""


def read_profiles(more: Path | None = None) -> Profiles:
    """Those of this project and those of the file ``more``, which come before ours.
    Raises UserError: the file cannot be read, or is not a table of profiles."""
    profiles: dict[str, dict[str, Profile]] = {"judge": {}, "executor": {}}
    for path in filter(None, (FILE, more)):
        try:
            read = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(
                f"profiles={path} cannot be read as TOML ({error}). Copy {FILE} and change it."
            ) from error
        for role, models in read.items():
            if role not in profiles or not isinstance(models, dict):
                raise _illegal(path, role, "a table of judge.NAME or executor.NAME")
            for name, values in models.items():
                profiles[role][name] = _profile(path, f"{role}.{name}", values)
    return profiles


def profile_of(model: Model, profiles: Profiles) -> Profile:
    """The profile of a judge or an executor. Raises UserError: it has none."""
    of_role = profiles[model.role]
    if model.name not in of_role:
        raise UserError(
            f"{model.role}={model.name} has no profile, so nobody knows how to rehearse it. Legal"
            f" are {', '.join(of_role)}. For another, type profiles=FILE with a table"
            f" [{model.role}.{model.name}] like those of {FILE}."
        )
    return of_role[model.name]


def _profile(path: Path, name: str, values: Any) -> Profile:
    legal = [item.name for item in fields(Profile)]
    if not isinstance(values, dict) or set(values) - set(legal):
        raise _illegal(path, name, f"a table of {', '.join(legal)}")
    read: dict[str, Any] = {}
    for key, value in values.items():
        if key == "failures":
            read[key] = _failures(path, f"{name}.{key}", value)
        elif key == "sources":
            read[key] = value
        elif key.endswith("_per_min"):
            if not _is_number(value) or value <= 0:
                raise _illegal(path, f"{name}.{key}", "a number above 0")
            read[key] = float(value)
        else:
            read[key] = _spread(path, f"{name}.{key}", value)
    for key in ("first_token_s", "token_s", "spoken_tokens"):
        if key not in read:
            raise _illegal(path, f"{name}.{key}", "there, as [median, 99th percentile]")
    sources = read.get("sources")
    if not isinstance(sources, dict) or set(sources) != set(SOURCES):
        raise _illegal(
            path, f"{name}.sources", f"a table of {', '.join(SOURCES)}, where each is from"
        )
    return Profile(**read)


def _spread(path: Path, name: str, value: Any) -> Spread:
    legal = "[median, 99th percentile], two numbers above 0, the second not the smaller"
    if not isinstance(value, Sequence) or len(value) != 2 or not all(map(_is_number, value)):
        raise _illegal(path, name, legal)
    if not 0 < value[0] <= value[1]:
        raise _illegal(path, name, legal)
    return Spread(float(value[0]), float(value[1]))


def _failures(path: Path, name: str, value: Any) -> dict[str, float]:
    legal = f"a table of {', '.join(FAILURES)}, each a share, 1 in all at the most"
    if not isinstance(value, dict) or set(value) - set(FAILURES):
        raise _illegal(path, name, legal)
    if not all(_is_number(share) and share >= 0 for share in value.values()):
        raise _illegal(path, name, legal)
    if sum(value.values()) > 1:
        raise _illegal(path, name, legal)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _illegal(path: Path, name: str, legal: str) -> UserError:
    return UserError(f"{name} in profiles={path} must be {legal}. {FILE} shows the form.")
