"""The experiments at full size are what the table of published settings says, row by row."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from experiments.config.__main__ import main
from experiments.config.published import EXPERIMENTS, PRESETS, SETTINGS, SOURCES, Setting, markdown
from experiments.sweep import cells_of
from study.config.identity import flatten
from study.config.presets import SHIPPED, preset_names, read_preset
from study.system.files import read_yaml
from tests.conftest import ROOT

NAMED = (
    *("judge.name", "judge.grading.name", "judge.sampling.temperature", "judge.on_failure"),
    *("policy.path", "reward.name", "trainer.steps", "trainer.prompts_per_step"),
    *("trainer.group_size", "trainer.temperature", "trainer.learning_rate", "trainer.beta"),
    "trainer.vllm.mode",
)
"""Settings that a reader asks for first."""


def composed(preset: str) -> dict[str, list[Any]]:
    """Key -> its values over the cells of a preset, each once, in their order."""
    flats = [flatten(cell.data) for cell in cells_of(f"experiment={preset}".split())]
    values: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for flat in flats for key in flat):
        each = [flat.get(key, "unset") for flat in flats]
        texts = {json.dumps(value): "null" if value is None else value for value in each}
        values[key] = list(texts.values())
    return values


def unlike(values: dict[str, list[Any]], rows: list[Setting]) -> list[tuple[str, Any, Any]]:
    """(key, what a row says, what is composed) of the rows that do not say what is composed."""
    wrong = []
    for row in rows:
        if " " in row.key:
            continue
        here = values.get(row.key, ["unset"])
        if (here if len(here) > 1 else here[0]) != row.ours:
            wrong.append((row.key, row.ours, here))
    return wrong


def at_full_size(name: str) -> bool:
    """Whether an experiment trains a policy of 7B parameters or more, by its defaults alone."""
    chosen: dict[str, str] = {}
    for line in read_yaml(SHIPPED / "experiment" / f"{name}.yaml")["defaults"]:
        chosen |= line
    if profile := chosen.get("override /profile"):
        for line in read_yaml(SHIPPED / "profile" / f"{profile}.yaml")["defaults"]:
            chosen |= line
    size = str(read_preset("policy", chosen["override /policy"])["size"])
    return size.endswith("B") and float(size.removesuffix("B")) >= 7


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_what_the_table_says(preset):
    rows = [row for row in SETTINGS if preset in row.presets]
    assert len({row.key for row in rows}) == len(rows), "one row for each setting"
    values = composed(preset)
    assert unlike(values, rows) == []
    if preset.startswith("verinstruct-"):
        assert preset.split()[0] == f"verinstruct-{values['arm'][0]}"


def test_a_row_that_says_something_else_is_seen():
    values = {"trainer.steps": [350], "judge.name": ["a", "b"], "policy.lora": ["null"]}
    right = Setting("", ("x",), "trainer.steps", 350, "study", 350)
    judges = dataclasses.replace(right, key="judge.name", ours=["a", "b"])
    absent = dataclasses.replace(right, key="trainer.absent", ours="unset")
    words = dataclasses.replace(right, key="no setting", ours="anything")
    assert unlike(values, [right, judges, absent, words]) == []
    wrong = [dataclasses.replace(row, ours="other") for row in (right, judges, absent, words)]
    assert [key for key, _, _ in unlike(values, wrong)] == [
        *("trainer.steps", "judge.name", "trainer.absent")
    ]


def test_every_experiment_at_full_size_has_a_row_for_what_a_reader_asks_first():
    full = [name for name in preset_names("experiment") if at_full_size(name)]
    assert sorted(EXPERIMENTS) == full
    for name in full:
        keys = {row.key for row in SETTINGS if name in row.presets}
        assert set(NAMED) <= keys, name
        (mode,) = (r for r in SETTINGS if name in r.presets and r.key == "trainer.vllm.mode")
        assert mode.ours in ("colocate", "server"), "an engine draws the answers"


def test_a_difference_has_a_reason_and_every_row_a_source():
    for row in SETTINGS:
        said = (row.title, row.key)
        assert bool(row.why) == (row.ours != row.published), said
        first = row.where.partition(":")[0].partition(";")[0]
        assert {name.split()[0] for name in first.split(", ")} <= set(SOURCES), said


def test_the_page_has_the_table_and_the_command_prints_it(capsys):
    assert markdown() in (ROOT / "docs" / "published.md").read_text(encoding="utf-8")
    assert main(["published=all"]) == 0
    assert capsys.readouterr().out == markdown()
    assert main(["published=mixed-full"]) == 0
    printed = capsys.readouterr().out
    assert "| `judge.name` | gpt-oss-120b | judge-readme | the same |" in printed
    assert "scaffold.x0" not in printed and "RuscaRL" not in printed
    for words in ([], ["published=all", "import=training.yaml"], ["published=mixed"]):
        assert main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1
