"""One command for all that is done with a study: ``judgedrift COMMAND key=value ...``.

    judgedrift                    the commands, in the order in which a study is made
    judgedrift COMMAND --help     what one of them takes, with examples

Each is a module that ``python -m`` runs too; nothing is loaded but the one that is typed.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from experiments import sweep_help
from study.bounds import shown
from study.cli import Command, shown_examples
from study.declared import declared
from study.presets import any_of, nearest
from study.screen import unless_unread
from study.typed import typed_by

NAME = "judgedrift"
SWEEP = "experiments.sweep"
"""The one command that Hydra reads, not `study.cli`."""
HELP = ("-h", "--help")


@dataclass(frozen=True)
class Entry:
    """A command: the module that runs it, what it is for, and examples of what stands behind its
    name. ``given`` is put before what is typed."""

    module: str
    about: str
    examples: tuple[str, ...]
    given: tuple[str, ...] = ()


STAGES: dict[str, dict[str, Entry]] = {
    "Before": {
        "doctor": Entry(
            "experiments.doctor",
            "is this machine ready, and what to type where it is not",
            ("", "judge=qwen3-4b", "experiment=small-real endpoints=true"),
        ),
        "data": Entry(
            "experiments.data",
            "download, prepare and verify the rows to train on",
            ("prepare data=official out=data/official", "verify data=official"),
        ),
        "models": Entry(
            "experiments.models",
            "fetch a small model into a folder",
            ("get smollm2-135m-instruct",),
        ),
        "serve": Entry(
            "judges.serve",
            "start the server of a judge",
            ("judge=qwen3-4b", "judge=sim-verbose port=8100", "judge=qwen3-32b print_only=true"),
        ),
        "check": Entry(
            "judges.check",
            "ask a judge for one verdict",
            ("judge=sim-fair", "judge=qwen3-4b"),
        ),
        "probe": Entry(
            "experiments.probe",
            "a judge's biases, without any training",
            ("judge=sim-verbose,sim-fair",),
        ),
    },
    "Run": {
        "plan": Entry(
            SWEEP,
            "what a sweep would run, cost and see; writes nothing",
            ("judge=sim-fair,sim-verbose seed=0,1,2", "experiment=judge-families"),
            ("plan=true",),
        ),
        "sweep": Entry(
            SWEEP,
            "train a policy under each judge, and write the report; again: resume",
            (
                "judge=sim-fair,sim-verbose seed=0,1,2",
                "experiment=small-real study=mine",
                "debug=tiny study=scratch",
            ),
        ),
        "pipeline": Entry(
            "experiments.pipeline",
            "from nothing to a report, stage by stage",
            ("policy=qwen25-7b plan=true", "policy=qwen25-7b"),
        ),
        "status": Entry(
            "experiments.monitor",
            "where the cells of a study stand now",
            ("study=quickstart", "study=quickstart json=true"),
            ("once=true",),
        ),
        "monitor": Entry(
            "experiments.monitor",
            "watch a study while it runs",
            ("study=quickstart", "study=quickstart show=disagreements limit=5"),
        ),
    },
    "Read": {
        "report": Entry(
            "analysis.report", "write the report of a study again", ("study=quickstart",)
        ),
        "view": Entry(
            "analysis.view",
            "browse answers with their verdicts, in one page",
            ("study=quickstart", "study=quickstart answers=500 out=answers.html"),
        ),
        "notebook": Entry(
            "experiments.notebook",
            "the study's notebook, a question for each short cell",
            ("study=quickstart",),
        ),
        "compare": Entry(
            "analysis.compare",
            "two studies side by side, each forecast by the other",
            ("study=quickstart,quickstart-2",),
        ),
        "export": Entry(
            "analysis.export",
            "answers and verdicts as files for other programs",
            (
                "study=quickstart format=parquet out=answers.parquet",
                "study=quickstart format=hf out=answers",
            ),
        ),
        "forecast": Entry(
            "analysis.forecast",
            "what each judge would teach, from the first rollouts alone",
            ("study=quickstart judges=sim-fair,sim-verbose",),
        ),
        "replay": Entry(
            "judges.replay",
            "score recorded answers by another judge",
            ("study=quickstart judge=sim-fair",),
        ),
        "evaluate": Entry(
            "experiments.evaluate",
            "held-out sets, IFEval, rubrics",
            ("ifeval responses=answers.jsonl out=result.json",),
        ),
        "ui": Entry(
            "experiments.ui",
            "MLflow's pages on the store of a study",
            ("", "study=quickstart"),
        ),
    },
    "Keep": {
        "list": Entry(
            "experiments.studies.list",
            "studies, or the cells of one: state, arm, size on disk",
            ("", "study=quickstart"),
        ),
        "show": Entry(
            "experiments.studies.show",
            "a cell: its config, numbers, files, and the command that makes it again",
            ("cell=runs/quickstart/CELL", "cell=CELL"),
        ),
        "clean": Entry(
            "experiments.studies.clean",
            "say what may go, checkpoints and leftovers, and take it away if told to",
            ("study=quickstart", "study=quickstart yes=true"),
        ),
        "tracking": Entry(
            "experiments.tracking",
            "make MLflow's runs again from the records",
            ("rebuild study=quickstart",),
        ),
        "completion": Entry(
            "experiments.completion",
            "let the shell complete commands, presets and studies",
            ("bash", "zsh"),
        ),
    },
}
"""Stage -> name -> command, in the order in which a study is made."""
COMMANDS = {name: entry for stage in STAGES.values() for name, entry in stage.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: those of the command; 2 where there is no such command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in (*HELP, "help"):
        return unless_unread(overview)
    if words[0] == "--version":
        print(f"{NAME} {importlib.metadata.version(NAME)}")
        return 0
    if words[0] not in COMMANDS:
        print(_no_command(words), file=sys.stderr)
        return 2
    return run(words[0], words[1:])


def by_name() -> dict[str, str]:
    """Module -> how its command is typed; of two names, the one that puts nothing before the
    rest."""
    named = sorted(COMMANDS.items(), key=lambda item: not item[1].given)
    return {entry.module: f"{NAME} {name}" for name, entry in named}


def run(name: str, words: Sequence[str]) -> int:
    """Run a command, or print its help; what it says to type is typed in the same way."""
    with typed_by(by_name()):
        return _run(name, words)


def _run(name: str, words: Sequence[str]) -> int:
    entry = COMMANDS[name]
    typed = f"{NAME} {name}"
    examples = [f"{typed} {example}".rstrip() for example in entry.examples]
    if set(HELP) & set(words):
        if entry.module == SWEEP:
            about = sweep_help.ABOUT_PLAN if name == "plan" else sweep_help.ABOUT
            told = sweep_help.text(typed, examples, about)
        else:
            told = declared(entry.module).named(typed, examples).help()
        return unless_unread(functools.partial(_print, told))
    main = import_module(entry.module).main
    if isinstance(main, Command):
        return main.named(typed, examples)([*entry.given, *words])
    before = list(sys.argv)
    sys.argv[:] = [typed, *entry.given, *words]
    try:
        return unless_unread(main)
    finally:
        sys.argv[:] = before


def _print(text: str) -> int:
    print(text)
    return 0


def overview() -> int:
    """Print every command with what it is for."""
    width = max(map(len, COMMANDS)) + 2
    print(f"usage: {NAME} COMMAND key=value ...\n")
    for stage, commands in STAGES.items():
        print(f"{stage}:")
        for name, entry in commands.items():
            print(f"  {name:<{width}}{entry.about}")
    examples = ["doctor", "sweep", "sweep --help"]
    print(f"\n{shown_examples([f'{NAME} {example}' for example in examples])}")
    return 0


def _no_command(words: Sequence[str]) -> str:
    word = words[0]
    if "=" in word:
        given = shown(" ".join(words))
        return f"{given} has no command before it. Type for example: {NAME} sweep {given}"
    near = nearest(word, COMMANDS)
    guess = f" Did you mean {any_of(near)}?" if near else ""
    return f"{shown(word)!r} is not a command of {NAME}.{guess} To see all commands, type: {NAME}"


if __name__ == "__main__":
    sys.exit(main())
