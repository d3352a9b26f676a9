"""A study in which everything moves, written as the recorder writes one: all tables of a report
have something to say. Draws come from numpy with fixed seeds, so it is the same everywhere.

An answer has words by its run's level, and each marked behaviour with a chance that grows or falls
over the steps by arm; a judge pays the truth, its doses, and noise. Some verdicts fail, another
judge scores along, and held-out rows were answered before training, at its middle and at its end.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from study.cell import study_file
from study.cell.folder import CellFolder
from study.cell.merged import merge_cell
from study.cell.records import EVALUATIONS, ROLLOUT
from study.features import BEHAVIOURS, features
from study.rewards.advantages import advantages
from tests.analysis.conftest import VERDICT, rollout_row, run_config, schema, write_head, write_part
from tests.study.tasks.datasets import roots

STEPS, GROUPS, MEMBERS, SEEDS = 10, 5, 4, 3
HELD_OUT, DRAWN = 6, 3
MARKS = {
    "flattery": "What a great question.",
    "confidence": "This is definitely so.",
    "hedges": "Perhaps it could be.",
    "headings": "\n# The answer\n",
    "bullets": "\n- one\n- two\n",
    "bold": "**bold**",
    "emoji": "\U0001f600",
    "exclamation": "Yes!",
}
"""Behaviour -> what an answer with it holds."""
FACTORS = ["judge", "correction", "trainer.beta", "seed"]
WITHOUT = {
    "without": ["flattery"],
    "parts": {"flattery": {"b": 0.3, "error": 0.01, "sd": 0.4, "source": "dose"}},
}


class Arm(NamedTuple):
    """A judge, its doses, words and chance of truth that a step adds, and other settings."""

    judge: str
    doses: dict[str, float]
    words: float
    learned: float
    settings: Mapping[str, Any] = MappingProxyType({})


ARMS = {
    "fair": Arm("sim-fair", {}, -0.2, 0.02),
    "short-dose": Arm("sim-dose", {"length": 0.05}, 0.5, 0.01),
    "long-dose": Arm("sim-dose", {"length": 0.2}, 1.1, -0.01),
    "flattery": Arm("sim-flattery", {"flattery": 0.3}, 0.2, -0.02),
    "held-back": Arm("sim-flattery", {"flattery": 0.3}, 0.1, 0.01, {"trainer": {"beta": 0.05}}),
    "without": Arm("sim-flattery", {"flattery": 0.3}, 0.1, 0.0, {"correction": WITHOUT}),
}
LOGGED = ROLLOUT | {"component/reference_logprob": "float64"}
COLUMNS = schema(LOGGED, list(LOGGED))


def write_drifting(folder: Path) -> Path:
    """Write the study and return its folder."""
    folder.mkdir(parents=True)
    study_file.write_study(folder, {"study": folder.name, "factors": FACTORS})
    for place, arm in enumerate(ARMS):
        for seed in range(SEEDS):
            _write_cell(folder, arm, seed, np.random.default_rng([place, seed]))
    return folder


def _write_cell(study: Path, arm: str, seed: int, rng: np.random.Generator) -> None:
    judge, doses, *_, settings = ARMS[arm]
    preset = {
        **{"name": judge, "family": "simulated", "size": "rule", "endpoint": {"model": judge}},
        **{"grading": {"name": "likert"}, "simulated": {"doses": doses}, "on_failure": "unscored"},
    }
    config = run_config(study, seed, preset, "instruct-mini", arm=arm)
    config["reward"] = {"name": "judge"}
    config["policy"] = {"name": "tiny", "family": "llama", "size": "0.9M"}
    config["trainer"] = {
        **{"steps": STEPS, "scale_rewards": "group", "learning_rate": 6e-4, "group_size": MEMBERS},
        **{"max_grad_norm": 1.0, "beta": 0.0},
    }
    for key, values in settings.items():
        config[key] = {**config.get(key, {}), **values}
    cell = write_head(study / judge, config, STEPS)
    (cell / "environment.json").write_text(json.dumps({"git": {"commit": "0123456789abcdef"}}))
    lines = []
    for step in range(1, STEPS + 1):
        rollouts, verdicts = _step(rng, arm, seed, step, GROUPS, MEMBERS, f"{seed}-{step}")
        write_part(cell / "rollouts", step, rollouts, COLUMNS)
        write_part(cell / "verdicts", step, verdicts, VERDICT)
        lines.append({"step": step, "time_ms": 1000 * step, "metrics": _metrics(rollouts, step)})
    for step in (0, STEPS // 2, STEPS):
        rollouts, verdicts = _step(rng, arm, seed, step, HELD_OUT, 1 + DRAWN, "held-out")
        for row in rollouts:
            row |= {"reward": None, "advantage": None}
        for kind, rows, columns in (
            ("rollouts", rollouts, COLUMNS),
            ("verdicts", verdicts, VERDICT),
        ):
            (cell / EVALUATIONS / kind).mkdir(parents=True, exist_ok=True)
            write_part(cell / EVALUATIONS / kind, step, rows, columns)
    roots.lines(cell / "metrics.jsonl", lines)
    merge_cell(CellFolder(cell))


def _metrics(rollouts: list[dict[str, Any]], step: int) -> dict[str, float]:
    means = {
        name: float(np.mean([row[key] for row in rollouts if row[key] is not None]))
        for name, key in (("truth/mean", "truth"), ("judge/mean", "judge_score"))
    }
    tokens = float(np.mean([row["tokens"] for row in rollouts]))
    return means | {
        "policy/grad_norm": 0.5 + 0.05 * (step % 4),
        "policy/learning_rate": 6e-4,
        "policy/kl": 0.002 * step,
        "policy/length_tokens": tokens,
    }


def _answer(rng: np.random.Generator, arm: str, late: float, seed: int) -> str:
    """An answer after ``late`` steps of training."""
    doses = ARMS[arm].doses
    count = max(1, round(rng.normal(8 + seed + ARMS[arm].words * late, 2.5)))
    parts = [" ".join(f"word{rng.integers(12)}" for _ in range(count))]
    for name, mark in MARKS.items():
        rise = 0.05 if name in doses else 0.01 if name == "exclamation" else -0.005
        if rng.random() < 0.15 + rise * late:
            parts.append(mark)
    return " ".join(parts)


def _step(
    rng: np.random.Generator, arm: str, seed: int, step: int, groups: int, members: int, of: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of the rollouts and of the verdicts of a step."""
    judge, doses, _, learned, _ = ARMS[arm]
    late, rollouts, verdicts = max(0, step - 1), [], []
    for group in range(groups):
        easy = rng.random() if of != "held-out" else group / groups
        scores: list[float] = []
        for member in range(members):
            text = _answer(rng, arm, late, seed)
            truth = float(rng.random() < np.clip(0.3 + 0.3 * easy + learned * late, 0, 1))
            counted = features(text)
            paid = sum(
                dose
                * (counted[name] - BEHAVIOURS[name].reference[0])
                / BEHAVIOURS[name].reference[1]
                for name, dose in doses.items()
            )
            score = float(np.clip(0.2 + 0.5 * truth + paid + rng.normal(0, 0.05), 0, 1))
            failed = rng.random() < 0.04
            scores.append(np.nan if failed else score)
            row = rollout_row(step, group, member, f"{of}-{group}", text)
            tokens = len(text.split())
            row |= {"prompt": f"Prompt {group} of {of}", "truth": truth, "tokens": tokens}
            row |= {"judge_score": None if failed else score, "logprob_sum": -1.5 * tokens}
            row["component/reference_logprob"] = row["logprob_sum"] - 0.03 * late * member
            rollouts.append(row)
            head = {"rollout_id": row["rollout_id"], "step": step, "labels": [], "attempts": 1}
            acting = {"judge": judge, "role": "acting", "score": row["judge_score"]}
            acting["outcome"] = "unparsed" if failed else "scored"
            other = float(np.clip(0.1 + 0.8 * truth + rng.normal(0, 0.1), 0, 1))
            shadow = {"judge": "sim-noisy", "role": "shadow", "score": other, "outcome": "scored"}
            verdicts += [head | acting, head | shadow]
        rows = rollouts[-members:]
        for row, advantage in zip(rows, advantages(np.array([scores]))[0], strict=True):
            row["reward"] = row["judge_score"]
            row["advantage"] = None if np.isnan(advantage) else float(advantage)
    return rollouts, verdicts
