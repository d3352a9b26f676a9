"""How a study is typed: the command that composes to the very cells that are on record.

A study that is to be run again with one thing changed has to be typed with all that it differs in
from the presets. `command_of` finds an experiment of ``conf/`` and the fewest settings that do so.
"""

from __future__ import annotations

import functools
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from analysis.records.runs import Run
from study.config.compose import hydra_presets, opened, plain, preset_names, respelled
from study.config.composer import Composer
from study.config.identity import ABSENT, identifying, left_out
from study.config.override_errors import nothing_below_null
from study.config.presets import config_dir_words, preset_file
from study.config.schema import register
from study.errors import UserError
from study.system.files import read_yaml

SWEEP = "python -m experiments.sweep"
USUAL = "quickstart"
"""The experiment of a sweep that names none."""
FEW = 3
"""Settings beside an experiment with which no other is looked for."""
MOST_TRIED, MOST_ARMS = 4, 12
"""Experiments, and cells of their sweeps, that are composed to find a study's own."""
GROUPS = ("policy", "task", "reward", "trainer", "scaffold", "executor", "judge")
"""Parts of a config whose name is that of a preset."""
MADE = ("seed", "shadow_judges", "correction.parts")
"""What a cell has beside what is composed."""
_SIMPLE = re.compile(r"[\w./:@-]+\Z")


@dataclass(frozen=True)
class StudyCommand:
    """The words of a sweep, without its seeds and the study's name.

    Attributes:
        experiment: a preset.
        shared: settings of all arms beside it.
        key: what the sweep over the arms is of, such as ``judge``; empty where the experiment
            itself makes the arms, or there is one and nothing to sweep over.
        values: of the key, in the order of the runs.
    """

    experiment: str
    shared: tuple[str, ...]
    key: str
    values: dict[str, str]
    """Arm -> its value of the key."""

    def typed(self, words: Sequence[str], values: Sequence[str] | None = None) -> str:
        """The command with further words; with other values of the key than those of all arms."""
        head = [] if self.experiment == USUAL else [f"experiment={self.experiment}"]
        swept = list(self.values.values()) if values is None else values
        arms = [f"{self.key}={','.join(swept)}"] if self.key else []
        return f"{SWEEP} {shlex.join([*config_dir_words(), *head, *self.shared, *arms, *words])}"


def command_of(runs: Sequence[Run]) -> StudyCommand | None:
    """How the cells of these runs are typed; None where no experiment leads to them."""
    arms = list({run.arm: run for run in reversed(runs)}.values())[::-1]
    names = _candidates(arms[0])
    whole = (command for name in names if (command := _as_it_is(name, arms)) is not None)
    if (command := next(whole, None)) is not None:
        return command
    tried: list[tuple[int, str]] = []
    for name in names:
        words = _settings(arms[0], name)
        if words is not None:
            tried.append((len(words), name))
            if len(words) <= FEW:
                break
    changed = (_changed(name, arms) for _, name in sorted(tried))
    return next(filter(None, changed), None)


def _as_it_is(experiment: str, arms: Sequence[Run]) -> StudyCommand | None:
    """The command of an experiment whose own sweep is over these arms and no others."""
    swept = _swept(experiment)
    choices = [
        [f"{key}={value.strip()}" for value in values.split(",")] for key, values in swept.items()
    ]
    if math.prod(map(len, choices)) != len(arms) or len(arms) > MOST_ARMS:
        return None
    words = {
        run.arm: cell
        for cell in product(*choices)
        for run in arms
        if _composed((f"experiment={experiment}", *cell)) == _settled(run)
    }
    if len(words) < len(arms):
        return None
    key = next(iter(swept), "")
    if len(swept) != 1 or key == "arm":
        return StudyCommand(experiment, (), "", {})
    values = {arm: cell[0].partition("=")[2] for arm, cell in words.items()}
    return StudyCommand(experiment, (), key, values)


def _changed(experiment: str, arms: Sequence[Run]) -> StudyCommand | None:
    """The command of an experiment with settings beside it, at most one of which makes the arms."""
    by_arm: list[tuple[str, ...]] = []
    for run in arms:
        words = _settings(run, experiment)
        if words is None:
            return None
        by_arm.append(words)
    shared = tuple(word for word in by_arm[0] if all(word in words for words in by_arm))
    own = {word.partition("=")[0] for words in by_arm for word in words if word not in shared}
    keys = own | _swept(experiment).keys()
    if len(keys) > 1 or "arm" in keys:
        return None
    key = next(iter(keys), "")
    values = {run.arm: text for run in arms if key if (text := _value(run, key)) is not None}
    if key and len(values) < len(arms):  # the experiment sweeps over what these runs do not have
        return None
    others = tuple(word for word in shared if word.partition("=")[0] != key)
    return StudyCommand(experiment, others, key, values)


def steps_of(experiment: str, settings: Sequence[str]) -> int:
    """Steps of a cell that is typed so; 0 where it cannot be."""
    made = _composed((f"experiment={experiment}", *settings))
    steps = 0 if made is None else made.get("trainer.steps", left_out("trainer.steps"))
    return steps if isinstance(steps, int) else 0


def _candidates(run: Run) -> list[str]:
    """Experiments of the run's policy and task, the study's own and the usual one first."""
    names = []
    for name in preset_names("experiment"):
        content = _experiment(name)
        if content.get("trainer", {}).get("steps") == 1:  # it reads a policy and trains none
            continue
        if "trainer" in content.get("factors", ()) and not _swept(name):  # another command sweeps
            continue
        chosen = {
            key.removeprefix("override /"): value
            for entry in content.get("defaults", [])
            if isinstance(entry, dict)
            for key, value in entry.items()
        }
        ours = {group: run.config.get(f"{group}.name") for group in ("policy", "task")}
        if all(chosen.get(group, preset) == preset for group, preset in ours.items()):
            names.append((content.get("study") != run.config.get("study"), name != USUAL, name))
    return [name for *_, name in sorted(names)][:MOST_TRIED]


def _swept(experiment: str) -> dict[str, str]:
    """What an experiment sweeps over beside seeds: key -> its values with commas."""
    params: Mapping[str, Any] = (
        _experiment(experiment).get("hydra", {}).get("sweeper", {}).get("params", {})
    )
    return {key: str(values) for key, values in params.items() if key != "seed"}


def _settings(run: Run, experiment: str) -> tuple[str, ...] | None:
    """The fewest settings beside an experiment that compose to a run; None where it cannot be
    typed."""
    identity = _composed((f"experiment={experiment}",))
    if identity is None:
        return None
    presets = tuple(_other_presets(run, identity))
    identity = _composed((f"experiment={experiment}", *presets))
    if identity is None:
        return None
    wanted, words = _settled(run), list(presets)
    for key in sorted(wanted.keys() | identity.keys()):
        value = wanted.get(key, left_out(key))
        if key in wanted and key in identity and value == identity[key]:
            continue
        if (text := _spelled(value)) is None:
            return None
        words.append(f"{key}={text}")
    return tuple(words) if _composed((f"experiment={experiment}", *words)) == wanted else None


def _settled(run: Run) -> dict[str, Any]:
    """What a run was composed of: its identity, and the shadow judges by their names."""
    return _composition(run.identity, _with_lists(run.config).get("shadow"))


def _composition(identity: Mapping[str, Any], shadow: list[str] | None) -> dict[str, Any]:
    made = {
        key: value
        for key, value in identity.items()
        if not any(key == name or key.startswith(f"{name}.") for name in MADE)
    }
    return _with_lists(made) | ({"shadow": shadow} if shadow else {})


def _with_lists(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A flat config in which lists of values are values."""
    lists: dict[str, Any] = {}
    for key, value in flat.items():
        name, _, place = key.rpartition(".")
        if place.isdigit() and name:
            lists.setdefault(name, []).append(value)
        else:
            lists[key] = value
    return lists


def _other_presets(run: Run, identity: Mapping[str, Any]) -> Iterator[str]:
    """The presets of a run by their names, where another is composed."""
    for group in GROUPS:
        name = run.identity.get(f"{group}.name")
        if name != identity.get(f"{group}.name") and name in preset_names(group):
            yield f"{group}={name}"


def _value(run: Run, key: str) -> str | None:
    """What a run has for a group of presets or a setting, as it is typed; None for nothing."""
    if key in GROUPS:
        return str(run.config[f"{key}.name"])
    settings = _with_lists(run.config)
    return _spelled(settings[key]) if key in settings else None


def _spelled(value: object) -> str | None:
    """A value as it is typed; None for one that takes more than a word."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        members = [_spelled(each) for each in value]
        return None if None in members else f"[{','.join(map(str, members))}]"
    is_simple = isinstance(value, str) and value != ABSENT and _SIMPLE.match(value)
    return str(value) if is_simple else None


@functools.cache
def _experiment(name: str) -> dict[str, Any]:
    """What the file of an experiment says."""
    return read_yaml(preset_file("experiment", name))


@functools.cache
def _composed(words: tuple[str, ...]) -> dict[str, Any] | None:
    """What a cell that is typed so is composed of; None where it cannot be."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with nothing_below_null(words):
            made = plain(_composer().composed(opened(respelled(words))), "this study")
        return _composition(identifying(made), made["shadow"])
    except (HydraException, OmegaConfBaseException, UserError):
        return None


@functools.cache
def _composer() -> Composer:
    """One for all compositions of this process."""
    from hydra.core.global_hydra import GlobalHydra

    register()
    with hydra_presets():
        return Composer(GlobalHydra.instance().config_loader())
