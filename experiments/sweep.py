"""The main job: from a list of judges to a bias report.

``python -m experiments.sweep judge=a,b,c seed=0,1,2`` runs one cell per combination, resumes what
is unfinished, skips what is done, and ends with the report. Hydra composes: the job function only
enqueues its cell, and the cells run here, in a pool, after Hydra returns. Where another launcher is
asked for (joblib, submitit, Ray), Hydra is then called once more with it: it calls the job where
the cell should run, and there the job supervises its own child.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from analysis.statistics.power import power_lines
from experiments import plan, tracking
from experiments.launch.conclusion import REPORT, conclude, report, say_nothing_to_run
from experiments.launch.pool import ORPHANED, run_pool, supervise
from experiments.launch.refusals import Refusals
from experiments.preflight import (
    check,
    check_launcher,
    check_names,
    judges_of,
    preflight,
    refuse_lists,
    writable,
)
from judges.serving.server import leases
from study import cells, stopping, storage
from study.cells import Cell
from study.cli import print_table
from study.errors import UserError
from study.files import write_json
from study.machine import cpus
from study.schema import Study, freeze, register
from study.screen import visible
from study.secrets import redact, refuse_arguments, refuse_config
from study.status import read_status
from study.study_file import base, read_study, write_study
from study.verify import mend, say_problems

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONF = Path(__file__).resolve().parents[1] / "conf"
SUMMARY = "summary.json"
LAUNCHER = ("hydra/launcher=", "hydra.launcher.")
"""How an argument begins that says where jobs run."""
LAST_S = 20.0
"""How long cells of another launcher may take to end once the sweep is stopped."""
QUEUE: list[Cell] = []
_SHADOWS: dict[str, dict[str, Any]] = {}


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
        refuse_lists(hydra.overrides.task)
        refuse_config(OmegaConf.to_container(hydra, resolve=False), "hydra")
        refuse_config(OmegaConf.to_container(config, resolve=False))
        cell = resolve(config)
    except UserError as error:
        raise Refused(error) from error
    QUEUE.append(cell)
    if "BasicLauncher" in hydra.launcher._target_:
        return
    if cells.state(cell.dir) not in ("done", "running"):
        supervise(cell.dir, threads_of(cell.config, workers=1))


def resolve(config: DictConfig) -> Cell:
    """A composed config as a cell, the shadow judges filled in.

    Raises:
        UserError: a value that must be given is missing, is not legal, or looks like a secret.
    """
    try:
        data = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = getattr(error, "full_key", None) or "a value"
        raise UserError(
            f"{key} has no value and this experiment cannot run without one. "
            f"Type it on the command line: {key}=VALUE"
        ) from error
    assert isinstance(data, dict)
    plain: dict[str, Any] = {str(key): value for key, value in data.items()}
    refuse_config(plain)
    freeze(Study, plain)  # names of presets among it, which are looked up next
    plain["shadow_judges"] = [shadow(name) for name in plain["shadow"]]
    refuse_config(plain)
    cell = cells.make_cell(plain)
    check_names(cell.config)
    return cell


def shadow(name: str) -> dict[str, Any]:
    """A judge preset by name, composed once."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    if name not in _SHADOWS:
        register()
        here = GlobalHydra.instance().is_initialized()  # not in a launcher's own process
        with nullcontext() if here else initialize_config_dir(str(CONF), version_base="1.3"):
            composed = compose("sweep", overrides=[f"judge={name}"])
        found = OmegaConf.to_container(composed.judge, resolve=True)
        assert isinstance(found, dict)
        _SHADOWS[name] = {str(key): value for key, value in found.items()}
    return _SHADOWS[name]


@contextmanager
def opened(todo: list[Cell], new: list[Cell]) -> Generator[dict[str, Any]]:
    """Lay the study and the cells ``new``; however the block ends, no run of theirs stays open.

    Yields:
        The tracking record: empty where tracking is off.

    Raises:
        UserError: folder, factors, endpoints, keys or tracking are not usable.
    """
    study_dir = todo[0].dir.parent
    plan.check_study(study_dir, todo, todo[0].config.factors)
    writable(study_dir.parent)
    preflight(todo)
    tracked: dict[str, Any] = {}
    ended = "FAILED"
    try:
        with stopping.held():  # laid whole or not at all, and no run in MLflow that nobody knows
            lay(todo, new, tracked)
        yield tracked
        if _states(todo) == {"done"}:
            ended = "FINISHED"
    except KeyboardInterrupt:
        ended = "KILLED"
        wait_for_last(new)
        raise
    except storage.DiskTrouble:
        ended = "KILLED"
        raise
    finally:
        close_tracking(tracked, ended, todo)


def lay(todo: list[Cell], new: list[Cell], tracked: dict[str, Any]) -> None:
    """Write what says what the study is, and the folder of each new cell."""
    config, study_dir = todo[0].config, todo[0].dir.parent
    if config.tracking.enabled:
        uri = tracking.tracking_uri(config.tracking, study_dir.parent)
        found = tracking.initialise(uri, study_dir.parent, config.study, config.factors)
        tracked.update(found)
    study_dir.mkdir(parents=True, exist_ok=True)
    (study_dir / SUMMARY).unlink(missing_ok=True)
    write_study(
        study_dir,
        {
            "study": config.study,
            "factors": config.factors,
            "base": base(todo[0], config.factors),
            "mlflow": dict(tracked),
        },
    )
    for cell in new:
        cells.save_cell(cell)


def wait_for_last(new: list[Cell]) -> None:
    """Give cells that another launcher runs the time to end by themselves."""
    limit = time.monotonic() + LAST_S
    while any(cells.state(cell.dir) == "running" for cell in new) and time.monotonic() < limit:
        time.sleep(0.2)


def close_tracking(tracked: dict[str, Any], status: str, todo: list[Cell]) -> None:
    """End the runs of cells that were killed, and the study's own, with the report beside it.

    A study some of whose cells are run by another sweep is left for that one to end.
    """
    if not tracked:
        return

    states = {cell.dir: cells.state(cell.dir) for cell in todo}
    for folder, state in states.items():
        if state == "killed":
            tracking.mark_killed(folder, "its process is gone")
    if status == "KILLED" or "running" not in states.values():
        reports = [path for path in [todo[0].dir.parent / REPORT] if path.exists()]
        tracking.close_parent(tracked, status, reports)


def workers_of(config: Study) -> int:
    return config.sweep.workers or cpus()


def threads_of(config: Study, workers: int) -> int:
    return config.sweep.threads or max(1, cpus() // workers)


def run(todo: list[Cell], elsewhere: list[str]) -> int:
    """Run what is not done, write the report, print the table.

    Args:
        todo: the cells of the sweep.
        elsewhere: the arguments that choose another launcher; empty runs the cells here.

    Returns:
        0 when every cell is done, else 1.
    """
    study_dir = todo[0].dir.parent
    check(todo)
    if elsewhere:
        check_launcher(elsewhere, CONF)
    say_problems(study_dir, todo)
    for cell in todo:
        mend(cell)
    new = [cell for cell in todo if cells.state(cell.dir) not in ("done", "running")]
    if not new:
        say_nothing_to_run(todo)
        tracked = read_study(study_dir).get("mlflow", {})
        # the summary comes last: without it, whoever ran the cells did not come to the end
        cut_short = not (study_dir / SUMMARY).exists() and _states(todo) == {"done"}
        report(todo, stale=cut_short)
        if cut_short:
            close_tracking(tracked, "FINISHED", todo)
            write_json(study_dir / SUMMARY, plan.rows(todo, todo[0].config.factors))
        return conclude(todo, tracked)
    started = time.perf_counter()
    with leases(judges_of(new), study_dir.parent), opened(todo, new) as tracked:
        if elsewhere:
            compose_jobs(elsewhere)
        else:
            run_cells(new)
        report(todo, stale=True)
    if "running" not in _states(todo):
        write_json(study_dir / SUMMARY, plan.rows(todo, todo[0].config.factors))
    print(f"{len(new)} cells in {time.perf_counter() - started:.1f} s")
    return conclude(todo, tracked)


def _states(todo: list[Cell]) -> set[str]:
    return {cells.state(cell.dir) for cell in todo}


def run_cells(todo: list[Cell]) -> None:
    """The pool, with a live line per running cell on a terminal and plain lines elsewhere."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    config = todo[0].config
    workers = min(workers_of(config), len(todo))
    threads = threads_of(config, workers)
    console = Console()
    by_folder = {cell.dir: cell for cell in todo}
    refusals = Refusals()

    def say(text: str) -> None:
        # as Text nothing is taken for markup: errors quote what judges and endpoints wrote
        console.print(Text(visible(text)), soft_wrap=True)

    say(f"{len(todo)} cells to run, {workers} at once, {threads} threads each")
    live = Live(console=console, refresh_per_second=1) if console.is_terminal else None

    def ended(folder: Path, code: int) -> None:
        status = read_status(folder)
        note = f"{folder.name}: {cells.state(folder)} after {status.get('seconds', 0):.1f} s"
        say(note + (f" (exit {code}) {status.get('error', '')}" if code else ""))
        if code == cells.REFUSED:
            refusals.add(by_folder[folder], str(status.get("error", "")))
        if code < 0 or code in (ORPHANED, storage.EXIT):
            tracking.mark_killed(folder, f"exit code {code}")
        if code == storage.EXIT:  # the other cells write to the same disk
            raise storage.DiskTrouble(status.get("error") or storage.paragraph(None, folder))

    def skipped(folder: Path) -> bool:
        return refusals.covers(by_folder[folder])

    def tick() -> None:
        if live is not None:
            said = [(cell.name, read_status(cell.dir)) for cell in todo]
            running = [
                f"{name}  step {status.get('step', 0)}/{status.get('steps', '?')}"
                for name, status in said
                if status.get("state") == "running"
            ]
            live.update(Text(visible("\n".join(running))))

    folders = list(by_folder)
    if live is None:
        run_pool(folders, workers, threads, ended, skipped=skipped)
    else:
        with live:
            run_pool(folders, workers, threads, ended, tick, skipped)
    if refusals.left:
        say(refusals.paragraph())


def main() -> int:
    """Command line. Exit codes: 0 all done, 1 a cell is not done, 2 a user's error, 130 stopped."""
    full = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us whole; Hydra would print and exit
    os.umask(0o077)
    stopping.take_signals()
    try:
        refuse_arguments(sys.argv[1:])
        refuse_lists(sys.argv[1:])
        QUEUE.clear()
        elsewhere = [text for text in sys.argv[1:] if text.startswith(LAUNCHER)]
        sys.argv[1:] = [text for text in sys.argv[1:] if text not in elsewhere]
        collect()
        if not QUEUE:
            return 0  # --help, --cfg and the like
        if QUEUE[0].config.plan:
            check(QUEUE)
            if elsewhere:
                check_launcher(elsewhere, CONF)
            say_problems(QUEUE[0].dir.parent, QUEUE)
            return show_plan(QUEUE)
        return run(list(QUEUE), elsewhere)
    except UserError as error:
        if full:
            raise
        print(redact(str(error)), file=sys.stderr)
        return 2
    except OSError as error:
        trouble = storage.explained(error, QUEUE[0].dir.parent if QUEUE else Path.cwd())
        if trouble is None or full:
            raise
        print(trouble, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        stopping.deafen()
        print("Stopped. Run the same command again to continue.", file=sys.stderr)
        return 130
    finally:
        if not full:
            del os.environ["HYDRA_FULL_ERROR"]


def show_plan(todo: list[Cell]) -> int:
    """Cells, state, expected cost, and the smallest effect to be seen; nothing is written."""
    lines = plan.rows(todo, todo[0].config.factors)
    print_table(lines, f"{todo[0].config.study}: {len(todo)} cells", ("error",))
    total = {key: sum(plan.expected(cell)[key] for cell in todo) for key in plan.expected(todo[0])}
    left = sum(plan.expected(cell)["calls"] for cell in todo if cells.state(cell.dir) != "done")
    print(
        f"{total['completions']} completions and {total['calls']} judge calls in all, "
        f"about {total['tokens_in']} tokens in and {total['tokens_out']} out; "
        f"{left} calls in cells that are not done (before retries, less what the store holds)"
    )
    for line in power_lines(*plan.design(todo)):
        print(line)
    return 0


def collect() -> None:
    """Queue every cell of the command line; what Hydra writes about it goes with a folder that is
    taken away, so that nothing lies anywhere before it was checked.

    Raises:
        UserError: see `compose_jobs`; or a config that looks like it holds a key.
    """
    given = list(sys.argv)
    with tempfile.TemporaryDirectory(prefix="judgedrift-") as folder:
        places = [f"hydra.{mode}.dir='{folder}'" for mode in ("sweep", "run")]
        try:
            compose_jobs([*places, "hydra.output_subdir=null"])
        finally:
            sys.argv[:] = given


def compose_jobs(more: Sequence[str]) -> None:
    """Let Hydra expand the command line and call `job` for each combination.

    Args:
        more: further arguments, such as those that choose a launcher.

    Raises:
        UserError: an unknown choice or key, in Hydra's own words.
    """
    import hydra
    from hydra.errors import HydraException
    from hydra.plugins.sweeper import Sweeper

    register()
    # Composes every job a second time, half of what a plan takes. Jobs here only enqueue a cell,
    # so one that cannot be composed stops the sweep before any cell runs all the same.
    Sweeper.validate_batch_is_legal = lambda self, batch: None
    if not any(argument.startswith("-") for argument in sys.argv[1:]):
        # hydra.mode says the same, but Hydra looks at it only where the composition succeeds,
        # and would answer a misspelt judge with a lecture on commas
        sys.argv.insert(1, "--multirun")
    sys.argv.extend(more)
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="sweep")(job)()
    except Refused as refused:
        raise refused.error from None
    except (HydraException, OmegaConfBaseException) as error:
        words = redact(" ".join(str(error).split()))
        raise UserError(
            f"This command line cannot be composed: {words} "
            "To see every key and its value, type: python -m experiments.sweep --cfg job"
        ) from error
    except OSError as error:
        if trouble := storage.explained(error, Path.cwd()):
            raise trouble from error
        raise UserError(
            f"A folder that a sweep needs cannot be written ({error}). Type another one: "
            "runs_dir=PATH, or TMPDIR=PATH before the command."
        ) from error


if __name__ == "__main__":
    sys.exit(main())
