"""The main job: from a list of judges to a bias report.

``python -m experiments.sweep judge=a,b,c seed=0,1,2`` runs one cell per combination, resumes what
is unfinished, skips what is done, and ends with the report. Hydra composes: the job function only
enqueues its cell, and the cells run here, in a pool, after Hydra returns. Where another launcher is
asked for (joblib, submitit, Ray), Hydra is then called once more with it: it calls the job where
the cell should run, and there the job supervises its own child.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import cells, plan, storage
from experiments.cells import Cell
from experiments.config import Judge, Study, freeze, register
from experiments.errors import UserError
from experiments.files import read_left, write_json
from experiments.status import read_status
from experiments.tasks.row import Row
from experiments.verify import mend, say_problems

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONF = Path(__file__).resolve().parents[1] / "conf"
REPORT = Path("report") / "bias_report.html"
LAUNCHER = ("hydra/launcher=", "hydra.launcher.")
"""How an argument begins that says where jobs run."""
QUEUE: list[Cell] = []
_SHADOWS: dict[str, dict[str, Any]] = {}


def job(config: DictConfig) -> None:
    """What Hydra calls per combination."""
    from hydra.core.hydra_config import HydraConfig

    cell = resolve(config)
    QUEUE.append(cell)
    if "BasicLauncher" in HydraConfig.get().launcher._target_:
        return
    if cells.state(cell.dir) not in ("done", "running"):
        from experiments.pool import supervise

        supervise(cell.dir, threads_of(cell.config, workers=1))


def resolve(config: DictConfig) -> Cell:
    """A composed config as a cell, the shadow judges filled in.

    Raises:
        UserError: a value that must be given is missing, or a config value looks like a secret.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue

    from experiments.rewards.failure import check_policy
    from judges.secrets import refuse_secrets

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
    plain["shadow_judges"] = [shadow(name) for name in plain["shadow"]]
    refuse_secrets((key, str(value)) for key, value in cells.flatten(plain).items())
    check_policy(plain["judge"]["on_failure"])
    check_names(freeze(Study, plain))
    return cells.make_cell(plain)


def shadow(name: str) -> dict[str, Any]:
    """A judge preset by name, composed once."""
    from contextlib import nullcontext

    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    if name not in _SHADOWS:
        register()
        here = GlobalHydra.instance().is_initialized()  # not in a launcher's own process
        with nullcontext() if here else initialize_config_dir(str(CONF), version_base="1.3"):
            composed = compose("sweep", overrides=[f"judge={name}"])
        found = OmegaConf.to_container(composed.judge, resolve=True)
        assert isinstance(found, dict)
        _SHADOWS[name] = {str(key): value for key, value in found.items()}
    return _SHADOWS[name]


def check_names(config: Study) -> None:
    """Names that are looked up later are refused now, with the legal ones."""
    from experiments.rewards import REWARDS
    from experiments.tasks import TASKS
    from judges.grading import GRADINGS

    for key, name, legal in (
        ("task.name", config.task.name, TASKS),
        ("reward.name", config.reward.name, REWARDS),
        ("judge.grading.name", config.judge.grading.name, GRADINGS),
    ):
        if name not in legal:
            raise UserError(
                f"{key}={name} is not known. Legal are {', '.join(sorted(legal))}. "
                f"Type for example: {key}={next(iter(legal))}"
            )


def check(todo: list[Cell]) -> None:
    """All that can be checked without touching disk or network much; writes nothing."""
    from judges.budget import check_limits

    plan.check_arms(todo, todo[0].config.factors)
    plan.check_study(todo[0].dir.parent, todo, todo[0].config.factors)
    for cell in todo:
        check_limits(cell.config.cost, (cell.config.judge, *cell.config.shadow_judges))
    check_inputs(todo)


def check_inputs(todo: list[Cell]) -> None:
    """The prompts can be read, every grading can grade them, and the policy is there.

    Raises:
        UserError: from the task or the grading, or naming the policy's folder.
    """
    from experiments.rewards.checks import check_reward, for_judge
    from experiments.scaffold import check as check_scaffold
    from experiments.tasks import TASKS
    from judges.grading.asking import check_rows
    from judges.identity import build_grading

    gradable: set[str] = set()
    rows_of: dict[str, list[Row]] = {}
    for cell in todo:
        config = cell.config
        task, size = config.task, config.trainer.group_size
        key = json.dumps(cell.data["task"])
        if key not in rows_of:
            rows_of[key] = TASKS[task.name].rows(task, "train")
        rows = rows_of[key]
        check_reward(config.reward, config.judge, rows, config.trainer.max_completion_length)
        check_scaffold(config.scaffold, rows)
        asked = [for_judge(row, config.reward.rules) for row in rows]
        for judge in judges_of([cell]):
            grading = dataclasses.asdict(judge.grading)
            pair = json.dumps([cell.data["task"], config.reward.rules, grading, size])
            if pair not in gradable:
                check_rows(build_grading(judge), asked, size)
                gradable.add(pair)
    sandboxed(todo)
    for policy in {cell.config.policy.path: cell.config.policy for cell in todo}.values():
        path = Path(policy.path)
        is_folder = len(path.parts) > 2 or path.is_absolute()  # a hub id is owner/name
        if is_folder and not (path / "config.json").exists():
            raise UserError(
                f"policy={policy.name} wants its model in {path}, where there is no config.json. "
                f"To make it, type: python -m experiments.models get {policy.name}; to use "
                "another one, type: policy.path=FOLDER or policy.path=OWNER/NAME"
            )


def sandboxed(todo: Sequence[Cell]) -> None:
    """Find out now whether rule functions can be isolated here.

    Raises:
        UserError: an unknown ``sandbox``, or nothing that isolates.
    """
    ruled = [cell.config.sandbox for cell in todo if cell.config.reward.rules == "run"]
    for name in {cell.config.sandbox for cell in todo}:
        if name not in ("auto", "unsafe"):
            raise UserError(
                f"sandbox={name} is not known. Type sandbox=auto, which refuses to run rule"
                " functions without isolation, or sandbox=unsafe."
            )
    if ruled:
        from experiments.sandbox import tiers

        tiers.find(unsafe=all(name == "unsafe" for name in ruled))


def prepare(todo: list[Cell]) -> dict[str, Any]:
    """Check everything that can be checked before training, then lay the study.

    Returns:
        The tracking record: empty where tracking is off.

    Raises:
        UserError: folder, factors, endpoints, keys or tracking are not usable.
    """
    config = todo[0].config
    study_dir = todo[0].dir.parent
    runs_dir = study_dir.parent
    plan.check_study(study_dir, todo, config.factors)
    writable(runs_dir)
    preflight(todo)
    tracked: dict[str, Any] = {}
    if config.tracking.enabled:
        from experiments import tracking

        uri = tracking.tracking_uri(config.tracking, runs_dir)
        tracked = tracking.initialise(uri, runs_dir, config.study, config.factors)
    study_dir.mkdir(parents=True, exist_ok=True)
    write_json(
        study_dir / "study.json",
        {
            "study": config.study,
            "factors": config.factors,
            "base": plan.base(todo[0], config.factors),
            "mlflow": tracked,
        },
    )
    return tracked


def writable(runs_dir: Path) -> None:
    """The runs folder exists and takes files."""
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        probe = runs_dir / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"The runs folder {runs_dir} cannot be written ({error.strerror}). It must be a folder "
            "that you may write to. Type another one: runs_dir=PATH"
        ) from error


def preflight(todo: list[Cell]) -> None:
    """Every judge of the sweep answers, with its key, before anything is trained."""
    from judges.identity import judge_id
    from judges.session import Session

    for judge in {judge_id(judge): judge for judge in judges_of(todo)}.values():
        if judge.endpoint.url.startswith("http"):
            with Session(judge, None) as session:
                session.check()


def judges_of(todo: list[Cell]) -> list[Judge]:
    """Every judge that the cells ask, acting and shadow, as often as it is asked."""
    return [j for cell in todo for j in (cell.config.judge, *cell.config.shadow_judges)]


def workers_of(config: Study) -> int:
    return config.sweep.workers or os.cpu_count() or 1


def threads_of(config: Study, workers: int) -> int:
    return config.sweep.threads or max(1, (os.cpu_count() or 1) // workers)


def run(todo: list[Cell], elsewhere: list[str]) -> int:
    """Run what is not done, write the report, print the table.

    Args:
        todo: the cells of the sweep.
        elsewhere: the arguments that choose another launcher; empty runs the cells here.

    Returns:
        0 when every cell is done, else 1.
    """
    from judges.server import leases

    config = todo[0].config
    study_dir = todo[0].dir.parent
    check(todo)
    say_problems(study_dir, todo)
    for cell in todo:
        mend(cell)
    open_cells = [cell for cell in todo if cells.state(cell.dir) not in ("done", "running")]
    started = time.perf_counter()
    summary = study_dir / "summary.json"
    if open_cells:
        with leases(judges_of(open_cells), study_dir.parent):
            tracked = prepare(todo)
            summary.unlink(missing_ok=True)
            for cell in open_cells:
                cells.save_cell(cell)
            try:
                if elsewhere:
                    compose_jobs(elsewhere)
                else:
                    run_cells(open_cells)
            except (KeyboardInterrupt, storage.DiskTrouble):
                close_tracking(tracked, "KILLED", study_dir)
                raise
    else:
        tracked = plan.read_study(study_dir).get("mlflow", {})
        print(f"All {len(todo)} cells of {config.study} are done; nothing to run.")
    states = {cell.name: cells.state(cell.dir) for cell in todo}
    failed = [name for name, state in states.items() if state != "done"]
    closing = bool(open_cells) or not summary.exists()  # it comes last: without it, killed before
    stale = closing or not (study_dir / REPORT).exists()
    if config.sweep.report and stale and len(failed) < len(todo):
        write_report(study_dir)
    lines = plan.rows(todo, config.factors)
    if closing:
        close_tracking(tracked, "FAILED" if failed else "FINISHED", study_dir)
        write_json(summary, lines)
    plan.print_table(lines, f"{config.study}: {len(todo)} cells", plan.COSTS)
    if open_cells:
        print(f"{len(open_cells)} cells in {time.perf_counter() - started:.1f} s")
    if (study_dir / REPORT).exists():
        print(f"Report: {study_dir / REPORT}")
        summarise(study_dir)
    if tracked:
        from experiments.mlflow_store import ui_command, ui_link

        families = {cell.config.judge.family for cell in todo}
        link = ui_link(tracked, "judge.family" if len(families) > 1 else "judge.name")
        print(f"Compare the runs: {ui_command(tracked['uri'])}\n  then open {link}")
    for name in failed:
        print(f"{name} is {states[name]}; its log: {study_dir / name / 'log.txt'}")
    if failed:
        print("Run the same command again to continue where these stopped.")
    return 1 if failed else 0


def close_tracking(tracked: dict[str, Any], status: str, study_dir: Path) -> None:
    """End the study's parent run, with the report beside it where there is one."""
    if tracked:
        from experiments import tracking

        reports = [path for path in [study_dir / REPORT] if path.exists()]
        tracking.close_parent(tracked, status, reports)


def run_cells(todo: list[Cell]) -> None:
    """The pool, with a live line per running cell on a terminal and plain lines elsewhere."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from experiments import tracking
    from experiments.pool import ORPHANED, run_pool

    config = todo[0].config
    workers = min(workers_of(config), len(todo))
    threads = threads_of(config, workers)
    console = Console()
    console.print(f"{len(todo)} cells to run, {workers} at once, {threads} threads each")
    live = Live(console=console, refresh_per_second=1) if console.is_terminal else None

    def ended(folder: Path, code: int) -> None:
        status = read_status(folder)
        note = f"{folder.name}: {cells.state(folder)} after {status.get('seconds', 0):.1f} s"
        console.print(note + (f" (exit {code}) {status.get('error', '')}" if code else ""))
        if code < 0 or code in (ORPHANED, storage.EXIT):
            tracking.mark_killed(folder, f"exit code {code}")
        if code == storage.EXIT:  # the other cells write to the same disk
            raise storage.DiskTrouble(status.get("error") or storage.paragraph(None, folder))

    def tick() -> None:
        if live is not None:
            said = [(cell.name, read_status(cell.dir)) for cell in todo]
            running = [
                f"{name}  step {status.get('step', 0)}/{status.get('steps', '?')}"
                for name, status in said
                if status.get("state") == "running"
            ]
            live.update(Text("\n".join(running)))

    if live is None:
        run_pool([cell.dir for cell in todo], workers, threads, ended)
    else:
        with live:
            run_pool([cell.dir for cell in todo], workers, threads, ended, tick)


def write_report(study_dir: Path) -> None:
    """The bias report; a report that fails is said, and the runs stay what they are."""
    from analysis.report import write_report as render

    started = time.perf_counter()
    try:
        render(study_dir)
    except Exception as error:
        if trouble := storage.explained(error, study_dir):
            print(f"The report could not be written. {trouble}")
            return
        logging.exception("the report could not be written")
        print(
            f"The report could not be written ({type(error).__name__}: {error}). The runs are "
            f"whole; to try again, type: python -m analysis.report study={study_dir.name}"
        )
        return
    print(f"report written in {time.perf_counter() - started:.1f} s")


def summarise(study_dir: Path) -> None:
    """Print the study's summary table as the report computed it."""
    path = study_dir / "report" / "summary.json"
    again = f"python -m analysis.report study={study_dir.name} writes it again"
    rows = read_left(path, f"its table is left out, and {again}").get("rows", [])
    if _is_table(rows):
        plan.print_table(rows, "What each judge taught (mean over seeds)")


def _is_table(rows: Any) -> bool:
    return (
        isinstance(rows, list)
        and bool(rows)
        and all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows)
        and all(isinstance(text, str) for row in rows for text in row.values())
    )


def main() -> int:
    """Command line. Exit codes: 0 all done, 1 a cell failed, 2 a user's error."""
    from judges.secrets import refuse_secrets

    full = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us whole; Hydra would print and exit
    os.umask(0o077)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        refuse_secrets((f"argument {n}", text) for n, text in enumerate(sys.argv[1:], 1))
        QUEUE.clear()
        elsewhere = [text for text in sys.argv[1:] if text.startswith(LAUNCHER)]
        sys.argv[1:] = [text for text in sys.argv[1:] if text not in elsewhere]
        compose_jobs()
        if not QUEUE:
            return 0  # --help, --cfg and the like
        if QUEUE[0].config.plan:
            check(QUEUE)
            say_problems(QUEUE[0].dir.parent, QUEUE)
            return show_plan(QUEUE)
        return run(list(QUEUE), elsewhere)
    except UserError as error:
        if full:
            raise
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        trouble = storage.explained(error, QUEUE[0].dir.parent if QUEUE else Path.cwd())
        if trouble is None or full:
            raise
        print(trouble, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped. Run the same command again to continue.", file=sys.stderr)
        return 130


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def show_plan(todo: list[Cell]) -> int:
    """Cells, state, expected cost, and the smallest effect to be seen; nothing is written."""
    from analysis.power import power_lines

    lines = plan.rows(todo, todo[0].config.factors)
    plan.print_table(lines, f"{todo[0].config.study}: {len(todo)} cells", ("error",))
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


def compose_jobs(launcher: Sequence[str] = ()) -> None:
    """Let Hydra expand the command line and call `job` for each combination.

    Args:
        launcher: arguments that choose where; none calls them all here.

    Raises:
        UserError: an unknown choice or key, in Hydra's own words.
    """
    import hydra
    from hydra.errors import HydraException
    from hydra.plugins.sweeper import Sweeper
    from omegaconf.errors import OmegaConfBaseException

    register()
    # Composes every job a second time, half of what a plan takes. Jobs here only enqueue a cell,
    # so one that cannot be composed stops the sweep before any cell runs all the same.
    Sweeper.validate_batch_is_legal = lambda self, batch: None
    if not any(argument.startswith("-") for argument in sys.argv[1:]):
        # hydra.mode says the same, but Hydra looks at it only where the composition succeeds,
        # and would answer a misspelt judge with a lecture on commas
        sys.argv.insert(1, "--multirun")
    sys.argv.extend(launcher)
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="sweep")(job)()
    except (HydraException, OmegaConfBaseException) as error:
        words = " ".join(str(error).split())
        raise UserError(
            f"This command line cannot be composed: {words} "
            "To see every key and its value, type: python -m experiments.sweep --cfg job"
        ) from error
    except OSError as error:
        if trouble := storage.explained(error, Path.cwd()):
            raise trouble from error
        raise UserError(
            f"The runs folder cannot be written ({error}). Type another one: runs_dir=PATH"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
