"""Lists the presets, each with what it is: ``judgedrift presets``, or those of one group.

A group is what is typed before the =, as judge in judge=sim-fair. What a preset sets is in its
file; what a setting is, judgedrift help KEY says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.display.printed import aligned, fold
from study.cli import command, word
from study.config.identity import flatten
from study.config.presets import (
    GROUPS,
    preset_groups,
    preset_names,
    preset_text,
    read_preset,
    unknown_name,
)
from study.errors import UserError
from study.screen import columns, visible

MODELS = ("judge", "executor", "policy")
"""Groups whose presets are models."""
THEIR_OWN = ("name", "endpoint.start_command")
"""Settings in which all presets differ."""
NOT_TYPED = ("held_out", "variant", "accelerate")
"""Folders that other presets choose from, or that are no presets."""


@dataclass(frozen=True)
class Options:
    """Options of `judgedrift.presets`: the group."""

    group: str | None = word(
        "group of presets, such as judge; left out, all groups", required=False
    )


@command("judgedrift.presets judge", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0, 2 for a user's error."""
    print(visible("\n".join(overview() if options.group is None else of_group(options.group))))
    return 0


def groups() -> list[str]:
    """The groups that can be typed, in the order in which they are shown."""
    there = [group for group in preset_groups() if group not in NOT_TYPED]
    return [*(group for group in GROUPS if group in there), *(g for g in there if g not in GROUPS)]


def overview() -> list[str]:
    """Every group with what it is and how many presets it has."""
    rows = [
        {"group": group, "presets": str(len(names(group))), "what it is": GROUPS.get(group, "")}
        for group in groups()
    ]
    return [*aligned(rows), "", "To see those of one, type for example: judgedrift presets judge"]


def of_group(group: str) -> list[str]:
    """The presets of a group, a row for each, and how those of one model differ.
    Raises UserError: no such group, or a file of it cannot be read."""
    if group not in groups():
        name = next((g for g in groups() if group in names(g)), None)
        wrong = unknown_name(group, "a group of presets", groups())
        what = f"{group} is a preset of {name}. Type: judgedrift presets {name}" if name else wrong
        raise UserError(what)
    contents = {name: read_preset(group, name) for name in names(group)}
    rows = [
        {group: name, "what it is": described(about(group, name), _facts(group, content))}
        for name, content in contents.items()
    ]
    lines = aligned(rows)
    for line in differences(contents) if group in MODELS else ():
        lines += ["", *fold(line, columns())]
    return lines


def described(text: str, facts: Sequence[str]) -> str:
    """``Pays 0.15 per standard deviation of flattery [simulated; free]``"""
    known = "; ".join(filter(None, facts))
    return f"{text} [{known}]".strip() if known else text


def names(group: str) -> list[str]:
    """The presets of a group, but for the schema behind them."""
    return [name for name in preset_names(group) if name != "base"]


def about(group: str, name: str) -> str:
    """The first sentence of the comment at the head of a preset's file, behind the command that it
    begins with."""
    comments = []
    for line in preset_text(group, name).splitlines():
        if not line.startswith("#"):
            break
        comments.append(line.removeprefix("#"))
    words: list[str] = []
    continued = False
    for line in comments:
        is_command = continued or line.lstrip().startswith(("judgedrift ", "export ", "@package "))
        continued = is_command and line.rstrip().endswith("\\")
        words += [] if is_command else line.split()
    text = " ".join(words)
    end = next((at for at in _ends(text) if at > 0), len(text))
    return text[:end].rstrip(".")


def _ends(text: str) -> Iterable[int]:
    """Where sentences of a text end."""
    for at in range(1, len(text) - 1):
        if text[at] in ".;" and text[at + 1] == " ":
            yield at


def _facts(group: str, content: Mapping[str, Any]) -> list[str]:
    """Family and size, price and source of a model."""
    if group not in MODELS:
        return []
    family, size = (str(content.get(name, "")) for name in ("family", "size"))
    if is_computed(content):
        return [family, "free"]
    return [
        f"{family} {size}".strip(),
        "" if group == "policy" else price(content),
        source(content),
    ]


def is_computed(content: Mapping[str, Any]) -> bool:
    """Whether this program computes what the model says."""
    return content.get("simulated") is not None or content.get("scorer") is not None


def price(content: Mapping[str, Any]) -> str:
    """US dollars per million tokens in and out, or why there are none."""
    listed = content.get("price", {})
    if listed.get("input") or listed.get("output"):
        return f"${listed.get('input', 0):g} in, ${listed.get('output', 0):g} out per M tokens"
    return "time of your machine" if content.get("serve", {}).get("model") else "no price set"


def source(content: Mapping[str, Any]) -> str:
    """Where a model's weights or its replies come from; empty where a preset does not say."""
    place = content.get("path") or content.get("serve", {}).get("model")
    return str(place or content.get("endpoint", {}).get("url", ""))


def differences(contents: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """A line for each set of presets that are one model: the settings in which they differ."""
    by_source: dict[str, list[str]] = {}
    for name, content in contents.items():
        if (place := source(content)) and not is_computed(content):
            by_source.setdefault(place, []).append(name)
    for place, alike in by_source.items():
        if len(alike) < 2:
            continue
        flats = {name: flatten(dict(contents[name])) for name in alike}
        keys = sorted({key for flat in flats.values() for key in flat} - {*THEIR_OWN})
        differing = [
            f"{key} ({', '.join(_value(flats[name], key) for name in alike)})"
            for key in keys
            if len({_value(flat, key) for flat in flats.values()}) > 1
        ]
        apart = "; ".join(differing) or "nothing but their names"
        yield f"{', '.join(alike)}: the same model, {place}. They differ in {apart}."


def _value(flat: Mapping[str, Any], key: str) -> str:
    return str(flat[key]) if key in flat else "default"


if __name__ == "__main__":
    sys.exit(main())
