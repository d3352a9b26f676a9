"""What frozen evaluation and reference log-probabilities add to a quickstart cell, as a ratio.

    python -m benchmarks.trainer.frozen [rounds=3] [steps=40]

The tiny policy under a simulated judge, 8 prompts x 8, with the quickstart's own held-out rows and
answers, at the start and the end. CPU seconds of whole trainings on one thread, in turns: without
both, with the reference alone, and with both. Trainings are the same.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import set_seed

from benchmarks.race import read_sizes
from benchmarks.trainer.step import QUICKSTART, TINY
from experiments.policies.load import load_policy
from experiments.scorer import Scorer
from experiments.trainer.grpo import make_trainer
from judges.session import Session
from judges.store import Store
from study.compose import load_judge
from study.files import read_yaml
from study.records import Recorder
from study.schema import Study, Task, Trainer
from study.tasks import TASKS, oracle

PRESET = Path(__file__).parents[2] / "conf/held_out/tiny-instruct-mini-None.yaml"
MOST = 0.15
"""Of a cell without both: the share that they may add."""


def cell_seconds(config: Study) -> tuple[float, list[torch.Tensor]]:
    """CPU seconds of a training, and the trained weights."""
    folder = Path(tempfile.mkdtemp(prefix="race-"))
    rows, truths = TASKS[config.task.name].rows(config.task, "train"), oracle(config.task)
    model, tokenizer = load_policy(config.policy, config.task, Path("runs/.cache/policies"))
    set_seed(config.seed)
    with Store(folder / "verdicts.db") as store, Session(config.judge, store, truths) as session:
        made = make_trainer(
            config,
            model,
            tokenizer,
            rows,
            Scorer(config, truths, session),
            Recorder(folder),
            folder / "checkpoints",
            lambda line: None,
        )
        began = time.process_time()
        made.learn(None)
        taken = time.process_time() - began
    return taken, [p.detach().clone() for p in made.model.parameters() if p.requires_grad]


def main() -> None:
    """The three kinds of cell, in turns."""
    sizes = read_sizes(rounds=3, steps=40)
    torch.set_num_threads(1)
    preset = read_yaml(PRESET)
    plain = Trainer(steps=sizes["steps"], save_steps=10, reference=False, **QUICKSTART)
    trainers = {
        "reference": dataclasses.replace(plain, reference=True),
        "reference and evaluation": dataclasses.replace(plain, reference=True, **preset["trainer"]),
    }
    task = Task(name="instruct-mini", **preset["task"])
    config = Study(policy=TINY, task=task, judge=load_judge("sim-verbose"), trainer=plain)
    added: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(sizes["rounds"]):
        without, weights = cell_seconds(config)
        for name, trainer in trainers.items():
            taken, others = cell_seconds(dataclasses.replace(config, trainer=trainer))
            assert all(map(torch.equal, weights, others)), "trainings differ"
            added[name].append(taken / without - 1)
    print(f"a cell of {sizes['steps']} steps without both: {without:.1f} s; added:")
    for name, shares in added.items():
        middle = statistics.median(shares)
        print(f"  {name}: median {middle:.1%}, {min(shares):.1%} to {max(shares):.1%}")
    print(f"  at most {MOST:.0%} is asked for: {'kept' if middle <= MOST else 'missed'}")


if __name__ == "__main__":
    main()
