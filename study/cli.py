"""The one reader of command lines: options are a dataclass, help and errors are made from it.

    @dataclass(frozen=True)
    class Options:
        judge: str = preset("judge")
        port: int = option("port to listen on", 8100, bounds.Number(low=0, high=65535))

    @command("judges.faults judge=sim-fair port=0", __doc__, Options)
    def main(options: Options) -> int:
        ...

``main(["judge=sim-fair"])`` reads the words, works, and returns the exit code.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Container, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from study.cell import exchange
from study.cell.folder import CellFolder
from study.cell.places import local, shown
from study.config import bounds
from study.config.bounds import Legal
from study.config.compose import preset_names
from study.config.marks import default_of
from study.config.presets import config_dir, nearest
from study.errors import UserError
from study.progress import alive
from study.screen import unless_unread
from study.system import stopping
from study.system.secrets import refuse_arguments

T = TypeVar("T")
WRAPPED: Any = {"subsequent_indent": 4 * " ", "break_on_hyphens": False}
INDENTED: Any = {"initial_indent": 6 * " ", "subsequent_indent": 6 * " ", "break_on_hyphens": False}


@dataclass(frozen=True)
class Option:
    """What is known of one option beside its name, type and default."""

    about: str
    legal: Legal | None = None
    required: bool = False
    key: str = ""
    """How it is typed where that is not a Python name, such as ``cost.max_usd``."""
    only: tuple[str, ...] = ()
    """First words of the command with which it has a meaning; empty for all."""
    output: bool = False
    empty: bool = False
    """Whether ``key=`` with nothing behind it is legal."""
    word: bool = False
    """Whether it is given by its place, without ``key=``."""
    group: str = ""
    """Whose preset it names; the help lists them."""
    overrides: tuple[str, ...] = ()
    """Beginnings of the settings that this field collects, as Hydra takes them; one without a dot
    at its end may be typed as it is, too."""
    former: str = ""
    """An earlier name, which is still accepted."""


def option(
    about: str,
    default: Any = None,
    legal: Legal | None = None,
    required: bool = False,
    key: str = "",
    only: tuple[str, ...] = (),
    empty: bool = False,
    former: str = "",
) -> Any:
    """A field that is typed as ``key=value``; its annotation says how the value is read."""
    return _field(Option(about, legal, required, key, only, empty=empty, former=former), default)


def output(about: str, required: bool = False) -> Any:
    """A field that names a file to be written; whether it can be is known before the work."""
    return _field(Option(about, required=required, output=True), None)


def word(about: str, *choices: str, required: bool = True) -> Any:
    """A field that is given by its place, without ``key=``."""
    legal = bounds.Choice(choices) if choices else None
    return _field(Option(about, legal, required=required, word=True), None)


def preset(
    group: str,
    default: str | None = None,
    only: tuple[str, ...] = (),
    required: bool | None = None,
) -> Any:
    """A field that names a preset of a config group; without a default it is required, or not."""
    needed = default is None if required is None else required
    about = f"preset of the {group}"
    return _field(Option(about, required=needed, only=only, group=group), default)


def overrides(*beginnings: str, only: tuple[str, ...] = (), about: str = "") -> Any:
    """A field that collects settings such as ``judge.sampling.votes=3`` as they were typed."""
    about = about or f"any setting of it; to list them: judgedrift help {beginnings[0].rstrip('.')}"
    return _field(Option(about, only=only, overrides=beginnings), [])


def _field(extra: Option, default: Any) -> Any:
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"option": extra})
    return field(default=default, metadata={"option": extra})


PLACES = ("runs_dir", "cell")
"""Options that may also be a URL, which is read through its copy on this machine."""


class NoStudy(UserError):
    """There is no such study; ``near`` is one that there is."""

    def __init__(self, text: str, near: str) -> None:
        super().__init__(text)
        self.near = near


@dataclass(frozen=True)
class StudyOptions:
    """Options of every command that reads one study."""

    study: str = option("name of the study", required=True)
    runs_dir: Path = option("folder that holds the studies", Path("runs"))

    @property
    def folder(self) -> Path:
        """The absolute folder of the study."""
        return (self.runs_dir / self.study).absolute()

    def check(self) -> None:
        """Fetch a remote study; refuse one that does not exist."""
        exchange.fetch(self.folder)
        if self.folder.is_dir():
            return
        path = Path(self.study)
        if path.name and (path / "study.json").is_file():
            typed = f"study={path.name} runs_dir={path.parent}"
            instead = f"{path} is a path, but study= takes a name in runs_dir. Type {typed}."
        else:
            studies = sorted(file.parent.name for file in self.folder.parent.glob("*/study.json"))
            studies = exchange.studies(self.folder.parent) or studies
            instead = f"{shown(self.folder.parent)} holds {', '.join(studies) or 'no study'}."
            near = nearest(self.study, studies, 1) or studies[:1]
            if near:
                text = f"There is no study folder {shown(self.folder)}. {instead}"
                raise NoStudy(text, near[0])
        raise UserError(f"There is no study folder {shown(self.folder)}. {instead}")


@dataclass(frozen=True)
class ResultOptions(StudyOptions):
    """Options of a command that also writes what it prints."""

    out: Path | None = output("JSON file for the numbers")


@dataclass(frozen=True)
class FigureOptions(ResultOptions):
    """Options of a command that also draws what it prints."""

    figure: Path | None = output("file for the figure")


@dataclass(frozen=True)
class AnyStudyOptions:
    """Options of every command that looks at one study, or at all of a folder."""

    study: str | None = option("name of one study; left out, all of runs_dir")
    runs_dir: Path = option("folder that holds the studies", Path("runs"))

    @property
    def folder(self) -> Path | None:
        """The absolute folder of the one study."""
        return None if self.study is None else StudyOptions(self.study, self.runs_dir).folder

    def check(self) -> None:
        """As that of `StudyOptions`, where one study is named."""
        if self.study is not None:
            StudyOptions(self.study, self.runs_dir).check()


class Command(Generic[T]):
    """A command line and the work behind it; see `command`."""

    def __init__(
        self, work: Callable[[T], int], example: str, about: str, options: type[T]
    ) -> None:
        functools.update_wrapper(self, work)
        self.work, self.about, self.kind = work, about, options
        self.program = example.split()[0]
        self.called, self.typed = self.program, f"python -m {self.program}"
        self.example = f"python -m {example}"
        self.examples = [self.example]
        fields: Any = dataclasses.fields(typing.cast(Any, options))
        fields = [item for item in fields if "option" in item.metadata]
        self.types = typing.get_type_hints(options)
        self.options: dict[str, Option] = {item.name: item.metadata["option"] for item in fields}
        self.defaults = {item.name: default_of(item) for item in fields}
        self.keys = {
            extra.key or name: name
            for name, extra in self.options.items()
            if not extra.word and not extra.overrides
        }
        self.formers = {e.former: e.key or name for name, e in self.options.items() if e.former}
        self.words = [name for name, extra in self.options.items() if extra.word]
        self.collected = next((n for n, extra in self.options.items() if extra.overrides), "")
        self.beginnings = self.options[self.collected].overrides if self.collected else ()

    def named(self, typed: str, examples: Sequence[str]) -> Command[T]:
        """The same command as it is typed by another name, with examples of that."""
        other = copy.copy(self)
        other.about = self.about.replace(self.typed, typed)
        other.called = other.typed = typed
        other.examples, other.example = list(examples), examples[0]
        return other

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run the command line; 2 for what the user can put right, 130 after Ctrl-C, `UNREAD` where
        nobody reads what is printed."""
        return unless_unread(functools.partial(self._run, arguments))

    def _run(self, arguments: Sequence[str] | None) -> int:
        try:
            with config_dir(sys.argv[1:] if arguments is None else arguments) as words:
                if {"-h", "--help"} & set(words):
                    print(self.help())
                    return 0
                options = self.read(words)
                with alive(self.typed):
                    return self.work(options)
        except UserError as error:
            print(error, file=sys.stderr)
            return 2
        except BaseException as error:
            if stopping.interrupted(error):
                return stopping.exit_code()
            raise

    def read(self, arguments: Sequence[str]) -> T:
        """The options, typed and checked.
        Raises UserError: a stray word, an unknown option, one that is given twice or is missing, or
            a value that is not legal."""
        refuse_arguments(arguments)
        try:
            return self._read(arguments)
        except UserError as error:
            example = self.example
            if isinstance(error, NoStudy):
                near = f"study={error.near}"
                example = re.sub(r"\bstudy=\w+(?= |$)", lambda _: near, example)
            raise UserError(f"{error} Type for example: {example}") from error

    def _read(self, arguments: Sequence[str]) -> T:
        texts: dict[str, str] = {}
        settings: dict[str, str] = {}
        places = list(self.words)
        for argument in arguments:
            typed, equals, text = argument.partition("=")
            key = self.formers.get(typed, typed)
            if key != typed:
                print(f"{typed}= is now {key}=. Type {key}={text} next time.", file=sys.stderr)
            bare = key.lstrip("+~")
            if equals and (bare in settings or (key in texts and key in self.keys)):
                name = bare if bare in settings else key
                raise UserError(f"{name}= is given twice. Give it once.")
            if equals and self._is_setting(bare):
                settings[bare] = argument
            elif equals and key in self.keys:
                if not text and not self.options[self.keys[key]].empty:
                    raise UserError(f"{key}= has no value. Type {key}=VALUE, or leave {key}= out.")
                texts[key] = text
            elif not equals and places:
                texts[places.pop(0)] = argument
            else:
                raise self._unknown(argument, texts)
        names = {key: self.keys.get(key, key) for key in texts}
        values = {names[key]: self._value(key, names[key], text) for key, text in texts.items()}
        if settings:
            values[self.collected] = list(settings.values())
        first = values.get(self.words[0], "") if self.words else ""
        for name, extra in self.options.items():
            if extra.only and first not in extra.only:
                if name in values:
                    key = self._typed(name).partition("=")[0]
                    raise UserError(
                        f"{key}= has no meaning with {self.called} {first}, only with"
                        f" {' and '.join(extra.only)}. Leave it out."
                    )
            elif extra.required and name not in values:
                legal = extra.legal.describe() if extra.word and extra.legal else extra.about
                needed = f"a word for {name}" if extra.word else f"{extra.key or name}="
                raise UserError(f"{self.called} needs {needed} ({legal}).")
        if hasattr(self.kind, "given"):
            values["given"] = frozenset(values)
        options = self.kind(**values)
        if check := getattr(options, "check", None):
            check()
        return options

    def _is_setting(self, key: str) -> bool:
        """Whether ``key`` is a setting that the command collects."""
        whole = [name for name in self.beginnings if not name.endswith(".")]
        inside = tuple(f"{name}{mark}" for name in whole for mark in "./")
        dotted = tuple(name for name in self.beginnings if name.endswith("."))
        return key in whole or key.startswith((*inside, *dotted))

    def _unknown(self, argument: str, typed_keys: Container[str]) -> UserError:
        key = argument.partition("=")[0].lstrip("+~-")
        start, dot, rest = key.partition(".")
        groups = {name.removesuffix("."): f"{name.removesuffix('.')}." for name in self.beginnings}
        whole = [name for name in self.beginnings if not name.endswith(".")]
        near = nearest(key, [*self.keys, *whole], 1)
        group = nearest(start, groups, 1) if dot else []
        guess = f"{near[0]}=" if near else f"{groups[group[0]]}{rest}=" if group else ""
        keys = [key for key, name in self.keys.items() if self.options[name].required]
        needed = [key for key in keys if key not in typed_keys]
        if not guess and "=" not in argument and len(needed) == 1:
            guess = f"{needed[0]}={bounds.shown(argument)}"
        if key in self.words and "=" in argument:
            guess = f"{bounds.shown(argument.partition('=')[2])}, without {key}="
        hint = f" Did you mean {guess}?" if guess else ""
        legal = [f"{key}=" for key in self.keys] + [
            f"{name}KEY=" if name.endswith(".") else f"{name}=" for name in self.beginnings
        ]
        legal = legal or [self._typed(name) for name in self.words]
        return UserError(
            f"{bounds.shown(argument)!r} is not an option of {self.called}.{hint} Legal are"
            f" {', '.join(legal)}."
        )

    def _value(self, key: str, name: str, text: str) -> Any:
        extra, hint = self.options[name], self.types[name]
        if extra.word and isinstance(extra.legal, bounds.Choice):
            if not extra.legal.accepts(text):
                nearest = _nearest(text, extra.legal.words)
                raise UserError(f"{text!r} is not {extra.legal.describe()}.{nearest}")
            return text
        if isinstance(hint, types.UnionType):
            hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
            if text == "null" and hint in (int, float, bool):
                return None
        if typing.get_origin(hint) is list:
            if text.startswith("["):
                inner = text.strip("[] ")
                raise UserError(
                    f"{key}={text} has brackets, and a list takes none. Type {key}={inner}."
                )
            (kind,) = typing.get_args(hint)
            items = [_scalar(key, item, kind, extra.legal) for item in text.split(",")]
            return list(dict.fromkeys(items))
        value = _scalar(key, text, hint, extra.legal)
        if extra.output:
            check_place(key, value)
        return value

    def help(self) -> str:
        """Usage, what the command is for, every option with type, default and meaning."""
        usage = [f"usage: {self.typed}"]
        lines = []
        for name, extra in self.options.items():
            typed, default = self._typed(name), self.defaults[name]
            always = extra.required and not extra.only
            usage.append(typed if always else f"[{typed}]")
            notes = [f"with {' and '.join(extra.only)}"] if extra.only else []
            if extra.required:
                notes.append("required")
            elif default not in (None, [], ""):
                shown = ",".join(map(str, default)) if isinstance(default, list) else str(default)
                notes.append(f"default {shown.lower() if default in (True, False) else shown}")
            if extra.legal is not None and not extra.word:
                notes.append(extra.legal.describe())
            note = f" ({'; '.join(notes)})" if notes else ""
            lines.append(textwrap.fill(typed, 100, initial_indent="  ", **WRAPPED))
            presets = f": {', '.join(preset_names(extra.group))}" if extra.group else ""
            lines.append(textwrap.fill(f"{extra.about}{presets}{note}", 100, **INDENTED))
        head = [textwrap.fill(" ".join(usage), 100, **WRAPPED), self.about.strip()]
        return "\n\n".join([*head, "\n".join(["options:", *lines]), shown_examples(self.examples)])

    def _typed(self, name: str) -> str:
        extra, hint = self.options[name], self.types[name]
        if extra.word:
            choices = extra.legal.words if isinstance(extra.legal, bounds.Choice) else ()
            return "|".join(choices) or name.upper()
        if extra.overrides:
            return " ".join(
                f"{name}KEY=VALUE" if name.endswith(".") else f"{name}[.KEY]=VALUE"
                for name in extra.overrides
            )
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)] or [hint]
        words: dict[Any, str] = {int: "WHOLE_NUMBER", float: "NUMBER", bool: "true|false"}
        words |= dict.fromkeys((Path, CellFolder), "PATH")
        text = words.get(kinds[0], "TEXT")
        listed = f"{text},..." if typing.get_origin(hint) is list else text
        return f"{extra.key or name}={listed}"


def shown_examples(examples: Sequence[str]) -> str:
    """What may be typed, as a help shows it."""
    if len(examples) == 1:
        return f"example: {examples[0]}"
    return "\n".join(["examples:", *(f"  {example}" for example in examples)])


def command(
    example: str, about: str | None, options: type[T]
) -> Callable[[Callable[[T], int]], Command[T]]:
    """Make a function of options the command that ``example`` shows: the words behind ``python
    -m``, the module first. ``about`` is the docstring of the module, for the help. ``options`` is a
    dataclass whose fields are made by `option`, `word`, `preset`, `output` and `overrides`; its
    method ``check``, where it has one, looks at them together."""
    return lambda work: Command(work, example, about or "", options)


def _scalar(key: str, text: str, kind: Any, legal: Legal | None) -> Any:
    """The value of one text, as the type that its field says."""
    value: Any = text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            bounds.refuse(key, text, "true or false")
        value = text.lower() == "true"
    elif kind is int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            bounds.refuse(key, text, "a whole number")
        value = int(text)
    elif kind is float:
        with suppress(ValueError):
            value = float(text)
        if value == text or not math.isfinite(value):
            bounds.refuse(key, text, "a number that is finite")
    elif kind in (Path, CellFolder):
        value = kind(local(text) if key in PLACES else text)
    elif isinstance(legal, bounds.Choice):
        try:
            bounds.check(key, text, legal)
        except UserError as error:
            raise UserError(f"{error}{_nearest(text, legal.words)}") from error
        value = kind(text)
    if legal is not None:
        bounds.check(key, value, legal)
    return value


def _nearest(text: str, words: Sequence[str]) -> str:
    near = nearest(text, words, 1)
    return f" Did you mean {near[0]}?" if near else ""


def check_place(key: str, path: Path) -> None:
    """Refuse a file that cannot be written.
    Raises UserError: it is a folder, its folder does not exist, or may not be written."""
    folder = path.absolute().parent
    wrong = ""
    if path.is_dir():
        wrong = f"it is a folder. Name a file in it, such as {key}={path / 'NAME'}"
    elif not folder.is_dir():
        wrong = f"there is no folder {folder}. Type: mkdir -p {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        wrong = "permission denied. Name another file"
    if wrong:
        raise UserError(f"{key}={path} cannot be written: {wrong}.")


@contextmanager
def writes(key: str, path: Path) -> Generator[None]:
    """Within the block, a file that cannot be written is the user's error.
    Raises UserError: it cannot."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{key}={path} cannot be written: {error.strerror or error}. Name another file."
        ) from error
