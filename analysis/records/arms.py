"""What the arms of a study are called, by their cells' configs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from study.config.identity import flatten, identifying, left_out

NAMELESS = "(no name)"
"""Judge of a cell whose config names none, or cannot be read."""
CONTAINERS = ("judge.simulated.doses.", "judge.simulated.", "judge.sampling.", "judge.")
"""Parts of a judge that its arm's name leaves out of a key: ``length=0.15``, ``votes=3``."""


def arm_names(configs: Sequence[Mapping[str, Any]], factors: Sequence[str]) -> list[str]:
    """The arm of each cell, in order.

    An arm is the judge's name, then ``factor=value`` of every other declared factor that varies but
    the seed, then ``key=value`` of what differs between judges of one name, such as votes or
    grading, and between rewards of one name, or corrections, where those are a factor. The factor
    ``judge`` declares all of a judge, ``reward`` all of a reward: averaging two settings of one
    preset would call treatments replicates. Where every cell names its arm, the name stands for all
    that.

    Args:
        configs: resolved configs as they were saved; an empty one where it could not be read.
        factors: of the study.
    """
    flats = [flatten(config) for config in configs]
    judges = [str(flat.get("judge.name") or NAMELESS) for flat in flats]
    named = [str(flat.get("arm") or "") for flat in flats]
    if all(named) and len(set(named)) > 1:
        return [f"{judge}, {name}" for judge, name in zip(judges, named, strict=True)]
    names = list(judges)
    for factor in factors:
        values = [str(flat.get(factor, flat.get(f"{factor}.name"))) for flat in flats]
        if factor not in ("judge", "seed") and len(set(values)) > 1:
            names = [f"{name}, {factor}={value}" for name, value in zip(names, values, strict=True)]
    for part in ("judge", *(name for name in ("reward", "correction") if name in factors)):
        alike = judges if part == "judge" else [str(flat.get(f"{part}.name")) for flat in flats]
        suffixes = _variants(configs, part, alike)
        names = [name + suffix for name, suffix in zip(names, suffixes, strict=True)]
    return names


def _variants(configs: Sequence[Mapping[str, Any]], part: str, presets: Sequence[str]) -> list[str]:
    """``, key=value`` of what differs in a part of the config between cells of one preset of it."""
    settings = [
        {
            key: _shown(value)
            for key, value in identifying(dict(config)).items()
            if key.startswith(f"{part}.") and not key.startswith("correction.parts.")
        }
        for config in configs
    ]
    alike: dict[str, list[int]] = defaultdict(list)
    for place, preset in enumerate(presets):
        alike[preset].append(place)
    differing: dict[str, dict[int, str]] = defaultdict(dict)
    for places in alike.values():
        for key in {key for place in places for key in settings[place]}:
            values = [settings[place].get(key, _shown(left_out(key))) for place in places]
            if len(set(values)) > 1:
                differing[key] |= zip(places, values, strict=True)
    suffixes = [""] * len(presets)
    for key, name in _short(sorted(differing)).items():
        for place, value in differing[key].items():
            suffixes[place] += f", {name}={value}"
    return suffixes


def _shown(value: object) -> str:
    """A value as it stands in a name: 0 and not 0.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _short(keys: Iterable[str]) -> dict[str, str]:
    """Keys without the parts of a judge that they lie in; whole where two would be one."""
    short = {}
    for key in keys:
        within = next((part for part in CONTAINERS if key.startswith(part)), "")
        short[key] = key.removeprefix(within)
    counts = Counter(short.values())
    return {key: name if counts[name] == 1 else key for key, name in short.items()}
