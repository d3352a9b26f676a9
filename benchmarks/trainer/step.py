"""Whole training steps with and without ``trainer.fast``: judge, records and checkpoints included.

    python -m benchmarks.trainer.step [rounds=3] [steps=6]

quickstart: the tiny policy under a simulated judge, 8 prompts x 8. small-real: SmolLM2-135M's shape
with random weights, 2 prompts of 200 tokens x 4 rollouts of 64 tokens, in micro-batches of 4. CPU
seconds of a step on one thread; the first step is left out, for it checks the fast path.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, set_seed

from benchmarks.race import read_sizes
from benchmarks.trainer.peers import TOKENIZER, smollm2
from experiments.policies.load import load_policy
from experiments.trainer.grpo import make_trainer
from experiments.trainer.scorer import Scorer
from judges.ask.session import Session
from study.cell.folder import CellFolder
from study.cell.records import Recorder
from study.config.compose import load_judge
from study.config.schema import Lora, Policy, Study, Task, Trainer, Warmup
from study.rows import Row, Truth, make_row
from study.tasks import TASKS
from study.truth.oracle import Oracle

TINY = Policy(
    name="tiny",
    path="tiny",
    lora=Lora(r=16, alpha=32),
    warmup=Warmup(steps=240, batch=32, learning_rate=0.004, seed=0),
)
TASK = Task(name="instruct-mini")
QUICKSTART = {"micro_batch": 64, "max_completion_length": 40, "learning_rate": 6e-4}
SMALL_REAL = {
    "prompts_per_step": 2,
    "group_size": 4,
    "micro_batch": 4,
    "max_completion_length": 64,
    "learning_rate": 1e-4,
}


class Clock(TrainerCallback):
    """CPU seconds of each step, from its beginning to the end of its checkpoint."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.has_begun = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = time.process_time()
        if self.has_begun:
            self.seconds.append(now - self.has_begun)
        self.has_begun = now


def step_seconds(policy: Policy, trainer: dict[str, Any], fast: bool, steps: int) -> list[float]:
    """CPU seconds of each step but the first and the last of one training."""
    config = Study(
        policy=policy,
        task=TASK,
        judge=load_judge("sim-verbose"),
        trainer=Trainer(steps=steps + 2, fast=fast, **trainer),
    )
    if policy is TINY:
        rows, truth = TASKS[TASK.name].rows(TASK, "train"), TASKS[TASK.name].truth
        model, tokenizer = load_policy(policy, TASK, Path("runs/.cache/policies"))
    else:
        rows, truth = long_prompts(), lambda row, answer: Truth(0.5)
        model, tokenizer = smollm2(), TOKENIZER
    folder, clock = Path(tempfile.mkdtemp(prefix="race-")), Clock()
    set_seed(config.seed)
    by_id = {row.prompt_id: row for row in rows}
    truth_of = Oracle(by_id.get, lambda rows, answers: list(map(truth, rows, answers)))
    with Session(config.judge, None, truth_of) as session:
        scorer = Scorer(config, truth_of, session)
        grpo_trainer = make_trainer(
            config,
            model,
            tokenizer,
            rows,
            scorer,
            Recorder(folder),
            CellFolder(folder),
            lambda line: None,
        )
        grpo_trainer.add_callback(clock)
        grpo_trainer.learn(None)
    return clock.seconds[1:]


def long_prompts() -> list[Row]:
    """Prompts of 75 words, which the tiny tokenizer reads as about 200 tokens."""
    draw = random.Random(0)
    words = [word for word in TOKENIZER.get_vocab() if word.isalpha()]
    texts = [" ".join(draw.choices(words, k=75)) for _ in range(64)]
    return [make_row(({"role": "user", "content": text},)) for text in texts]


def main() -> None:
    """Both trainings, in turns."""
    sizes = read_sizes(rounds=3, steps=6)
    torch.set_num_threads(1)
    real = Policy(name="smollm2-135m", path="random", lora=Lora(r=8, alpha=16))
    for name, policy, settings in (
        ("quickstart", TINY, QUICKSTART),
        ("small-real", real, SMALL_REAL),
    ):
        ratios = []
        for _ in range(sizes["rounds"]):
            slow, fast = (
                statistics.median(step_seconds(policy, settings, mode, sizes["steps"]))
                for mode in (False, True)
            )
            ratios.append(slow / fast)
        print(
            f"{name}: a step {slow:.3f} s by TRL, {fast:.3f} s fast; ratio: median "
            f"{statistics.median(ratios):.1f}, {min(ratios):.1f} to {max(ratios):.1f}"
        )


if __name__ == "__main__":
    main()
