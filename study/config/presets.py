"""The presets: a folder of ``conf/`` is a group, a YAML file in it a preset.

`folders` says where they are looked for: in the folder that ``config_dir=`` names, in ``./conf``,
and among those that ship. A preset is the file of the first folder that has it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from study.config.bounds import shown
from study.errors import UserError
from study.system.files import read_yaml

GROUPS = {
    "experiment": "a whole study",
    "judge": "who scores the answers",
    "policy": "the model that is trained",
    "task": "the rows to train and test on",
    "reward": "how verdict and rules make one number",
    "trainer": "steps, batch, learning rate: GRPO",
    "arm": "settings that make one arm of an experiment",
    "executor": "the model that the operators of programs call",
    "scaffold": "criteria that some rollouts are shown",
    "profile": "the size at which the experiments on VerInstruct run",
    "debug": "a smoke test: two steps of everything",
    "tracking": "what MLflow gets",
    "data": "of judgedrift data prepare: which rows are drawn, and how they are cut",
}
"""Groups of presets, those first that most sweeps name."""
SHIPPED = (Path(__file__).resolve().parents[2] / "judgedrift" / "conf").resolve()
"""The presets of this project: of a checkout its ``conf``, of an installation those in it."""
OWN = Path("conf")
"""Where a user keeps presets, in the folder in which commands are typed."""
VARIABLE = "JUDGEDRIFT_CONFIG_DIR"
"""Environment variable that names a folder of presets, as ``config_dir=`` does: processes that this
one starts look there too."""
KEY, FLAGS = "config_dir", ("--config-dir", "-cd")
"""How a command line names that folder: ``config_dir=PATH``, or as Hydra's flag."""
WRITTEN = ("judge", "task", "reward", "experiment")
"""Groups of which ``judgedrift new`` writes a preset."""
NEAREST = 3
"""Names that a message offers in place of one that is not known."""
OTHER = "openai-compatible"
"""The preset of models that have none of their own."""
FEW = 5
"""Names that are all listed."""


def folders() -> list[Path]:
    """Where presets are looked for, the first first; each is absolute and there."""
    named = os.environ.get(VARIABLE)
    places = [*([Path(named).expanduser()] if named else []), OWN, SHIPPED]
    return list(dict.fromkeys(place.resolve() for place in places if place.is_dir()))


@contextmanager
def config_dir(words: Sequence[str]) -> Generator[list[str]]:
    """The words of a command line without those that name a folder of presets; within the block
    `folders` begins with it, here and in the processes that are started.
    Raises UserError: it is no folder, or named twice."""
    named, rest = _config_dir_apart(words)
    if not named:
        yield rest
        return
    if len(named) > 1:
        raise UserError(f"{KEY}= is given twice: {' and '.join(map(shown, named))}. Give it once.")
    folder = Path(named[0]).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"{KEY}={shown(named[0])} is not a folder. Name one with a folder for each group of"
            f" presets, such as {KEY}=presets for presets/judge/mine.yaml, or leave it out."
        )
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(folder.resolve())
    try:
        yield rest
    finally:
        del os.environ[VARIABLE]
        os.environ.update({} if before is None else {VARIABLE: before})


def _config_dir_apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The folders of presets that a command line names, and its other words."""
    named, rest = [], []
    left = iter(words)
    for word in left:
        key, equals, value = word.partition("=")
        if key not in (KEY, *FLAGS) or (key == KEY and not equals):
            rest.append(word)
        else:
            named.append(value if equals else next(left, ""))
    return named, rest


def config_dir_words() -> list[str]:
    """What has to be typed with a command for it to find the presets of this one."""
    named = os.environ.get(VARIABLE)
    return [f"{KEY}={named}"] if named else []


def preset_file(group: str, name: str) -> Path:
    """The file of a preset; one that is not there where no folder has it."""
    files = [folder / group / f"{name}.yaml" for folder in folders()]
    return next((file for file in files if file.is_file()), files[-1])


def preset_text(group: str, name: str) -> str:
    """The text of a preset's file, comments and all."""
    return preset_file(group, name).read_text(encoding="utf-8")


def preset_names(group: str) -> list[str]:
    """The presets of a config group."""
    return sorted({path.stem for each in folders() for path in (each / group).glob("*.yaml")})


def preset_groups() -> list[str]:
    """The config groups."""
    return sorted({path.parent.name for each in folders() for path in each.glob("*/*.yaml")})


def nearest(word: str, words: Iterable[str], most: int = NEAREST) -> list[str]:
    """The words that are most like ``word``: those that are spelled nearly so, then those that
    contain it."""
    names = list(words)
    close = difflib.get_close_matches(word, names, n=most)
    inside = [name for name in names if len(word) > 2 and word.lower() in name.lower()]
    return list(dict.fromkeys([*close, *inside]))[:most]


def unknown_name(
    name: object, what: str, names: Sequence[str], near: str = "", most: int = 30
) -> str:
    """What to say of a name that is none of ``names``: the nearest, or ``near`` where it is one of
    them, and those that are legal."""
    offered = [near] if near in names else nearest(str(name), names, 1)
    guess = f" Did you mean {offered[0]}?" if offered else ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    legal = f"{', '.join(names[:most])}{more}" if names else "none"
    return f"{shown(name)} is not {what}.{guess} Legal are {legal}."


def any_of(words: list[str]) -> str:
    """``a, b or c``."""
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def read_preset(group: str, name: str) -> Mapping[str, Any]:
    """What the file of a preset sets itself, without Hydra and without the presets it builds on.
    Raises UserError: there is no such preset, or its file cannot be read."""
    if name not in preset_names(group):
        raise UserError(no_preset(group, name))
    content = read_yaml(preset_file(group, name))
    content.pop("defaults", None)
    return content


def no_preset(group: str, name: str) -> str:
    """What to say of a name that no preset of a group has."""
    names = preset_names(group)
    near = nearest(name, names)
    if near:
        offered = f"Did you mean {any_of(near)}?"
    elif len(names) <= FEW:
        offered = f"There is {any_of(names)}."
    else:
        offered = f"There are {', '.join(names[:NEAREST])} and {len(names) - NEAREST} more."
    example = f" Type for example {group}={near[0]}." if near else ""
    if not near and OTHER in names:
        example = f" Type {group}={OTHER} for any other model behind an OpenAI-compatible endpoint."
    own = f"For one of your own, write conf/{group}/NAME.yaml."
    if group in WRITTEN:
        own = f"For one of your own, conf/{group}/NAME.yaml, type judgedrift new {group} NAME."
    return f"{group}={shown(name)} is not a preset. {offered}{example} {own}"
