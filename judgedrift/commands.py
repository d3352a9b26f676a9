"""The table of all commands that ``judgedrift`` stands for: ``commands.toml``, a row each."""

from __future__ import annotations

from dataclasses import dataclass

from study.system.tables import table

NAME = "judgedrift"
SWEEP = "experiments.sweep"
"""The one command that Hydra reads, not `study.cli`."""
WORKFLOW = "workflow"
"""``judgedrift workflow NAME`` is ``judgedrift workflow-NAME``."""


@dataclass(frozen=True)
class Entry:
    """A command: the module that runs it, what it is for, and examples of what stands behind its
    name. ``given`` is put before what is typed."""

    module: str
    about: str
    examples: tuple[str, ...]
    given: tuple[str, ...] = ()


STAGES = {
    stage: {
        name: Entry(
            module=row["module"],
            about=row["about"],
            examples=tuple(row["examples"]),
            given=tuple(row.get("given", ())),
        )
        for name, row in rows.items()
    }
    for stage, rows in table(__file__).items()
}
"""Stage -> name -> command, in the order in which a study is made."""
BRIEF = ("Estimate", "Tables", "Tools", "Programs")
"""Stages whose commands are listed by name alone: few studies need one."""
COMMANDS = {name: entry for stage in STAGES.values() for name, entry in stage.items()}


def in_one_word(words: list[str]) -> list[str]:
    """What was typed behind ``judgedrift``, with the command's name as the table has it."""
    name = "-".join(words[:2])
    return [name, *words[2:]] if words[0] == WORKFLOW and name in COMMANDS else words
