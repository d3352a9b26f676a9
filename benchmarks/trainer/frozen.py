"""What frozen evaluation and reference log-probabilities add to a quickstart cell, as a ratio.

    python -m benchmarks.trainer.frozen [rounds=2] [steps=40]

The tiny policy under a simulated judge, 8 prompts x 8, with the quickstart's own held-out rows and
answers, at the start and the end. CPU seconds on one thread of either, over those of the rest of
the same training, which other work on the machine slows down alike.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from benchmarks.race import read_sizes
from benchmarks.trainer.step import QUICKSTART, TINY
from experiments.policies.load import load_policy
from experiments.trainer.grpo import RecordingTrainer, make_trainer
from experiments.trainer.held_out import HeldOut
from experiments.trainer.scorer import Scorer
from judges.ask.replies import Store
from judges.ask.session import Session
from study.cell.folder import CellFolder
from study.cell.records import Recorder
from study.config.compose import load_judge
from study.config.schema import Study, Task, Trainer
from study.system.files import read_yaml
from study.tasks import TASKS, oracle

PRESET = Path(__file__).parents[2] / "conf/held_out/tiny-instruct-mini-None.yaml"
MOST = 0.15
"""Of the rest of a cell: the share that they may add."""


class Clock:
    """CPU seconds of this process in all calls of a method."""

    def __init__(self, of: type, name: str) -> None:
        self.seconds = 0.0
        method: Callable[..., Any] = getattr(of, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - began

        setattr(of, name, timed)


def cell_seconds(config: Study) -> float:
    """CPU seconds of a training."""
    folder = Path(tempfile.mkdtemp(prefix="race-"))
    rows, truths = TASKS[config.task.name].rows(config.task, "train"), oracle(config.task)
    model, tokenizer = load_policy(config.policy, config.task, Path("runs/.cache/policies"))
    set_seed(config.seed)
    with Store(folder / "verdicts.db") as store, Session(config.judge, store, truths) as session:
        scorer, recorder = Scorer(config, truths, session), Recorder(folder)
        grpo_trainer = make_trainer(
            config,
            model,
            tokenizer,
            rows,
            scorer,
            recorder,
            CellFolder(folder),
            lambda line: None,
        )
        began = time.process_time()
        grpo_trainer.learn(None)
        return time.process_time() - began


def main() -> None:
    """So many cells, one after the other."""
    sizes = read_sizes(rounds=2, steps=40)
    torch.set_num_threads(1)
    preset = read_yaml(PRESET)
    trainer = Trainer(steps=sizes["steps"], save_steps=10, **QUICKSTART | preset["trainer"])
    task = Task(name="instruct-mini", **preset["task"])
    config = Study(policy=TINY, task=task, judge=load_judge("sim-verbose"), trainer=trainer)
    clocks = {
        "reference": Clock(RecordingTrainer, "_start_logprobs"),
        "evaluation": Clock(HeldOut, "evaluate"),
    }
    shares: dict[str, list[float]] = {name: [] for name in (*clocks, "both")}
    for _ in range(sizes["rounds"]):
        for clock in clocks.values():
            clock.seconds = 0.0
        taken = {"both": 0.0}
        whole = cell_seconds(config)
        for name, clock in clocks.items():
            taken[name] = clock.seconds
            taken["both"] += clock.seconds
        for name, seconds in taken.items():
            shares[name].append(seconds / (whole - taken["both"]))
    print(f"a cell of {sizes['steps']} steps takes {whole:.1f} s; of the rest of it take")
    for name, values in shares.items():
        middle = statistics.median(values)
        print(f"  {name}: median {middle:.1%}, {min(values):.1%} to {max(values):.1%}")
    print(f"  at most {MOST:.0%} is asked for: {'kept' if middle <= MOST else 'missed'}")


if __name__ == "__main__":
    main()
