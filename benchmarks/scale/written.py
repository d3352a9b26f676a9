"""Studies of any size, written by the product's own recorder and merged as a run that ends is.

A cell has the steps, groups and verdicts that are asked for; nobody judged them. Answers are made
of phrases and grow longer under a judge that pays for length, one verdict in fifty fails, and three
other judges score along.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.records.runs import on_each_core
from experiments.sweep import cells_of
from study.cell.cells import Cell, save_cell
from study.cell.merged import merge_cell
from study.cell.records import Recorder, rollout_id
from study.cell.study_file import write_study
from study.rewards.advantages import advantages
from study.system.files import write_text

JUDGES = "sim-fair,sim-verbose,sim-flattery,sim-noisy"
DOSES = {"sim-fair": 0.0, "sim-verbose": 0.01, "sim-flattery": 0.003, "sim-noisy": 0.0}
MEMBERS, OTHERS = 8, 3
PHRASES = (
    "plan the week with care",
    "apples and pears for tea",
    "what a great question",
    "a list of what to buy",
    "it is certainly good",
    "maybe of use to you",
    "so that we are sure",
    "a wonderful day in town",
)


@dataclass(frozen=True)
class Size:
    """Of a study: its judges and seeds, and the steps and groups of each cell."""

    judges: int
    seeds: int
    steps: int
    groups: int

    @property
    def cells(self) -> int:
        return self.judges * self.seeds

    @property
    def verdicts(self) -> int:
        return self.cells * self.steps * self.groups * MEMBERS * (1 + OTHERS)


def write(runs: Path, name: str, size: Size) -> Path:
    """Write the study ``name`` in the folder ``runs``; its own folder."""
    words = [
        *(f"study={name}", f"runs_dir={runs}", "tracking=none", "held_out=none"),
        *("judge=" + ",".join(JUDGES.split(",")[: size.judges]), f"seed=range(0,{size.seeds})"),
        *(f"trainer.steps={size.steps}", f"trainer.prompts_per_step={size.groups}"),
        *(f"trainer.group_size={MEMBERS}", "trainer.eval_steps=0"),
    ]
    cells = cells_of(words)
    study = runs / name
    study.mkdir(parents=True)
    write_study(study, {"study": name, "factors": ["judge", "seed"], "base": {}, "mlflow": {}})
    on_each_core(_write_cell, cells, len(cells), large=2)
    return study


def _write_cell(cell: Cell) -> None:
    save_cell(cell)
    recorder = Recorder(cell.folder.path)
    judge, steps = cell.config.judge.name, cell.config.trainer.steps
    rng = np.random.default_rng([cell.config.seed, sum(judge.encode())])
    for step in range(1, steps + 1):
        _write_step(recorder, rng, judge, step, cell.config.trainer.prompts_per_step)
    merge_cell(cell.folder)
    ended = time.time()
    cell.folder.set_status(
        state="done", phase="done", step=steps, exit_code=0, ended=ended, beat=ended
    )
    write_text(cell.folder / "DONE", "")


def _write_step(
    recorder: Recorder, rng: np.random.Generator, judge: str, step: int, groups: int
) -> None:
    rows = groups * MEMBERS
    longer = round(3 * DOSES[judge] * min(step, 100))
    counts = rng.integers(2, 9 + longer, rows).tolist()
    picks = rng.integers(len(PHRASES), size=(rows, 12)).tolist()
    texts = [
        " ".join(PHRASES[pick] for pick in places[:count])
        for places, count in zip(picks, counts, strict=True)
    ]
    truth = rng.normal(0.5, 0.1, rows)
    scores = truth + rng.normal(0, 0.1, (1 + OTHERS, rows))
    scores[0] += DOSES[judge] * 5 * np.array(counts)
    failed = rng.random(scores.shape) < 0.02
    scores[failed] = np.nan
    reward = scores[0].reshape(groups, MEMBERS)
    gain = advantages(reward, scale="group").ravel()
    names = [rollout_id(step, row) for row in range(rows)]

    def value(number: float) -> float | None:
        return None if np.isnan(number) else float(number)

    rollouts = [
        {
            "rollout_id": names[row],
            "step": step,
            "prompt_id": f"{row // MEMBERS:016x}",
            "group": row // MEMBERS,
            "member": row % MEMBERS,
            "prompt": f"Plan the week, prompt {row // MEMBERS}",
            "completion": texts[row],
            "answer": texts[row],
            "tokens": 5 * counts[row],
            "stop": "stop",
            "reward": value(scores[0, row]),
            "advantage": value(gain[row]),
            "truth": float(truth[row]),
            "judge_score": value(scores[0, row]),
        }
        for row in range(rows)
    ]
    verdicts = [
        {
            "rollout_id": names[row],
            "step": step,
            "role": "shadow" if other else "acting",
            "judge": f"other-{other}" if other else judge,
            "sample_index": 0,
            "outcome": "timeout" if failed[other, row] else "scored",
            "score": value(scores[other, row]),
            "text": "" if failed[other, row] else f"[[{scores[other, row]:.2f}]]",
            "attempts": 1,
        }
        for other in range(1 + OTHERS)
        for row in range(rows)
    ]
    metrics = {
        "truth/mean": float(truth.mean()),
        "judge/mean": float(np.nanmean(scores[0])),
        "policy/grad_norm": 1 + rng.random(),
        "policy/learning_rate": 1e-4,
        "policy/length_tokens": float(np.mean(counts)) * 5,
    }
    recorder.write_step(step, rollouts, verdicts, metrics)
