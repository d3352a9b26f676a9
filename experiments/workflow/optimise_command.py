"""Tries a new version of a block of layer 1, and keeps it if it is better.

The new version stands in text=, or is written by a model, proposer=, which is told the block as it
is and what was wrong most often with the programs of the run. The policy of run= is shown both,
greedily; without run= the model of executor= writes the programs that it executes. The rows are
validation rows, or rows to train on that the run never drew, and never test rows. The result has
{block, old, new, difference, interval, n, adopted}: the new version is adopted, and written into
blocks=, if the 95 % interval of the paired difference lies above 0. workflow.blocks=FOLDER is then
the setting of a study that uses it.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.evaluation.generate import source_of
from experiments.evaluation.options import Options as Evaluated
from experiments.workflow import evaluation as evaluation
from experiments.workflow import optimise
from experiments.workflow.blocks import Blocks, check_text, keep
from experiments.workflow.check import check_executor
from experiments.workflow.find import FORMS
from experiments.workflow.operators.base import DOMAINS
from experiments.workflow.played import Player
from judges.ask.replies import Store, open_store
from study.cell.folder import CellFolder
from study.cli import command, option, output, overrides, preset, word, writes
from study.config.bounds import Choice, Number
from study.config.compose import load_executor
from study.config.schema import Study, Workflow
from study.errors import UserError
from study.finding import stop_at_problem
from study.system.files import read_text, write_json
from study.tasks import kind_of, oracle
from study.tasks.kind import grading

TRIED = ("role", "contract", "operators", "rules", "domain", "problem")
"""Blocks that every prompt has; examples are in none that is compared."""


@dataclass(frozen=True)
class Options:
    """Options of the command ``optimise``: the block, its new version, and the rows."""

    what: str = word("try a new version of a block", "optimise")
    run: CellFolder | None = option("folder of the run whose policy writes the programs")
    checkpoint: int | None = option("step of the run's checkpoint", legal=Number(low=0))
    executor: str = preset("executor", "")
    task: str = preset("task", "")
    form: str | None = option("without run=: form of the programs", None, Choice(FORMS))
    block: str = option("the block", legal=Choice(TRIED), required=True)
    domain: str | None = option("domain of block=domain, and of the rows", None, Choice(DOMAINS))
    text: Path | None = option("file with the new version")
    proposer: str = preset("executor", "")
    blocks: Path = option("folder of newer blocks, which replace the shipped ones", required=True)
    limit: int = option("validation rows", 200, Number(low=10, high=100_000))
    seed: int = option("seed of the choice of rows and of the interval", 0, Number(low=0))
    runs_dir: Path = option("without run=: folder of the reply store", Path("runs"))
    overrides: list[str] = overrides("executor.", "task.", "proposer.")
    out: Path = output("JSON file for the result", required=True)
    given: frozenset[str] = frozenset()
    """Options that were typed."""

    def check(self) -> None:
        """Raises UserError: options that do not go together."""
        if (self.text is None) == (not self.proposer):
            raise UserError(
                "optimise takes the new version from text=FILE or from proposer=NAME, a preset of"
                " an executor. Give only one."
            )
        if self.run is None and not (self.executor and self.task):
            raise UserError(
                "optimise needs a policy: run=runs/STUDY/CELL, or executor=NAME task=NAME, where"
                " the executor's model writes the programs."
            )
        if self.run is not None and (wrong := {"task", "form", "runs_dir"} & self.given):
            raise UserError(f"{min(wrong)}= is set by the run. Leave it out.")
        if self.run is None and self.checkpoint is not None:
            raise UserError("checkpoint= has no meaning without run=. Leave it out.")
        if (self.block == "domain") and self.domain is None:
            raise UserError(f"block=domain needs domain= ({', '.join(DOMAINS)}).")
        for text in self.overrides:
            group = text.lstrip("+~").partition(".")[0]
            if not getattr(self, group):
                raise UserError(f"{text} has no meaning without {group}=NAME. Leave it out.")


def _is_proposer_s(text: str) -> bool:
    return text.lstrip("+~").startswith("proposer.")


def _setting(options: Options) -> tuple[Study, optimise.Writer, Any]:
    """The config, who writes the programs, and how tokens of prompts are counted.
    Raises UserError: no such run or executor, or prompts that have no blocks."""
    if options.run is None:
        own = [text for text in options.overrides if not _is_proposer_s(text)]
        executor, task = load_executor(options.executor, options.task, own)
        config = Study(
            world="workflow",
            executor=executor,
            task=task,
            workflow=Workflow(form=options.form or FORMS[0]),
        )
        stop_at_problem(check_executor(replace(config, allow_same_model=True)))
        return config, partial(_by_executor, config, options.runs_dir), None
    evaluated = Evaluated(
        "workflow",
        run=options.run,
        checkpoint=options.checkpoint,
        executor=options.executor,
        overrides=[text for text in options.overrides if not _is_proposer_s(text)],
        out=options.out,
    )
    config = evaluation.cell_of(evaluated)
    if config.workflow.prompt != "layered":
        raise UserError(
            f"run={options.run} has workflow.prompt={config.workflow.prompt}: its policy sees no"
            " blocks. Give a run of workflow.prompt=layered."
        )
    limited = replace(evaluation.decoding(evaluated, config), temperature=0.0)
    source = source_of(limited)
    assert source is not None

    def write(player: Player, rows: Any) -> list[str | None]:
        return [each[0] for each in evaluation.write_programs(source, player, rows)]

    return config, write, evaluation.counter_of(source, config)


def _by_executor(config: Study, runs_dir: Path, player: Player, rows: Any) -> list[str | None]:
    prompts = [player.world.prompt_for(row, learning=False) for row in rows]
    with open_store(runs_dir, config.store) as store:
        truths = oracle(config.task)
        return optimise.ask_all(config.executor, store, truths, "Policy", prompts)


@command(
    "experiments.workflow optimise run=runs/STUDY/CELL block=rules text=rules.txt"
    " blocks=blocks/mine out=tried.json",
    __doc__,
    Options,
)
def main(options: Options) -> int:
    """Exit codes: 0 tried, adopted or not; 2 for a user's error."""
    config, write, count = _setting(options)
    folder = options.blocks
    started_from = folder if folder.is_dir() else config.workflow.blocks
    form, domain = config.workflow.form, options.domain or ""
    before = Blocks(form, started_from)
    name = before.files(options.block, domain)[0]
    old_text = before.text(options.block, domain)[0]
    runs_dir = options.runs_dir if options.run is None else options.run.path.resolve().parent.parent
    runs_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        store = stack.enter_context(open_store(runs_dir, config.store))
        new_text, where = _new_text(options, config, store, old_text)
        check_text(options.block, old_text, new_text, where)
        if new_text.strip() == old_text.strip():
            raise UserError(
                f"{where} is the block {name} unchanged. Give a new version as text=FILE."
            )
        without = set() if options.run is None else optimise.trained_prompts(options.run)
        split, rows = optimise.validation_rows(config, options.limit, options.seed, without, domain)
        if kind_of(config.task).runs_code(config.task):
            stack.enter_context(grading(config.sandbox == "unsafe"))
        trial = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if started_from:
            shutil.copytree(started_from, trial, dirs_exist_ok=True)
        version = before.version(options.block, domain) + 1
        keep(trial, name, new_text, version)
        print(f"{name}, version {version - 1}: {len(rows)} rows", flush=True)
        old, old_version = optimise.tried(config, store, rows, write, count, started_from)
        print(f"{name}, version {version}: {len(rows)} rows", flush=True)
        new, new_version = optimise.tried(config, store, rows, write, count, trial)
        after = Blocks(form, trial)
    rights_old, rights_new, difference = optimise.compared(old, new, options.seed)
    adopted = difference.low > 0  # NaN, where there is no interval, is not
    interval = None if math.isnan(difference.low) else [difference.low, difference.high]
    result = {
        "block": name,
        "old": {
            "version": version - 1,
            "sha": before.text(options.block, domain)[-1],
            "prompt_version": old_version,
            "accuracy": fmean(rights_old) if rights_old else None,
        },
        "new": {
            "version": version,
            "sha": after.text(options.block, domain)[-1],
            "prompt_version": new_version,
            "accuracy": fmean(rights_new) if rights_new else None,
            "text": new_text,
        },
        "difference": difference.value,
        "interval": interval,
        "n": difference.n,
        "n_missing": len(rows) - difference.n,
        "rows": split,
        "adopted": adopted,
        "blocks": str(folder),
    }
    if adopted:
        with writes("blocks", folder):
            if started_from and not folder.is_dir():
                shutil.copytree(started_from, folder)
            keep(folder, name, new_text, version)
    with writes("out", options.out):
        write_json(options.out, result)
    interval_text = (
        "no interval" if interval is None else f"95 % {interval[0]:+.3f} to {interval[1]:+.3f}"
    )
    end = f"adopted as version {version} in {folder}" if adopted else "not adopted"
    print(
        f"{difference.value:+.3f} ({interval_text}) over {difference.n} problems: {end}."
        f" {options.out}"
    )
    return 0


def _new_text(options: Options, config: Study, store: Store, old: str) -> tuple[str, str]:
    """The new version, and where it is from."""
    if options.text is not None:
        if not options.text.is_file():
            raise UserError(f"text={options.text} is not a file. Give a file with the new version.")
        return read_text(options.text, "Give a file of text.").rstrip("\n"), f"text={options.text}"
    errors = [] if options.run is None else optimise.faults(options.run, config.workflow.form)
    prompt = optimise.proposal(options.block, old, errors)
    typed = [
        text.replace("proposer.", "executor.", 1)
        for text in options.overrides
        if _is_proposer_s(text)
    ]
    proposer = load_executor(options.proposer, overrides=typed)[0]
    text = optimise.propose(proposer, store, oracle(config.task), prompt)
    return text, f"the reply of proposer={options.proposer}"
