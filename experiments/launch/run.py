"""A study from its cells to its report: laid, run, reported, and closed however it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import analysis
from analysis.report.study_notebook import write_notebook
from experiments.launch.pool import run_cells, start_server, take_up
from experiments.launch.ready import check_machine, check_start
from experiments.launch.warm import warming
from experiments.monitor.notify import told_at_end
from experiments.plan import plan
from experiments.plan.needs import HERE, share_of
from experiments.tracking import pages
from experiments.tracking.runs import close_parent, mark_killed
from experiments.tracking.store import artifacts_of, initialise, tracking_uri
from experiments.workflow.planted import write_planted
from judges.serving.lease import leases
from study.cell import cells, exchange
from study.cell.cells import Cell, executors_of, models_of
from study.cell.study_file import StudyFile, base, looks_of, read_study, write_study
from study.cell.timing import add_sweep
from study.cell.verify import mend
from study.command_names import study_words, typed
from study.config.schema import Study
from study.errors import UserError
from study.finding import stop_at_problem
from study.progress import alive
from study.screen import COSTS, plural, print_table, visible
from study.system import stopping, storage
from study.system.files import read_left, say, write_json
from study.system.spent import Spent

REPORT = Path("report") / "bias_report.html"
SUMMARY = "summary.json"
LAST_S = 20.0
"""How long cells of another launcher may take to end once the sweep is stopped."""


def run_study(
    todo: Sequence[Cell], elsewhere: Callable[[], None] | None, spent: Spent | None = None
) -> int:
    """Run what is not done, write the report, print the table; 0 when every cell is done, else 1.

    Args:
        todo: the cells of the sweep, checked.
        elsewhere: runs the cells by another launcher; None runs them here, in a pool.
        spent: accounts of this process, where all that it does is this sweep.
    """
    for cell in todo:
        mend(cell)
    mine = share_of(todo)
    with told_at_end(todo, mine):
        return _run(todo, mine, elsewhere, spent or Spent("starting", from_start=False))


def _run(
    todo: Sequence[Cell],
    mine: Sequence[Cell],
    elsewhere: Callable[[], None] | None,
    spent: Spent,
) -> int:
    """`run_study` of the cells that are run here."""
    study_dir = todo[0].folder.study_dir
    here = elsewhere is None and todo[0].config.sweep.engine in HERE
    with ExitStack() as stack:
        theirs = stack.enter_context(take_up(todo)) if elsewhere is None else set()
        states = {cell.folder: cell.folder.state() for cell in mine}
        new = [cell for cell in mine if states[cell.folder] not in ("done", "running")]
        unfinished = new + [
            cell for cell in mine if states[cell.folder] == "running" and cell.folder in theirs
        ]
        if not unfinished:
            return _nothing_to_run(todo, mine)
        started = time.perf_counter()
        stop_at_problem(check_machine(new, not here))
        reached = stack.enter_context(leases(models_of(unfinished), study_dir.parent))
        stop_at_problem(check_start(todo, unfinished, reached))
        if here:
            start_server(todo[0].config.device)
            stack.enter_context(warming(new))
        mlflow_ids = stack.enter_context(_opened(todo, new, mine))
        spent.turn("waiting")
        run_cells(unfinished) if elsewhere is None else elsewhere()
        spent.turn("reporting")
        exchange.fetch(study_dir)  # what other machines have run
        whole = len(mine) == len(todo) or _states(todo) == {"done"}
        if whole:
            report(todo, stale=True)
        spent.turn("closing")
    spent.turn("done")
    add_sweep(study_dir, spent)
    if whole and "running" not in _states(todo):
        write_json(study_dir / SUMMARY, plan.rows(todo, todo[0].config.factors))
    exchange.push(study_dir)
    print(f"{plural(len(unfinished), 'cell')} in {time.perf_counter() - started:.1f} s")
    return conclude(todo, mlflow_ids, mine)


def _nothing_to_run(todo: Sequence[Cell], mine: Sequence[Cell]) -> int:
    """Every cell that is run here is done or run by another sweep; do what a sweep that was cut
    short left out."""
    study, study_dir = todo[0].config.study, todo[0].folder.study_dir
    if len(mine) < len(todo):
        study = f"this share of {study}"
    n_done = sum(cell.folder.state() == "done" for cell in mine)
    if n_done == len(mine):
        print(f"All {plural(n_done, 'cell')} of {study} are done; nothing to run.")
    else:
        print(
            f"{n_done} of {len(mine)} cells of {study} are done, and another sweep is running the"
            " others: no cell is started here."
        )
    mlflow_ids = read_study(study_dir).get("mlflow", {})
    # the summary comes last: without it, whoever ran the cells did not come to the end
    cut_short = not (study_dir / SUMMARY).exists() and _states(todo) == {"done"}
    if cut_short or len(mine) == len(todo):
        report(todo, stale=cut_short)
    if cut_short:
        _close_tracking(mlflow_ids, "FINISHED", todo, mine)
        write_json(study_dir / SUMMARY, plan.rows(todo, todo[0].config.factors))
    exchange.push(study_dir)
    return conclude(todo, mlflow_ids, mine)


def _states(todo: Sequence[Cell]) -> set[str]:
    return {cell.folder.state() for cell in todo}


@contextmanager
def _opened(
    todo: Sequence[Cell], new: Sequence[Cell], mine: Sequence[Cell]
) -> Generator[dict[str, str]]:
    """Lay the study and the cells ``new``; however the block ends, no run of theirs stays open.

    Yields what the study's run in MLflow is known by, nothing where tracking is off.
    """
    mlflow_ids: dict[str, str] = {}
    ended = "FAILED"
    try:
        with stopping.held():  # laid whole or not at all, and no run in MLflow that nobody knows
            _lay(todo[0], new, mlflow_ids)
        yield mlflow_ids
        ended = "FINISHED"
    except BaseException as error:
        interrupted = stopping.interrupted(error)
        if interrupted or isinstance(error, storage.DiskError):
            ended = "KILLED"
        limit = time.monotonic() + (LAST_S if interrupted else 0)
        while time.monotonic() < limit and "running" in _states(new):
            time.sleep(0.2)
        raise
    finally:
        _close_tracking(mlflow_ids, ended, todo, mine)


def _lay(first: Cell, new: Sequence[Cell], mlflow_ids: dict[str, str]) -> None:
    """Write what says what the study is, and the folder of each new cell."""
    config, study_dir = first.config, first.folder.study_dir
    if config.tracking.enabled:
        uri = tracking_uri(config.tracking, study_dir.parent)
        places = artifacts_of(config.tracking)
        mlflow_ids |= initialise(uri, study_dir.parent, config.study, config.factors, places)
        before = read_study(study_dir).get("mlflow", {})
        if before and before["parent_run_id"] != mlflow_ids["parent_run_id"]:
            words = study_words(config.study, config.runs_dir)
            say(
                f"MLflow gets {config.study} anew, in {uri}: its runs were in {before['uri']}, or"
                " it was moved or copied. To send the cells that are done, type"
                f" {typed(f'python -m experiments.tracking rebuild {words}')}"
            )
    study_dir.mkdir(parents=True, exist_ok=True)
    (study_dir / SUMMARY).unlink(missing_ok=True)
    described: StudyFile = {
        "study": config.study,
        "factors": list(config.factors),
        "base": base(first, config.factors),
        "looks": looks_of(first),
        "mlflow": dict(mlflow_ids),
    }
    write_study(study_dir, described)
    exchange.push(study_dir)
    for cell in new:
        cells.save_cell(cell)
        cell.folder.push_if_new()


def _close_tracking(
    mlflow_ids: dict[str, str], status: str, todo: Sequence[Cell], mine: Sequence[Cell]
) -> None:
    """End the runs of cells that were killed, and the study's own, with the report beside it:
    FINISHED only where every cell is done. A study some of whose cells are run by another sweep, or
    are of a share that is still to be run, is left for that one to end."""
    if not mlflow_ids:
        return
    states = {cell.folder: cell.folder.state() for cell in todo}
    for folder, state in states.items():
        if state == "killed":
            mark_killed(folder, "its process is gone")
    other_shares = {states[folder] for folder in states.keys() - {cell.folder for cell in mine}}
    if status == "KILLED":
        left_to_others = "running" in other_shares
    else:
        left_to_others = "running" in states.values() or "new" in other_shares
    if status == "FINISHED" and {*states.values()} != {"done"}:
        status = "FAILED"
    if not left_to_others:
        close_parent(mlflow_ids, status, todo[0].folder.study_dir)


def report(todo: Sequence[Cell], stale: bool) -> None:
    """Write the bias report and the notebook where there is something new to say."""
    study_dir, config = todo[0].folder.study_dir, todo[0].config
    new = stale or not (study_dir / REPORT).exists()
    if not (config.sweep.report and new and "done" in _states(todo)):
        return
    started = time.perf_counter()
    if any(executor.simulated is not None for executor in executors_of(todo)):
        try:
            write_planted(study_dir)
        except UserError as error:
            print(f"The planted truth was not written. {error}")
    this = study_words(config.study, config.runs_dir)
    with alive(f"report of {config.study}"):
        written = _could_write(
            "report", analysis.write_report, study_dir, f"python -m analysis.report {this}"
        )
    if written:
        print(f"report written in {time.perf_counter() - started:.1f} s")
    with alive(f"notebook of {config.study}"):
        again = f"python -m experiments.notebook {this}"
        _could_write("notebook", write_notebook, study_dir, again)


def _could_write(name: str, write: Callable[[Path], object], study_dir: Path, again: str) -> bool:
    """Whether something about a study could be written. Why not is said with the command that
    writes it ``again``, and the runs stay what they are."""
    try:
        write(study_dir)
    except Exception as error:
        if stopping.interrupted(error):
            raise KeyboardInterrupt from error
        if trouble := storage.explained(error, study_dir):
            print(f"The {name} was not written. {trouble}")
            return False
        logging.exception("the %s was not written", name)
        why = visible(f"{type(error).__name__}: {error}")
        print(
            f"The {name} was not written ({why}). The runs are complete; to try again, type:"
            f" {typed(again)}"
        )
        return False
    return True


def conclude(todo: Sequence[Cell], tracked: dict[str, str], mine: Sequence[Cell]) -> int:
    """Print the table, where to look, and what to type next; 0 when every cell that is run here is
    done, else 1."""
    config, study_dir = todo[0].config, todo[0].folder.study_dir
    lines = plan.rows(todo, config.factors)
    print_table(lines, f"{config.study}: {plural(len(todo), 'cell')}", COSTS)
    this = study_words(config.study, config.runs_dir)
    if (study_dir / REPORT).exists():
        print(f"Report: {study_dir / REPORT}")
        print(typed(f"Notebook: python -m experiments.notebook {this}"))
        summarise(study_dir, this)
    if tracked:
        print(f"Compare the runs: {typed(f'python -m experiments.ui {this}')}")
        if tracked["uri"].startswith("http"):
            page = pages.address(tracked["uri"], 0)
            print(f"  charts: {pages.charts_link(page, tracked)}")
            print(f"  what was found: {pages.parent_link(page, tracked)}")
    states = [(cell, cell.folder.state()) for cell in mine]
    running = [cell for cell, state in states if state == "running"]
    unfinished = [(cell, state) for cell, state in states if state not in ("done", "running")]
    for cell in running:
        status, log = cell.folder.status(), cell.folder / "log.txt"
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.get("started", 0)))
        whereabouts = (
            f"{cell.name} is being run by process {status.get('pid', '?')} on"
            f" {status.get('host', '?')} since {began}, at step {status.get('step', 0)} of"
            f" {status.get('steps', '?')}; to watch it: tail -f {log}"
        )
        print(visible(whereabouts))
    for cell, state in unfinished:
        print(f"{cell.name} is {state}; its log: {cell.folder / 'log.txt'}")
    if running:
        print(
            "When those have ended, rerun the command: it runs the remaining cells and writes the"
            " report."
        )
    elif unfinished:
        print("Rerun the command to resume these.")
    elif others := {cell.id for cell in todo} - {cell.id for cell in mine}:
        _print_other_shards([cell for cell in todo if cell.id in others], config)
    return 1 if running or unfinished else 0


def _print_other_shards(others: Sequence[Cell], config: Study) -> None:
    """What is left of the other shares, and what to type once nothing is."""
    states = [(cell, cell.folder.state()) for cell in others]
    unfinished = [(cell, state) for cell, state in states if state != "done"]
    if not unfinished:
        return
    print(
        f"Shard {config.sweep.shard} is done. Of the other shards {len(unfinished)} cells are not"
        f" done in {others[0].folder.study_dir}:"
    )
    for cell, state in unfinished:
        print(f"  {cell.name} is {state}")
    print(
        "The last shard writes the report. If the machines share no folder, copy the study's"
        " folders together (rsync -a) and rerun the command without the shard: it skips finished"
        " cells and writes the report."
    )


def summarise(study_dir: Path, this: str) -> None:
    """Print the study's summary table as the report computed it; ``this`` names the study."""
    path = study_dir / "report" / "summary.json"
    again = typed(f"python -m analysis.report {this} writes it again")
    summary = read_left(path, f"its table is left out, and {again}")
    rows, where = summary.get("rows", []), summary.get("where")
    if not isinstance(rows, list) or not rows:
        return
    tabular = all(
        isinstance(row, dict)
        and row.keys() == rows[0].keys()
        and all(isinstance(text, str) for text in row.values())
        for row in rows
    )
    if tabular:
        rests = f"; scores and words {where}" if isinstance(where, str) else ""
        print_table(rows, f"What each judge taught (mean over seeds{rests})")
