"""One cell from its folder to DONE: ``python -m experiments.train cell=runs/<study>/<cell>``.

The sweep forks this per cell; by hand it runs a cell whose config is already there.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import bounds, cells
from experiments.cells import Cell
from experiments.errors import UserError
from experiments.files import read_json, write_json, write_text
from experiments.machine import cpus

if TYPE_CHECKING:
    from experiments.rewards.ruled import RuleRunner

PACKAGES = ("torch", "transformers", "trl", "peft", "mlflow", "hydra-core", "numpy", "pyarrow")


class Terminated(BaseException):
    """SIGTERM, raised where the run is, so that it ends by its own hand and says so."""


def run_cell(folder: Path, threads: int = 1) -> int:
    """Train one cell to its end, from its last checkpoint where there is one.

    Returns:
        Exit code: 0 done, 1 failed, 2 a user's error, 3 stopped by a signal, 4 already running.
    """
    held = cells.lock(folder, wait_s=2.0)
    if held is None:
        print("another process is running this cell", flush=True)
        return 4
    cell = cells.load_cell(folder)
    if threading.current_thread() is threading.main_thread():  # others may not set a handler
        signal.signal(signal.SIGTERM, _terminate)
    started = time.time()
    before = read_json(folder / "status.json").get("seconds", 0.0)
    cells.set_status(
        folder,
        state="running",
        pid=os.getpid(),
        host=socket.gethostname(),
        started=started,
        error="",
        steps=cell.config.trainer.steps,
    )
    write_json(folder / "environment.json", environment(threads))
    end = {"state": "failed", "exit_code": 1, "error": ""}
    try:
        train(cell, threads)
        end = {"state": "done", "exit_code": 0, "error": ""}
    except UserError as error:
        end = {"state": "failed", "exit_code": 2, "error": str(error)}
        print(error, flush=True)
    except (Terminated, KeyboardInterrupt):
        end = {"state": "killed", "exit_code": 3, "error": "stopped by a signal"}
    except Exception as error:
        traceback.print_exc()
        end["error"] = f"{type(error).__name__}: {error}"
    finally:
        now = time.time()
        cells.set_status(folder, ended=now, seconds=before + now - started, **end)
        if end["state"] == "done":
            write_text(folder / "DONE", "")
        held.close()
    return int(end["exit_code"])


def _terminate(*_: Any) -> None:
    raise Terminated


def train(cell: Cell, threads: int) -> None:
    """Build judges, policy and trainer, and train; everything is written under ``cell.dir``."""
    import torch
    from transformers import set_seed
    from transformers.utils.logging import disable_progress_bar

    from experiments.grpo import last_checkpoint, make_trainer
    from experiments.policies import load_policy
    from experiments.recorder import Recorder
    from experiments.rewards.scorer import Scorer
    from experiments.scaffold import check as check_scaffold
    from experiments.tasks import TASKS, oracle
    from experiments.tracking import RunLog
    from judges.budget import Budget, spent_before
    from judges.session import Session
    from judges.store import Store

    config = cell.config
    runs_dir = cell.dir.parent.parent
    torch.set_num_threads(threads)
    disable_progress_bar()
    checkpoints = cell.dir / "checkpoints"
    checkpoint, done_steps = last_checkpoint(checkpoints)
    recorder = Recorder(cell.dir, done_steps)
    judges = (config.judge, *config.shadow_judges)
    budget = Budget(config.cost, judges, spent_before(cell.dir))
    known = oracle(config.task)
    task = TASKS[config.task.name]
    rows = task.rows(config.task, "train")
    check_scaffold(config.scaffold, rows)
    model, tokenizer = load_policy(config.policy, config.task, runs_dir / ".cache" / "policies")

    write_text(cell.dir / "chat_template.jinja", tokenizer.chat_template)

    with ExitStack() as stack:
        store = stack.enter_context(Store(runs_dir / "verdicts.db"))
        sessions = [
            stack.enter_context(
                Session(judge, store, known, calls_before=_answered(cell.dir, judge.name))
            )
            for judge in judges
        ]
        rules = rule_runner(cell, stack)
        log = stack.enter_context(RunLog(cell))
        for line in recorder.metrics():
            log.add(line["step"], line["time_ms"], line["metrics"])

        def on_line(line: dict[str, Any]) -> None:
            log.add(line["step"], line["time_ms"], line["metrics"])
            cells.set_status(cell.dir, step=line["step"])
            shown = {name: line["metrics"].get(name) for name in SHOWN}
            parts = [f"{name} {value:.4g}" for name, value in shown.items() if value is not None]
            print(f"step {line['step']}/{config.trainer.steps}  {'  '.join(parts)}", flush=True)

        scorer = Scorer(
            config,
            {row.prompt_id: row for row in rows},
            task.truth,
            sessions[0],
            sessions[1:],
            budget,
            rules,
        )
        set_seed(config.seed)  # arms of one seed share initial adapter and first rollouts
        trainer = make_trainer(
            config, model, tokenizer, rows, scorer, recorder, checkpoints, on_line
        )
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        trainer.save_model(str(cell.dir / "policy"))


def rule_runner(cell: Cell, stack: ExitStack) -> RuleRunner | None:
    """Sandboxes for the rules, where the reward runs them; how they isolate goes on record.

    Raises:
        SandboxUnavailable: nothing isolates here, and ``sandbox=unsafe`` was not said.
    """
    if cell.config.reward.rules != "run":
        return None
    from experiments.rewards.ruled import RuleRunner
    from experiments.sandbox.pool import Pool

    pool = stack.enter_context(Pool(unsafe=cell.config.sandbox == "unsafe"))
    path = cell.dir / "environment.json"
    write_json(path, read_json(path) | {"sandbox": str(pool.tier)})
    return RuleRunner(pool)


SHOWN = ("reward/mean", "truth/mean", "policy/length", "judge/unscored_frac", "system/step_s")


def _answered(folder: Path, judge: str) -> int:
    """Verdicts of ``judge`` on record, so that a drifting simulated judge goes on where it was."""
    import pyarrow.parquet as pq

    return sum(
        pq.read_table(part, columns=["judge"])["judge"].to_pylist().count(judge)
        for part in sorted((folder / "verdicts").glob("*.parquet"))
    )


def environment(threads: int) -> dict[str, Any]:
    """What a rerun needs to know of this machine and checkout."""
    from importlib.metadata import PackageNotFoundError, version

    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "missing"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "threads": threads,
        "packages": packages,
        "git": git_state(Path(__file__).parent),
    }


def git_state(folder: Path) -> dict[str, Any]:
    """Commit and whether the tree differs from it; empty where there is no repository."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", *args], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {}


def main(arguments: list[str] | None = None) -> int:
    """Command line: one ``cell=FOLDER``, and ``threads=N``."""
    given = dict(item.split("=", 1) for item in (arguments or sys.argv[1:]) if "=" in item)
    folder = Path(given.get("cell", ""))
    if "cell" not in given or not (folder / "config.yaml").exists():
        print(
            f"experiments.train runs one cell whose folder holds a config.yaml; given was "
            f"cell={given.get('cell', '(nothing)')}. Cells are laid by the sweep; to lay and run "
            "one, type: python -m experiments.sweep judge=sim-fair seed=0",
            file=sys.stderr,
        )
        return 2
    try:
        threads = bounds.whole("threads", given.get("threads", str(cpus())), low=1, high=1024)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return run_cell(folder, threads)


if __name__ == "__main__":
    sys.exit(main())
