"""The main job: from a list of judges to a bias report.

``python -m experiments.sweep judge=a,b,c seed=0,1,2`` runs one cell per combination. It resumes
what is unfinished, skips what is done, and ends with the report. Here each combination is queued
as a cell, by `experiments.plan.expand` or, where that leaves a command line to Hydra, by the job
function that Hydra calls; then `experiments.launch` checks, plans or runs them.

Where another launcher is asked for (joblib, submitit, Ray), Hydra is called with it once that is
done. It calls the job where the cell should run, and there the job supervises its own child.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import io
import os
import sys
import tempfile
import typing
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stderr
from itertools import pairwise
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments import launch
from experiments.plan.expand import expand
from experiments.plan.knockout import parts_of
from experiments.plan.sweep_help import text as help_text
from study.cell import cells, exchange
from study.cell.cells import Cell
from study.config import override_errors as causes
from study.config.compose import add_folders, load_judge_once, opened, plain, respelled
from study.config.composer import NAME, NeedsHydra
from study.config.presets import SHIPPED, config_dir
from study.config.schema import GROUPS, Study, freeze, register
from study.errors import UserError
from study.finding import stop_at_problem
from study.progress import alive
from study.screen import unless_unread
from study.system import stopping, storage
from study.system.secret_names import may_hold_key
from study.system.secrets import redact, refuse_arguments, refuse_config
from study.system.spent import Spent

SHOWING = {"--cfg", "-c", "--info", "-i", "--hydra-help", "--version"}
"""Flags by which Hydra shows something and runs nothing."""
LAUNCHER = ("hydra/launcher=", "hydra.launcher.")
"""How an argument begins that says where jobs run."""
EVERY_KEY = "To see every key and its value, type: python -m experiments.sweep --cfg job"
QUEUE: list[Cell] = []


class Refused(BaseException):
    """Carries a user's error through Hydra, which would print the overrides, keys among them, for
    any other exception of a job."""

    def __init__(self, error: UserError) -> None:
        super().__init__()
        self.error = error


def job(config: DictConfig) -> None:
    """What Hydra calls per combination."""
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    try:
        refuse_config(OmegaConf.to_container(hydra, resolve=False), "hydra")
        enqueue(hydra.overrides.task, config)
    except UserError as error:
        raise Refused(error) from error
    cell = QUEUE[-1]
    elsewhere = "BasicLauncher" not in hydra.launcher._target_
    if elsewhere and cell.folder.state() not in ("done", "running"):
        launch.supervise(cell)


def enqueue(overrides: Sequence[str], config: DictConfig) -> None:
    """Queue the cell of these arguments. Raises UserError: it may not be, or as `resolve`."""
    stopping.let_through()
    refuse_lists(overrides)
    QUEUE.append(resolve(config))


def main() -> int:
    """Command line. Exit codes: 0 all done, 1 a cell is not done, 2 a user's error, 130 stopped."""
    try:
        with config_dir(sys.argv[1:]) as words:
            sys.argv[1:] = words
            with alive("python -m experiments.sweep"):
                return _main()
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


def _main() -> int:
    """`main` where `study.config.presets.folders` are what the command line says."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(help_text("python -m experiments.sweep"))
        return 0
    spent = Spent("starting")
    full = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us whole; Hydra would print and exit
    os.umask(0o077)
    stopping.take_signals()
    try:
        elsewhere = [text for text in sys.argv[1:] if text.startswith(LAUNCHER)]
        sys.argv[1:] = [text for text in sys.argv[1:] if text not in elsewhere]
        with stopping.held():  # until the next job: OmegaConf fails over an interruption
            collect(elsewhere)
        if not QUEUE:
            return 0  # --cfg and the like
        exchange.fetch(QUEUE[0].folder.study_dir)
        stop_at_problem(launch.check_sweep(QUEUE, elsewhere))
        if QUEUE[0].config.plan:
            return launch.show_plan(QUEUE)
        if elsewhere and QUEUE[0].folder.url:  # Hydra takes the URL for a folder of this one
            study_dir = QUEUE[0].folder.study_dir
            elsewhere.append(f"hydra.sweep.dir='{study_dir.parent}/.hydra/{study_dir.name}'")
        runner = functools.partial(compose_jobs, elsewhere) if elsewhere else None
        return launch.run_study(list(QUEUE), runner, spent)
    except (UserError, OSError) as error:
        place = QUEUE[0].folder.study_dir if QUEUE else Path.cwd()
        trouble = error if isinstance(error, UserError) else storage.explained(error, place)
        if trouble is None or full:
            raise
        print(redact(str(trouble)), file=sys.stderr)
        return 2
    except BaseException as error:
        if not stopping.interrupted(error):
            raise
        stopping.deafen()
        print("Stopped. Rerun the command to resume.", file=sys.stderr)
        return stopping.exit_code()
    finally:
        if not full:
            del os.environ["HYDRA_FULL_ERROR"]


def resolve(config: DictConfig) -> Cell:
    """A composed config as a cell, with its shadow judges, those that audit, and what a knock-out
    takes out. Raises UserError where a value is missing, is not legal, or looks like a secret."""
    data = plain(config, "this experiment")
    try:
        typed = freeze(Study, data)  # names of presets among it, which are looked up next
    except KeyError as unknown:  # such as +trainer.stepz=3
        raise _uncomposable(f"{unknown.args[0]}.") from unknown
    looking = (*typed.shadow, *typed.truth.audit)
    shadow_judges, parts = [*map(load_judge_once, looking)], parts_of(typed)
    correction = dataclasses.replace(typed.correction, parts=parts)
    config = dataclasses.replace(typed, shadow_judges=shadow_judges, correction=correction)
    data["shadow_judges"] = [dataclasses.asdict(judge) for judge in shadow_judges]
    data["correction"]["parts"] = {name: dataclasses.asdict(part) for name, part in parts.items()}
    if shadow_judges or parts:
        refuse_config(data)
    return cells.make_cell(data, config=config)


def refuse_lists(overrides: Sequence[str]) -> None:
    """Refuse brackets around the values of a sweep: Hydra would merge the presets of
    ``judge=[a,b]`` into one judge."""
    for text in overrides:
        key, equals, value = text.partition("=")
        name = key.strip().lstrip("+~").partition("@")[0]
        value = value.strip().strip("\"'").strip()
        if equals and value.startswith("[") and takes_one_value(name.replace("/", ".")):
            inner = ",".join(word.strip() for word in value.strip("[]").split(",")) or "VALUE"
            if may_hold_key(name) and name not in GROUPS:
                value, inner = "...", "VALUE,VALUE"
            raise UserError(
                f"{name}={value} is a list, but the setting takes one value. To sweep over"
                f" several, type them without brackets: {name}={inner}"
            )


def _uncomposable(words: str) -> UserError:
    return UserError(f"This command line cannot be composed: {words} {EVERY_KEY}")


def takes_one_value(name: str) -> bool:
    """Whether the schema has no list under ``name``; True for the groups of presets."""
    kind: Any = Study
    for word in name.split("."):
        members = (kind, *typing.get_args(kind))
        schema = next((member for member in members if dataclasses.is_dataclass(member)), None)
        kinds = typing.get_type_hints(schema) if schema is not None else {}
        if word not in kinds:
            return name in ("profile", "experiment", "debug")
        kind = kinds[word]
    return name in GROUPS or not any(word in str(kind) for word in ("list", "dict", "Any"))


def cells_of(arguments: Sequence[str]) -> list[Cell]:
    """The cells of a sweep with these arguments; nothing is run or written.
    Raises UserError: they cannot be composed, or hold what looks like a secret."""
    before, whole = list(sys.argv), os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with config_dir(arguments) as words:
            sys.argv[1:] = words
            collect()
            return list(QUEUE)
    finally:
        sys.argv[:] = before
        os.environ.pop("HYDRA_FULL_ERROR")
        os.environ.update({} if whole is None else {"HYDRA_FULL_ERROR": whole})


def collect(elsewhere: Sequence[str] = ()) -> None:
    """Queue every cell of the command line, less the arguments ``elsewhere`` that choose another
    launcher; what Hydra writes about it goes with a folder that is taken away, so that nothing is
    written before it was checked."""
    before = list(sys.argv)
    arguments = respelled(before[1:])
    typed = [*arguments, *elsewhere]
    refuse_arguments(typed)
    refuse_lists(typed)
    causes.refuse_words(typed)
    words, _ = _flags_apart(typed)
    causes.refuse_words(words)
    if wrong := causes.unknown_key(typed):
        raise UserError(f"{wrong} {EVERY_KEY}")
    register()
    QUEUE.clear()
    try:
        with _in_one_paragraph(typed):
            return expand(opened(arguments), enqueue)
    except NeedsHydra:
        QUEUE.clear()
    with tempfile.TemporaryDirectory(prefix="judgedrift-") as folder:
        places = [f"hydra.{mode}.dir='{folder}'" for mode in ("sweep", "run")]
        sys.argv[1:] = arguments
        try:
            compose_jobs([*places, "hydra.output_subdir=null"])
        finally:
            sys.argv[:] = before


def compose_jobs(more: Sequence[str]) -> None:
    """Let Hydra expand the command line and ``more`` arguments, and call `job` for each
    combination. Raises UserError for an unknown choice or key."""
    import hydra
    from hydra.plugins.sweeper import Sweeper

    register()
    words, flags = _flags_apart(opened(sys.argv[1:]))
    if SHOWING & {flag.partition("=")[0] for flag in flags}:
        more = ()  # nothing is written, and our folder has no part in what is shown
    if "--hydra-help" in flags:  # whose config has no other settings
        words = [word for word in words if word.lstrip("+~").startswith("hydra")]
    # Composes every job a second time. Each was composed before a cell runs all the same.
    Sweeper.validate_batch_is_legal = lambda self, batch: None
    # hydra.mode says the same, but Hydra looks at it only where the composition succeeds,
    # and would answer a misspelt judge with a lecture on commas
    sys.argv[1:] = [*words, *more, *(flags or ["--multirun"])]
    with _in_one_paragraph([*words, *more]):
        try:
            add_folders()
            hydra.main(version_base="1.3", config_path=str(SHIPPED), config_name=NAME)(job)()
        except Refused as refused:
            raise refused.error from None


def _flags_apart(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command line and Hydra's flags with their values. Its own parser takes words
    on one side of its flags only, and a word behind ``--info`` for the value of that.
    Raises UserError: Hydra would not take them, and say so by its usage or a traceback."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    values = next(action.choices for action in parser._actions if action.dest == "info")
    typed = [
        f"{word}=all" if word in ("--info", "-i") and behind not in (values or ()) else word
        for word, behind in pairwise([*arguments, ""])
    ]
    flags_given = _parsed(parser, typed)
    words: list[str] = flags_given.overrides
    commands = [
        flags_given.run,
        flags_given.multirun,
        flags_given.cfg,
        flags_given.info,
        flags_given.shell_completion,
    ]
    if sum(map(bool, commands)) > 1:
        raise _unfit_flags("only one of --run, --multirun, --cfg, --info can be given")
    if flags_given.resolve and not flags_given.cfg:
        raise _unfit_flags("--resolve goes with --cfg")
    if flags_given.shell_completion:
        raise _unfit_flags("--shell-completion is not supported. Type: judgedrift completion bash")
    if flags_given.experimental_rerun is not None:
        raise _unfit_flags("a sweep is resumed by the same command, without a rerun file")
    flags, words_left = [], list(words)
    for word in typed:
        if words_left and word == words_left[0]:
            del words_left[0]
        else:
            flags.append(word)
    return words, flags


def _parsed(parser: argparse.ArgumentParser, typed: Sequence[str]) -> argparse.Namespace:
    """Raises UserError: a flag lacks its value, or has one that it cannot have."""
    try:
        with redirect_stderr(io.StringIO()) as usage:
            return parser.parse_intermixed_args(typed)
    except SystemExit as ended:
        if not ended.code:  # --version has been said
            raise
        raise _unfit_flags(usage.getvalue().rpartition("error: ")[2]) from None


def _unfit_flags(why: str) -> UserError:
    return UserError(
        f"The flags of this command line do not fit: {causes.shown(why)}. To see Hydra's flags, "
        "type: python -m experiments.sweep --hydra-help"
    )


@contextmanager
def _in_one_paragraph(typed: Sequence[str]) -> Generator[None]:
    """Raises UserError for what Hydra, or a disk that it writes to, raises in the block over the
    arguments ``typed``."""
    from hydra.errors import HydraException

    try:
        with causes.nothing_below_null(typed):
            yield
    except (HydraException, OmegaConfBaseException) as error:
        if stopping.interrupted(error):
            raise KeyboardInterrupt from error
        if wrong := causes.reason(error, typed):
            raise UserError(wrong) from error
        raise _uncomposable(causes.own_words(error, typed)) from error
    except BrokenPipeError:  # nobody reads Hydra's help
        raise
    except OSError as error:
        if trouble := storage.explained(error, Path.cwd()):
            raise trouble from error
        raise UserError(
            f"A folder of the sweep cannot be written ({error}). Type another one: "
            "runs_dir=PATH, or TMPDIR=PATH before the command."
        ) from error


if __name__ == "__main__":
    sys.exit(unless_unread(main))
