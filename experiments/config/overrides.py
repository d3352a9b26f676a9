"""A published configuration of a workflow policy, as settings of a sweep.

Prints one setting a line, and after a # what has no counterpart here and why. Keys that are not
known are refused, each by its name, and so is a file that holds a secret. llm= is the file that
says where the executor is: {models: {NAME: {base_url, model_name, temperature, top_p}}}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.config.__main__ import (
    KEYS,
    NEUTRAL,
    READERS,
    SECTIONS,
    Lines,
    Place,
    Vocabulary,
    by_name,
    check_composes,
    imported,
    plain_name,
    read,
    unfit,
    value_text,
)
from experiments.workflow.operators import OPERATORS
from study.cli import command, option, word
from study.config import bounds
from study.config.compose import preset_names
from study.errors import UserError
from study.screen import visible
from study.system.secrets import refuse_config
from study.system.tables import table

TABLE = table(__file__)
EXPERIMENT = "workflow-full"
PLACEHOLDERS = ("", "sk-dummy", "empty", "dummy", "none", "null", "not-needed", "sk-xxx")
"""What stands for a key in the published examples."""
PUBLISHED = {"correctness": 0.65, "efficiency": 0.15, "simplicity": 0.10, "format": 0.05}
PUBLISHED_REPETITION = 0.05
"""Weights of reward=seed-additive; that of repetition is written with either sign."""


def overrides(file: Path, llm: Path | None = None) -> Lines:
    """The settings of a training.yaml and of an aflow_llm.yaml, and comments.
    Raises UserError: a file cannot be read, holds a key that is not known, a secret, or a value
        that does not fit."""
    content = read(file, "file")
    models = _models(read(llm, "llm"), llm) if llm else {}
    _refuse_secrets(content, file)
    lines = imported(file, content, WORDS)
    if llm:
        lines += _executor_of(models, lines, llm)
        check_composes(llm, lines, WORDS)
    return [*lines, *_same_model(lines)]


def _refuse_secrets(content: Any, file: Path) -> None:
    """Raises UserError: the file holds a secret, which is not shown."""
    try:
        refuse_config(_without_placeholders(content))
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def _without_placeholders(value: Any, name: str = "") -> Any:
    """Nested data without what stands where a key would."""
    if isinstance(value, Mapping):
        return {key: _without_placeholders(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_placeholders(item, name) for item in value]
    may_be_key = isinstance(value, str) and "key" in name.lower()
    return None if may_be_key and value.strip().lower() in PLACEHOLDERS else value


def _executor(place: Place) -> Lines:
    text = value_text(place)
    plain = plain_name(str(place.value).rstrip("/").rpartition("/")[2])
    names = {plain_name(name): name for name in preset_names("executor")}
    if plain in names:
        return [f"executor={names[plain]}"]
    return ["executor=openai-compatible", f"executor.endpoint.model={text}"]


def _operators(place: Place) -> Lines:
    """Names of operators, as a list or with commas between them."""
    value = place.value
    entries = value if isinstance(value, list) else str(value).split(",")
    names = [str(name).strip() for name in entries]
    if unknown := [name for name in names if name not in OPERATORS]:
        unknown_names = ", ".join(map(bounds.shown, unknown))
        raise UserError(
            f"{place.path} names {unknown_names}. The operators are {', '.join(OPERATORS)}."
        )
    return [f"workflow.operators=[{','.join(dict.fromkeys(names))}]"]


def _reward_weights(place: Place) -> Lines:
    """The published weights are a preset; no others have ever paid anybody."""
    value = place.value
    if isinstance(value, Mapping) and isinstance(value.get("weights"), Mapping):
        value = value["weights"]
    if not isinstance(value, Mapping) or not value:
        raise unfit(place, f"a table of {', '.join((*PUBLISHED, 'repetition'))}")
    weights = {str(key).lower(): weight for key, weight in value.items()}
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise UserError(
                f"{place.path} has {bounds.shown(name)}: {bounds.shown(weight)}. A weight is a"
                " number."
            )
    repetition = weights.pop("repetition", None)
    if weights == PUBLISHED and repetition is not None and abs(repetition) == PUBLISHED_REPETITION:
        return ["reward=seed-additive"]
    return [
        f"# {place.path}: reward=seed-additive has the published .65, .15, .10, .05 and .05, and no"
        " reward takes others: type it, or reward=workflow-gated"
    ]


WORDS = Vocabulary(
    keys={**KEYS, **by_name(TABLE["keys"])},
    sections={
        name: why
        for name, why in SECTIONS.items()
        if name not in {*by_name(TABLE["keys"]), "aflow", "workflow"}
    }
    | TABLE["sections"],
    neutral=NEUTRAL | {"aflow", "executor", "aflow_executor", "workflow"},
    readers={
        **READERS,
        "executor": _executor,
        "operators": _operators,
        "reward_weights": _reward_weights,
    },
    experiment=EXPERIMENT,
)


def _models(content: dict[str, Any], file: Path) -> dict[str, dict[str, Any]]:
    """Name -> the settings of each model of an aflow_llm.yaml.
    Raises UserError: it holds a secret, or is not of the form."""
    _refuse_secrets(content, file)
    models = content.get("models", content)
    if not isinstance(models, Mapping) or not models:
        raise UserError(f"{file} has no models. Give {{models: {{NAME: {{base_url: URL}}}}}}.")
    for name, settings in models.items():
        if not isinstance(settings, Mapping):
            raise UserError(
                f"{file}: the model {bounds.shown(name)} is {bounds.shown(settings)} but should be"
                " a table with base_url and model_name."
            )
        legal = (*TABLE["model"], *TABLE["model_without"])
        if unknown := [str(key) for key in settings if str(key) not in legal]:
            raise UserError(
                f"{file}: {bounds.shown(name)} has unknown keys:"
                f" {', '.join(map(bounds.shown, unknown))}. Known are {', '.join(legal)}."
            )
    return {str(name): dict(settings) for name, settings in models.items()}


def _executor_of(models: dict[str, dict[str, Any]], lines: Lines, file: Path) -> Lines:
    """Address and sampling of the executor that the training names, or of the only model."""
    settings = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    named_model = settings.get("executor.endpoint.model", settings.get("executor", "")).strip("'")
    by_plain = {plain_name(name): name for name in models}
    name = by_plain.get(plain_name(named_model)) or (next(iter(models)) if len(models) == 1 else "")
    if not name:
        raise UserError(
            f"{file} has the models {', '.join(map(bounds.shown, models))}, but the executor is"
            f" {bounds.shown(named_model or 'not named')}. Give aflow_executor_model in file= one"
            " of these names."
        )
    settings_lines = [] if "executor" in settings else ["executor=openai-compatible"]
    served = models[name].get("model_name", models[name].get("model", name))
    for key, value in ({"model_name": served} | models[name]).items():
        place = Place(f"{name}.{key}", {}, value)
        if why := TABLE["model_without"].get(key):
            settings_lines.append(f"# {place.path}: {why}")
        elif key != "model":
            setting = TABLE["model"][key]
            settings_lines.append(f"{setting}={value_text(place)}")
            if setting in settings:
                lines.remove(f"{setting}={settings[setting]}")
    return settings_lines


def _same_model(lines: Lines) -> Lines:
    """A word on a judge that is the executor: it judges answers that it wrote."""
    presets = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    if not presets.get("judge") or presets["judge"] != presets.get("executor"):
        return []
    return [
        "# judge and executor are one model, which is refused: take another judge, or type"
        " allow_same_model=true, which is recorded"
    ]


@dataclass(frozen=True)
class Options:
    """Options of the command ``overrides``: the published files."""

    what: str = word("published settings as ours", "overrides")
    file: Path = option("YAML file in the style of training.yaml", required=True)
    llm: Path | None = option("YAML file in the style of aflow_llm.yaml")


@command("experiments.workflow overrides file=training.yaml llm=aflow_llm.yaml", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 for a user's error."""
    for line in overrides(options.file, options.llm):
        print(visible(line))
    sweep = f"python -m experiments.sweep experiment={EXPERIMENT} SETTINGS"
    print(f"# for the lines above: {sweep} plan=true")
    return 0
