"""One command for all that is done with a study: ``judgedrift COMMAND key=value ...``.

    judgedrift                    the commands, in the order in which a study is made
    judgedrift COMMAND --help     what one of them takes, with examples
    judgedrift help KEY           what a setting is

Each is a module that ``python -m`` runs too; nothing is loaded but the one that is typed.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Sequence
from importlib import import_module
from textwrap import fill

from experiments.plan import sweep_help
from judgedrift.commands import BRIEF, COMMANDS, NAME, STAGES, SWEEP, WORKFLOW, in_one_word
from judgedrift.other_names import instead_of
from study.cli import Command, shown_examples
from study.command_names import typed_by
from study.config.bounds import shown
from study.config.presets import any_of, nearest
from study.declared import declared, module_of
from study.progress import alive
from study.screen import unless_unread

HELP = ("-h", "--help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: those of the command; 2 where there is no such command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"] and words[1:]:
        words = _help_words(words[1:])
    if not words or (words[0] in (*HELP, "help") and len(words) == 1):
        return unless_unread(overview)
    if words[0] == "--version":
        print(f"{NAME} {importlib.metadata.version(NAME)}")
        return 0
    words = in_one_word(words)
    if words[0] not in COMMANDS:
        print(_no_command(words), file=sys.stderr)
        return 2
    return run(words[0], words[1:])


def _help_words(words: list[str]) -> list[str]:
    """What ``judgedrift help WORD`` is: a command's own help, or that of a setting."""
    command = in_one_word(words)
    if command[0] in COMMANDS:
        return [command[0], "--help"]
    return ["help", words[0].partition("=")[0], *words[1:]]


def by_name() -> dict[str, str]:
    """Module -> how its command is typed; of two names, the one that puts nothing before the
    rest."""
    entries = sorted(COMMANDS.items(), key=lambda item: not item[1].given)
    names = {entry.module: f"{NAME} {name}" for name, entry in entries}
    return {**names, f"experiments.{WORKFLOW}": f"{NAME} {WORKFLOW}"}


def run(name: str, words: Sequence[str]) -> int:
    """Run a command, or print its help; what it says to type is typed in the same way."""
    with typed_by(by_name()), alive(f"{NAME} {name}"):
        return _run(name, words)


def _run(name: str, words: Sequence[str]) -> int:
    entry = COMMANDS[name]
    if name == "train" and not any(word.startswith("cell=") or word in HELP for word in words):
        print(
            f"{NAME} train trains one cell from its folder and needs cell=. {instead_of('run')}",
            file=sys.stderr,
        )
        return 2
    typed, first = f"{NAME} {name}", ""
    if name.startswith(f"{WORKFLOW}-"):
        typed, first = f"{NAME} {WORKFLOW}", f"{entry.given[0]} "
    examples = [f"{typed} {first}{example}".rstrip() for example in entry.examples]
    if set(HELP) & set(words):
        if entry.module == SWEEP:
            about = sweep_help.ABOUT_PLAN if name == "plan" else sweep_help.ABOUT
            help_text = sweep_help.text(typed, examples, about)
        else:
            help_text = declared(entry.module).named(typed, examples).help()
        return unless_unread(functools.partial(_print, help_text))
    main = import_module(module_of(entry.module)).main
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
        if stage in BRIEF:
            indent = " " * (len(stage) + 2)
            names = f"{stage}: {' '.join(commands)}"
            print(fill(names, subsequent_indent=indent, break_on_hyphens=False))
            continue
        print(f"{stage}:")
        for name, entry in commands.items():
            print(f"  {name:<{width}}{entry.about}")
    examples = ["doctor", "sweep", "sweep --help", "help trainer.learning_rate"]
    print(f"\n{shown_examples([f'{NAME} {example}' for example in examples])}")
    return 0


def _no_command(words: Sequence[str]) -> str:
    word = words[0]
    if "=" in word:
        words_shown = shown(" ".join(words))
        return (
            f"{words_shown} needs a command before it. Type for example: {NAME} sweep {words_shown}"
        )
    near = nearest(word, COMMANDS)
    guess = f" Did you mean {any_of(near)}?" if near else ""
    if instead := instead_of(word):
        return f"{shown(word)!r} is not a command of {NAME}. {instead}"
    return f"{shown(word)!r} is not a command of {NAME}.{guess} To see all commands, type: {NAME}"


if __name__ == "__main__":
    sys.exit(main())
