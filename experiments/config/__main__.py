"""A configuration file in the style of the sources, as settings of a sweep.

    python -m experiments.config import=training.yaml

prints one setting a line, and after a ``#`` what has no counterpart here and why. The file is YAML,
flat or in sections: ``lora_rank: 64`` and ``{lora: {rank: 64}}`` are the same. Keys that are not
known are refused, each by its name. The settings belong behind a command:

    python -m experiments.sweep experiment=mixed-full $(python -m experiments.config \\
        import=training.yaml | grep -v '^#')

published=EXPERIMENT prints in place of that the settings of an experiment at full size beside the
published ones, with the reason where they differ; published=all is the table of the docs.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.config.published import EXPERIMENTS, markdown
from experiments.sweep import cells_of
from study.cli import command, option
from study.config import bounds
from study.config.bounds import Choice
from study.config.compose import preset_names
from study.errors import UserError
from study.screen import visible
from study.system.files import read_yaml
from study.system.tables import table
from study.tasks.mixture import DOMAINS

TABLE = table(__file__)
SECTIONS: dict[str, str] = TABLE.pop("sections")
"""Section of which nothing has a counterpart -> why."""


def by_name(keys: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A table of keys by every name that a key has in a file."""
    return {
        name: {**meaning, "key": key}
        for key, meaning in keys.items()
        for name in (key, *meaning.get("names", ()))
    }


KEYS = by_name(TABLE)
"""Key of a file -> what it is here."""
NEUTRAL = frozenset(
    "model models policy training train trainer grpo ppo rlvr lora rollout sampling generation"
    " generation_config generating_args training_args model_args data_args data dataset optimizer"
    " optimization algorithm actor_train actor_infer evaluation eval evaluator judge llm_judge"
    " hardware device system checkpoint checkpointing config general experiment kl".split()
)
"""Sections whose name says nothing of a key inside that the key does not say."""
SWITCHES = {"lora": "policy.lora.", "use_kl": "trainer.beta."}
"""Reader of a flag -> what it switches off."""
MOST = 1000
"""Keys that a file may hold."""
EXPERIMENT = "mixed-full"

Lines = list[str]


@dataclass(frozen=True)
class Vocabulary:
    """What the keys of a file mean: ``keys``, ``sections`` without a counterpart, those that say
    nothing of their keys (``neutral``), ``readers`` of values, and the experiment that the settings
    go to."""

    keys: dict[str, dict[str, Any]]
    sections: dict[str, str]
    neutral: frozenset[str]
    readers: dict[str, Callable[[Place], Lines]]
    experiment: str = EXPERIMENT


@dataclass(frozen=True)
class Options:
    """Options of `experiments.config`: the file to import, or the experiment to compare."""

    file: Path | None = option("YAML file with settings of the sources", key="import")
    published: str | None = option(
        "experiment to print beside its published settings", None, Choice(("all", *EXPERIMENTS))
    )

    def check(self) -> None:
        """Raises UserError: not one of the two."""
        if (self.file is None) == (self.published is None):
            raise UserError(
                "experiments.config takes import=FILE (settings of the sources) or"
                " published=EXPERIMENT (settings beside the published ones). Give one of them."
            )


@dataclass(frozen=True)
class Place:
    """A key of the file: where it stands, what it is here, and its value."""

    path: str
    meaning: dict[str, Any]
    value: Any


def read(file: Path, key: str = "import") -> dict[str, Any]:
    """The keys and values of a file that ``key`` names. Raises UserError: it cannot be read."""
    try:
        return read_yaml(file, "Correct it and rerun the command.")
    except FileNotFoundError as error:
        raise UserError(f"{key}={file} does not exist. Give the path of a YAML file.") from error


def imported(
    file: Path, content: dict[str, Any] | None = None, words: Vocabulary | None = None
) -> Lines:
    """The settings of a file, and what has none, as comments; ``content`` is that of the file where
    it is read already, ``words`` what its keys mean.
    Raises UserError: no such file, a key that is not known, a value that does not fit."""
    content = read(file) if content is None else content
    words = words or MIXTURE
    settings: dict[str, tuple[str, str]] = {}
    comments: Lines = []
    off: dict[str, str] = {}
    # first what switches others off, last what gives way to others
    for place in sorted(_places(content, file, words), key=_turn):
        target = place.meaning.get("to", "")
        if switch := next((by for key, by in off.items() if f"{target}.".startswith(key)), ""):
            comments.append(f"# {place.path}: {switch} switches it off")
            continue
        if place.value is False and place.meaning.get("as") in SWITCHES:
            off[SWITCHES[place.meaning["as"]]] = place.path
        for line in _read(place, words):
            if line.startswith("#"):
                comments.append(line)
                continue
            key, _, text = line.partition("=")
            before, whence = settings.get(key, (text, place.path))
            if key in settings and place.meaning.get("yields"):
                comments.append(f"# {place.path}: {whence} says it")
                continue
            if before != text:
                raise UserError(
                    f"{file} says {key}={before} by {whence} and {key}={text} by {place.path}."
                    " Leave one of them."
                )
            settings[key] = (text, whence)
    lines = [f"{key}={text}" for key, (text, _) in settings.items()]
    lines += _micro_batch(settings)
    check_composes(file, lines, words)
    return [*lines, *dict.fromkeys(comments)]


def _turn(place: Place) -> int:
    """In which turn a key is read."""
    return 0 if place.value is False else 2 if place.meaning.get("yields") else 1


def _places(content: dict[str, Any], file: Path, vocabulary: Vocabulary) -> list[Place]:
    """Every key of the file with what it is here. Raises UserError: some are not known."""
    places: list[Place] = []
    unknown = []
    for number, (path, value) in enumerate(_leaves(content, (), vocabulary)):
        if number == MOST:
            raise UserError(f"{file} holds more than {MOST} keys, so it is not a training.yaml.")
        words = tuple(re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_") for word in path)
        meaning = _meaning(words, vocabulary)
        where = ".".join(path)
        if meaning is None:
            nearest = difflib.get_close_matches(words[-1], vocabulary.keys, n=1)
            hint = f" (did you mean {nearest[0]}?)" if nearest else ""
            unknown.append(f"{bounds.shown(where)}{hint}")
        else:
            places.append(Place(where, meaning, value))
    if unknown:
        raise UserError(
            f"{file} holds unknown keys: {', '.join(unknown)}. Legal are"
            f" {', '.join(dict.fromkeys(entry['key'] for entry in vocabulary.keys.values()))}, in"
            " sections or not. Remove the others."
        )
    return places


def _leaves(
    value: Any, path: tuple[str, ...], vocabulary: Vocabulary
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of everything that is no section; a table that is a value stays whole."""
    if isinstance(value, dict) and value and not (path and _is_value(path, vocabulary)):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)), vocabulary)
    else:
        yield path, value


def _is_value(path: tuple[str, ...], vocabulary: Vocabulary) -> bool:
    """Whether the table at ``path`` is one value, such as the weights of domains."""
    words = tuple(word.lower() for word in path)
    if words[-1] in vocabulary.neutral or (meaning := _meaning(words, vocabulary)) is None:
        return False
    return meaning.get("whole", False) or "why" in meaning


def _meaning(words: tuple[str, ...], vocabulary: Vocabulary) -> dict[str, Any] | None:
    """What a path is here: its longest ending that is known, behind sections that say nothing."""
    sections = vocabulary.sections
    for start in range(len(words)):
        before, name = words[:start], "_".join(words[start:])
        if why := next((sections[word] for word in before if word in sections), ""):
            return {"why": why, "key": name}
        if name in vocabulary.keys and vocabulary.neutral.issuperset(before):
            return vocabulary.keys[name]
    if len(words) == 1 and words[0] in sections:
        return {"why": sections[words[0]], "key": words[0]}
    return None


def _read(place: Place, vocabulary: Vocabulary) -> Lines:
    """The settings that a key of the file stands for, and comments."""
    meaning, value = place.meaning, place.value
    if "why" in meaning:
        return [f"# {place.path}: {meaning['why']}"]
    if value is None:
        return [f"# {place.path}: it has no value"]
    if "as" in meaning:
        return vocabulary.readers[meaning["as"]](place)
    return [f"{meaning['to']}={value_text(place)}"]


def value_text(place: Place) -> str:
    """A plain value as Hydra and a shell both take it. Raises UserError: it is none."""
    value = place.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if not isinstance(value, str) or not value or not value.isprintable() or "'" in value:
        raise unfit(place, "one plain value")
    return value if re.fullmatch(r"[A-Za-z0-9_./:+-]+", value) else f"'{value}'"


def unfit(place: Place, legal: str) -> UserError:
    """The error of a value that is not what it must be."""
    return UserError(
        f"{place.path} is {bounds.shown(place.value)} in the file, but must be {legal}. Correct"
        " it, or remove it."
    )


def _flag(place: Place) -> bool:
    if not isinstance(place.value, bool):
        raise unfit(place, "true or false")
    return place.value


def _preset(group: str, name: str) -> str:
    """The preset of a group that a model's name or path means; empty where none does."""
    plain = plain_name(name.rstrip("/").rpartition("/")[2])
    if group == "policy" and plain in ("qwen257b", "qwen257binstruct"):
        return "qwen25-7b"  # of the two presets of this model, that of the mixture
    names = {plain_name(preset): preset for preset in preset_names(group)}
    close = [plain, f"{plain}instruct", plain.removesuffix("instruct")]
    return next((names[text] for text in close if text in names), "")


def plain_name(name: str) -> str:
    """A name without case and signs, by which spellings of one model are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _policy(place: Place) -> Lines:
    text = value_text(place)
    name = str(place.value)
    if preset := _preset("policy", name):
        return [f"policy={preset}"]
    short = re.sub(r"[^A-Za-z0-9._-]", "-", name.rstrip("/").rpartition("/")[2]).strip(".-")
    return [
        f"# {place.path}: {visible(name)} is no preset of a policy, so qwen25-7b is taken"
        " with this model and its own chat template",
        *("policy=qwen25-7b", f"policy.path={text}", f"policy.name={short or 'model'}"),
        "policy.chat_template=null",
    ]


def _path(place: Place) -> Lines:
    preset = _preset("policy", str(place.value))
    return [*([f"policy={preset}"] if preset else []), f"policy.path={value_text(place)}"]


def _judge(place: Place) -> Lines:
    text = value_text(place)
    if preset := _preset("judge", str(place.value)):
        return [f"judge={preset}"]
    return [
        f"# {place.path}: {visible(str(place.value))} is no preset of a judge; type"
        f" judge=openai-compatible judge.endpoint.model={text} judge.endpoint.url=URL"
    ]


def _target_modules(place: Place) -> Lines:
    """A list, or names with commas between them, as the pattern that peft takes."""
    value = place.value
    names = value if isinstance(value, list) else str(value).split(",")
    names = [str(name).strip() for name in names]
    if names in (["all-linear"], ["all"]):
        return ["policy.lora.target_modules=all-linear"]
    if not names or not all(re.fullmatch(r"[A-Za-z0-9_]+", name) for name in names):
        raise unfit(place, "names of layers, such as q_proj,v_proj, or all-linear")
    return [f"policy.lora.target_modules='{'|'.join(f'.*{name}' for name in names)}'"]


def _epochs(place: Place) -> Lines:
    if place.value == 1:
        return [f"# {place.path}: 1, as here: every rollout is used for one update"]
    return [
        f"# {place.path}: every rollout is used for one update, and {value_text(place)} has no"
        " counterpart"
    ]


def _estimator(place: Place) -> Lines:
    if str(place.value).lower() != "grpo":
        raise unfit(place, "grpo, the one estimator that there is")
    return [f"# {place.path}: grpo, as here"]


def _domains(place: Place) -> Lines:
    """One weight for each domain, by its name."""
    value = place.value
    if not isinstance(value, dict):
        legal = f"a table of {', '.join(DOMAINS)}: the sources differ in the order of a list"
        raise unfit(place, legal)
    weights = {str(key).lower(): weight for key, weight in value.items()}
    if unknown := [key for key in weights if key not in DOMAINS]:
        raise UserError(
            f"{place.path} names {', '.join(map(bounds.shown, unknown))}, but the domains are"
            f" {', '.join(DOMAINS)}."
        )
    for key, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
            entry = f"{key}: {bounds.shown(weight)}"
            raise UserError(f"{place.path} has {entry}. A weight is a number above 0.")
    return [f"task.options.domains.{key}={weight!r}" for key, weight in weights.items()]


def _datasets(place: Place) -> Lines:
    value = place.value
    names = value if isinstance(value, list) else str(value).split(",")
    names = [plain_name(str(name)) for name in names]
    if not names or not all(names):
        raise unfit(place, "names of sets")
    return [f"task.options.datasets=[{','.join(names)}]"]


def _device(place: Place) -> Lines:
    text = str(place.value)
    if not re.fullmatch(r"cpu|(cuda(:[0-9]{1,3})?)|[0-9]{1,3}", text):
        raise unfit(place, "cpu or cuda:N")
    return [f"device={f'cuda:{text}' if text.isdecimal() else text}"]


def _gpus(place: Place) -> Lines:
    """Numbers of GPUs: a list, or text such as 0,1 or list(range(0,2))."""
    value = place.value
    spread = re.fullmatch(r"list\(range\(([0-9]{1,3}), ?([0-9]{1,3})\)\)", str(value))
    if spread:
        value = list(range(int(spread[1]), int(spread[2])))
    numbers = value if isinstance(value, list) else str(value).split(",")
    texts = [str(number).strip() for number in numbers]
    if not texts or not all(re.fullmatch(r"[0-9]{1,3}", text) for text in texts):
        raise unfit(place, "numbers of GPUs, such as [2]")
    if len(texts) == 1:
        return [f"device=cuda:{texts[0]}"]
    return [
        f"# {place.path}: for several GPUs type CUDA_VISIBLE_DEVICES={','.join(texts)} before the"
        " command, and sweep.accelerate=FILE"
    ]


READERS: dict[str, Callable[[Place], Lines]] = {
    "policy": _policy,
    "path": _path,
    "judge": _judge,
    "lora": lambda place: [f"# {place.path}: LoRA it is"] if _flag(place) else ["policy.lora=null"],
    "target_modules": _target_modules,
    "bf16": lambda place: [f"policy.dtype={'bfloat16' if _flag(place) else 'float32'}"],
    "epochs": _epochs,
    "use_kl": lambda place: (
        [f"# {place.path}: trainer.beta is the weight"] if _flag(place) else ["trainer.beta=0"]
    ),
    "estimator": _estimator,
    "domains": _domains,
    "datasets": _datasets,
    "device": _device,
    "gpus": _gpus,
}
MIXTURE = Vocabulary(KEYS, SECTIONS, NEUTRAL, READERS)
"""Files of the mixed baseline."""


def _micro_batch(settings: dict[str, tuple[str, str]]) -> Lines:
    """A micro-batch of one group, where the file changes the batch and does not say it."""
    if "trainer.micro_batch" in settings or "trainer.group_size" not in settings:
        return []
    return [f"trainer.micro_batch={settings['trainer.group_size'][0]}"]


def check_composes(file: Path, lines: Lines, vocabulary: Vocabulary) -> None:
    """Raises UserError: the settings do not compose, as where a number is out of bounds."""
    try:
        cells_of(
            [
                f"experiment={vocabulary.experiment}",
                *(line for line in lines if not line.startswith("#")),
            ]
        )
    except UserError as error:
        raise UserError(f"{file} holds what does not fit. {error}") from error


@command("experiments.config import=training.yaml", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 for a user's error."""
    if options.file is None:
        print(markdown("" if options.published == "all" else options.published or ""), end="")
        return 0
    for line in imported(options.file):
        print(visible(line))
    command_line = f"python -m experiments.sweep experiment={EXPERIMENT} SETTINGS"
    print(f"# for the lines above: {command_line} plan=true")
    return 0


if __name__ == "__main__":
    sys.exit(main())
