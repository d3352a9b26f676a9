"""One cell from its folder to DONE: ``python -m experiments.train cell=runs/<study>/<cell>``.

The sweep forks this per cell; the command runs a cell whose config is already there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.policies import checkpoints
from experiments.policies.load import cache_of, load_policy
from experiments.policies.tokens import by_policy
from experiments.tracking.runs import RunLog
from experiments.trainer import processes
from experiments.trainer.processes import leave_with_launcher
from experiments.trainer.scorer import Scorer
from experiments.trainer.world import Direct, World
from experiments.workflow.world import Programs
from judges.ask.budget import Budget, evaluations_before, spent_before
from judges.ask.replies import open_store
from judges.ask.session import Session
from judges.endpoint.failures import EndpointRefused
from judges.serving.lease import leases
from study.cell import cells, lease
from study.cell.cells import Cell, models_of
from study.cell.folder import CellFolder, State
from study.cell.heartbeat import Heartbeat
from study.cell.merged import merge_cell, reopen
from study.cell.parts import verdicts_by
from study.cell.places import StorageError, shown
from study.cell.records import HELD_OUT, OVERALL, Line, Recorder
from study.cell.verify import unsound
from study.cli import command, option
from study.config.bounds import Number
from study.config.schema import Study
from study.errors import UserError
from study.rewards.corrections.corrector import Corrector, labelled_in
from study.rows import Row
from study.sandbox.pool import Pool
from study.system import stopping, storage
from study.system.files import Damaged, clear_leftovers, write_json, write_text
from study.system.machine import cpus
from study.system.spent import Spent
from study.tasks import checked, kind_of, oracle
from study.tasks.kind import grading
from study.tasks.rules import RuleRunner
from study.tasks.scaffold import check as check_scaffold

if TYPE_CHECKING:
    from experiments.trainer.alarm import Alarm

PACKAGES = ("torch", "transformers", "trl", "peft", "mlflow", "hydra-core", "numpy", "pyarrow")


class Terminated(KeyboardInterrupt):
    """SIGTERM or Ctrl-C, raised where the run is, so that it ends by its own hand and says so."""


def run_cell(folder: CellFolder, threads: int = 1) -> int:
    """Train one cell to its end, from its last checkpoint where there is one.

    A cell that is done stays as it is: nothing is trained and nothing written. Returns exit code: 0
    done, 1 failed, 2 a user's error, 3 (`cells.STOPPED`) stopped by a signal, 4 (`cells.BUSY`) run
    by another process, 5 (`cells.REFUSED`) key, account or model refused by an endpoint, 74 the
    disk is full or may only be read.
    """
    if processes.rank():
        return follow(folder, threads)
    if not folder.is_done():
        try:
            lock = folder.lock(wait_s=2.0)
        except OSError as error:
            return _failure(error, folder)[0]
        if lock is None:
            print(f"another process is running the cell {folder.name}", flush=True)
            return cells.BUSY
        with lock:
            if not folder.is_done():  # by another process, while this one waited
                return _run_leased(folder, threads)
        if processes.count() > 1:
            return cells.BUSY  # an end that the launcher passes on to the other processes
    policy_note = (
        "" if (folder / "policy").is_dir() else ", though its policy folder was removed later"
    )
    print(f"the cell {folder.name} is done{policy_note}: it is not trained again", flush=True)
    return 0


def _run_leased(folder: CellFolder, threads: int) -> int:
    """`_run_held` of a cell that, where it belongs to a URL, no other machine runs."""
    try:
        with lease.held(folder):
            if folder.is_done():
                print(f"the cell {folder.name} was ended by another machine", flush=True)
                return 0
            return _run_held(folder, threads)
    except lease.Taken as taken:
        print(taken, flush=True)
        return cells.BUSY
    except StorageError as error:
        return _failure(error, folder)[0]


def _run_held(folder: CellFolder, threads: int) -> int:
    """Run a cell whose lock this process holds; its end is on record when this returns."""
    started, before, spent = time.time(), 0.0, Spent("starting")
    if processes.count() > 1:
        processes.leave_with_launcher()
    code, problem = 1, ""
    state: State = "failed"
    handlers = _take_signals(dict.fromkeys(STOPPING, _terminate))
    try:
        clear_leftovers(folder.path)
        cell = cells.load_cell(folder)
        status = folder.status()
        before, spent = status.get("seconds", 0.0), Spent("starting", status.get("spent"))
        for sentence in unsound(folder):
            print(sentence, flush=True)
        folder.set_status(
            state="running",
            pid=os.getpid(),
            host=socket.gethostname(),
            started=started,
            error="",
            steps=cell.config.trainer.steps,
            phase="starting",
            beat=started,
        )
        train(cell, threads, spent)
        code, state = 0, "done"
    except (KeyboardInterrupt, Exception) as error:
        code, problem = _failure(error, folder)
        state = "killed" if code == cells.STOPPED else "failed"
    finally:
        _take_signals(IGNORED)
        ended = time.time()
        spent.turn("done")
        try:
            folder.set_status(
                state=state,
                phase=state,
                exit_code=code,
                error=problem,
                beat=ended,
                ended=ended,
                seconds=before + ended - started,
                spent=spent.plain(),
            )
            if state == "done":
                folder.push(ended=True)
                write_text(folder / "DONE", "")
            else:
                with contextlib.suppress(StorageError):  # its records went with its checkpoints
                    folder.push()
        except (OSError, UserError) as error:
            # Status and marker are missing; the next run finds the cell killed and goes on.
            code, _ = _failure(error, folder)
        _take_signals(handlers)
    return code


def _failure(error: BaseException, folder: CellFolder) -> tuple[int, str]:
    """Exit code and text of what ended a run, said in the log where it is an error: a paragraph
    where somebody can mend it."""
    full = None if isinstance(error, EndpointRefused) else storage.explained(error, folder.path)
    if full:
        print(full, flush=True)
        return storage.EXIT, str(full)
    if stopping.interrupted(error):
        return cells.STOPPED, "stopped by a signal"
    if isinstance(error, UserError | EndpointRefused):
        print(error, flush=True)
        return cells.REFUSED if isinstance(error, EndpointRefused) else 2, str(error)
    traceback.print_exc()
    return 1, f"{type(error).__name__}: {error}"


STOPPING = (signal.SIGINT, signal.SIGTERM)


def _unheard(*_: Any) -> None:
    """In place of SIG_IGN: Python complains of a signal that comes while that is being set."""


IGNORED = dict.fromkeys(STOPPING, _unheard)


def _take_signals(handlers: dict[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Set the handlers and return those before; only a main thread may, others return nothing."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}


def _terminate(*_: Any) -> None:
    _take_signals(IGNORED)  # a second one would cut short how the first one ends the run
    raise Terminated


def train(cell: Cell, threads: int, spent: Spent) -> None:
    """Do what the cell still lacks, by its records: steps after the last sound checkpoint, and
    after the last step only the policy and the end of the run in MLflow."""
    steps = cell.config.trainer.steps
    checkpoint, step = checkpoints.resume(cell.folder, cell.id, steps)
    cell.folder.set_status(step=step)
    reopen(cell.folder, step)
    recorder = Recorder(cell.folder.path, step)
    alarm = None
    if cell.config.correction.stop:
        from experiments.trainer.alarm import Alarm  # its estimate imports pandas and SciPy

        alarm = Alarm(cell.config, cell.folder)
        if alarm.step is not None:
            step = steps  # it has stopped already
    if processes.count() > 1:
        from experiments.trainer.ranks import shared

        shared((checkpoint, step))  # the others wait for it
    rules = None
    with ExitStack() as stack:
        if step < steps:
            sandbox, unsafe = {}, cell.config.sandbox == "unsafe"
            if cell.config.reward.rules == "run":
                pool = stack.enter_context(Pool(unsafe=unsafe))
                rules, sandbox = RuleRunner(pool), {"sandbox": str(pool.tier)}
            if kind_of(cell.config.task).runs_code(cell.config.task):
                sandbox = {"sandbox": str(stack.enter_context(grading(unsafe)).tier)}
            write_json(
                cell.folder / "environment.json", environment(threads) | sandbox, signed=True
            )
        log = stack.enter_context(RunLog(cell))
        for line in recorder.lines():
            log.add(line["step"], line["time_ms"], line["metrics"])
        stack.callback(spent.turn, "tracking")  # what is left to send, when the rest has ended
        heart = stack.enter_context(Heartbeat(cell.folder, _tokens_drawn(cell.folder), spent))
        if step < steps:
            learn(cell, threads, checkpoint, recorder, log, rules, heart, alarm)
        heart.phase("saving")
        last = steps
        if alarm is not None and alarm.step is not None:
            last = alarm.step
            cell.folder.set_status(stopped_at=last)
        checkpoints.save_policy(cell.folder, last)
        merge_cell(cell.folder)
    if processes.count() > 1:
        from experiments.trainer.ranks import leave

        leave()


def learn(
    cell: Cell,
    threads: int,
    checkpoint: Path | None,
    recorder: Recorder,
    log: RunLog,
    rules: RuleRunner | None,
    heart: Heartbeat,
    alarm: Alarm | None = None,
) -> None:
    """Build judges, policy and trainer, and train from ``checkpoint`` to the last step."""
    from transformers import set_seed

    from experiments.trainer.grpo import make_trainer

    config = cell.config
    runs_dir = cell.folder.study_dir.parent
    judges = (config.judge, *config.shadow_judges)
    paid_models = (*judges, config.executor) if config.world == "workflow" else judges
    evaluated = evaluations_before(cell.folder)[-1:]
    budget = Budget(config.cost, paid_models, spent_before(cell.folder), *evaluated)
    with heart.waiting("warming"):
        rows, model, tokenizer = _load(cell, threads)
        check_scaffold(config.scaffold, checked(rows))
    write_text(cell.folder / "chat_template.jinja", tokenizer.chat_template)

    def on_line(line: Line) -> None:
        metrics, step = line["metrics"], line["step"]
        with heart.spent.within("tracking"):
            log.add(step, line["time_ms"], metrics)
        cell.folder.set_status(step=step)
        numbers = "  ".join(f"{n} {metrics[n]:.4g}" for n in SHOWN if metrics.get(n) is not None)
        print(f"step {step}/{config.trainer.steps}  {numbers}", flush=True)

    with ExitStack() as stack:
        config = stack.enter_context(reached(cell))
        store = stack.enter_context(open_store(runs_dir, config.store))
        truth_of = oracle(config.task)
        sessions = [
            stack.enter_context(
                Session(
                    judge,
                    store,
                    truth_of,
                    calls_before=verdicts_by(cell.folder / "verdicts", judge.name),
                )
            )
            for judge in (config.judge, *config.shadows, *config.auditors)
        ]
        acting, *others = sessions
        shadows, auditors = others[: len(config.shadows)], others[len(config.shadows) :]
        world: World = Direct()
        if config.world == "workflow":
            programs = Programs(config, store, truth_of, cell.folder, by_policy(tokenizer))
            world = stack.enter_context(programs)
        scorer = Scorer(
            config,
            truth_of,
            acting,
            shadows=shadows,
            auditors=auditors,
            budget=budget,
            rules=rules,
            world=world,
        )
        scorer.on_missing = recorder.write_missing
        scorer.heart = heart
        heart.throttled = lambda: "; ".join(
            f"{each.judge.name} {words}" for each in sessions if (words := each.throttled)
        )
        if config.correction.calibrate:
            scorer.corrector = Corrector(labelled_in(cell.folder))
        set_seed(config.seed)  # arms of one seed share initial adapter and first rollouts
        trainer = make_trainer(
            config, model, tokenizer, rows, scorer, recorder, cell.folder, on_line, cell.id, alarm
        )
        # Libraries and model stay to the end. Looking through them for garbage would stop every
        # thread of this process, those that read verdicts among them, for a tenth of a second.
        gc.collect()
        gc.freeze()
        try:
            trainer.learn(checkpoint)
        finally:
            gc.unfreeze()


def follow(folder: CellFolder, threads: int) -> int:
    """Train with the first process, from the checkpoint that it chose; the exit code 0.

    What goes wrong is raised: the launcher then ends the others.
    """
    if folder.is_done():
        return 0
    from transformers import set_seed

    from experiments.trainer.grpo import make_trainer
    from experiments.trainer.ranks import leave, shared

    leave_with_launcher()
    cell = cells.load_cell(folder)
    checkpoint, step = shared(None)
    if step < cell.config.trainer.steps:
        rows, model, tokenizer = _load(cell, threads)
        set_seed(cell.config.seed)
        trainer = make_trainer(cell.config, model, tokenizer, rows, None, None, cell.folder)
        trainer.learn(checkpoint)
    leave()
    return 0


def _load(cell: Cell, threads: int) -> tuple[Sequence[Row], Any, Any]:
    """The rows to train on, the policy and its tokenizer; torch gets its threads first."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    torch.set_num_threads(threads)
    disable_progress_bar()
    rows = kind_of(cell.config.task).rows(cell.config.task, "train")
    return rows, *load_policy(cell.config.policy, cell.config.task, cache_of(cell))


@contextlib.contextmanager
def reached(cell: Cell) -> Generator[Study]:
    """Within the block this process is a user of the judges and the executor that its sweep serves;
    gives the cell's config with their addresses as they are from here.
    Raises UserError: one of them is not served, or does not answer here."""
    config = cell.config
    with leases(models_of([cell]), cell.folder.study_dir.parent, starts=False) as place:
        yield dataclasses.replace(
            config,
            judge=place(config.judge),
            shadow_judges=list(map(place, config.shadow_judges)),
            executor=place(config.executor),
        )


SHOWN = (
    *("reward/mean", "truth/mean", "policy/length", "judge/unscored_frac", "time/step_s"),
    f"{HELD_OUT}{OVERALL[0]}",
)


def _tokens_drawn(folder: CellFolder) -> int:
    """Tokens of the completions on record, as far as they can be read."""
    tokens = 0
    # of what is lost, whoever needs what it holds says so
    for _, table in folder.records("rollouts", ["tokens"], lost=[]):
        tokens += sum(filter(None, table.to_pydict().get("tokens", [])))
    return tokens


def environment(threads: int) -> dict[str, Any]:
    """What a rerun needs to know of this machine and checkout."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "threads": threads,
        "kernels": os.environ.get("ATEN_CPU_CAPABILITY", ""),  # empty: torch's choice
        "packages": {name: version_of(name) for name in PACKAGES},
        "git": git_state(Path(__file__).parent),
    }


def version_of(package: str) -> str:
    """What is installed of a package; other builds may stand under another name."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def git_state(folder: Path) -> dict[str, Any]:
    """Commit and whether the tree differs from it; empty where there is no repository."""
    git = functools.partial(
        subprocess.check_output, cwd=folder, text=True, stderr=subprocess.DEVNULL
    )
    try:
        commit = git(["git", "rev-parse", "HEAD"]).strip()
        return {"commit": commit, "dirty": bool(git(["git", "status", "--porcelain"]).strip())}
    except (OSError, subprocess.CalledProcessError):
        return {}


@dataclass(frozen=True)
class Options:
    """Options of `experiments.train`: the cell, and its torch threads."""

    cell: CellFolder = option("folder of the run, runs/STUDY/CELL", required=True)
    threads: int | None = option(
        "torch threads; left out, one for each CPU", legal=Number(low=1, high=1024)
    )

    def check(self) -> None:
        """Refuse a folder in which the sweep has laid no cell."""
        self.cell.find()
        if not (self.cell / "config.yaml").exists():
            raise UserError(
                "experiments.train runs one cell whose folder holds a config.yaml, but"
                f" cell={shown(self.cell.path)} is not one. To make and run one, type: python -m"
                " experiments.sweep judge=sim-fair seed=0."
            )


@command("experiments.train cell=runs/quickstart/CELL", __doc__, Options)
def main(options: Options) -> int:
    """Train the cell; exit codes are those of `run_cell`."""
    with ExitStack() as stack:
        if processes.count() == 1 and not options.cell.is_done():  # several inherit it
            with contextlib.suppress(Damaged):  # `run_cell` says it
                device = cells.load_cell(options.cell).config.device
                stack.enter_context(processes.surroundings(device))
        return run_cell(options.cell, options.threads or cpus())


if __name__ == "__main__":
    sys.exit(main())
