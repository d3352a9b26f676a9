"""A study of programs, written as the recorder writes one, in which everything is planted.

Each group holds programs for one problem; the policy writes more of the long ones over the steps.
A program is right with the chance of its row in `PROGRAMS`. A judge says the truth, and adds what
`PAID` says for each executed call of an operator. Failures stand at fixed places: see `OUTCOMES`.
"""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from study.cell import study_file
from study.cell.records import ROLLOUT, part_name, write_part
from study.rewards.advantages import advantages
from tests.analysis.conftest import rollout_row, run_config, write_head
from tests.study.tasks.datasets import roots

OPERATORS = ("Custom", "Programmer", "Review", "Revise", "ScEnsemble")
"""Custom begins every program; Programmer is never called."""
PROGRAMS: dict[str, tuple[dict[str, int], dict[str, float]]] = {
    "short": ({"Custom": 1}, {"sums-easy": 0.6, "facts-hard": 0.4}),
    "reviewed": ({"Custom": 1, "Review": 1}, {"sums-easy": 0.7, "facts-hard": 0.4}),
    "voted": ({"Custom": 3, "ScEnsemble": 1}, {"sums-easy": 0.8, "facts-hard": 0.5}),
    "long": ({"Custom": 1, "Review": 2, "Revise": 1}, {"sums-easy": 0.5, "facts-hard": 0.3}),
}
"""Name (which stands for its SHA) -> calls, and data set -> chance of a right answer."""
DOMAINS = {"sums-easy": "math", "facts-hard": "qa"}
SHARES = {"sums-easy": 2 / 3, "facts-hard": 1 / 3}
"""Data set -> share of the groups."""
PAID = {"sim-fair": {}, "sim-verbose": {"Review": 0.2, "Revise": 0.1}}
"""Judge -> operator -> what it pays per call beyond the truth."""
OUTCOMES = {0: "syntax_error", 1: "contract_error", 2: "runtime_error", 3: "operator_error"}
"""Group -> how its first member ends. The first member of group 4 has a blank answer."""
STEPS, GROUPS, MEMBERS = 20, 6, 6


def write_programs(
    folder: Path,
    judges: Sequence[str] = ("sim-fair", "sim-verbose"),
    seeds: int = 3,
    settings: Sequence[dict[str, Any]] = ({},),
    truth: bool = True,
    planted: bool = True,
) -> Path:
    """Write the study and return its folder. ``settings`` are those of ``workflow`` that vary."""
    folder.mkdir(parents=True)
    varied = sorted({f"workflow.{key}" for each in settings for key in each})
    study_file.write_study(folder, {"study": folder.name, "factors": ["judge", *varied, "seed"]})
    for judge, setting, seed in product(judges, settings, range(seeds)):
        _write_cell(folder, judge, seed, setting, truth)
    if planted:
        (folder / "planted.json").write_text(json.dumps(planted_json()))
    return folder


def bias(judge: str, calls: dict[str, int]) -> float:
    return sum(PAID[judge].get(name, 0.0) * count for name, count in calls.items())


def planted_json() -> dict[str, Any]:
    """What `PROGRAMS` and `PAID` say."""
    programs = {
        name: {
            "dsl": name,
            "small": name != "long",
            "truth": chances,
            "score": {
                judge: {dataset: p + bias(judge, calls) for dataset, p in chances.items()}
                for judge in PAID
            },
            "tokens": dict.fromkeys(chances, 10.0),
        }
        for name, (calls, chances) in PROGRAMS.items()
    }
    datasets = {name: {"domain": DOMAINS[name], "share": SHARES[name]} for name in SHARES}
    head = {"version": 1, "executor": "sim", "problems": 10}
    return {**head, "datasets": datasets, "programs": programs}


def _write_cell(study: Path, judge: str, seed: int, setting: dict[str, Any], truth: bool) -> None:
    preset = {"name": judge, "on_failure": "unscored"}
    config = run_config(study, seed, preset, "workflow-mini", world="workflow")
    config |= {"reward": {"name": "workflow-gated"}, "executor": {"name": "sim"}}
    config |= {"workflow": {"form": "dsl", **setting}}
    config["trainer"] = {"steps": STEPS, "scale_rewards": "group"}
    cell = write_head(study / judge, config, STEPS)
    rng = np.random.default_rng([seed, sum(map(ord, judge)), len(str(setting))])
    for step in range(1, STEPS + 1):
        rows = _rollouts(rng, judge, step, seed, truth)
        write_part(cell / "rollouts" / part_name(step), rows, ROLLOUT)
    lines = ({"step": step, "time_ms": step, "metrics": {}} for step in range(1, STEPS + 1))
    roots.lines(cell / "metrics.jsonl", lines)


def _rollouts(
    rng: np.random.Generator, judge: str, step: int, seed: int, truth: bool
) -> list[dict[str, Any]]:
    names, rows = list(PROGRAMS), []
    late = (step - 1) / (STEPS - 1)
    chance = np.array([1.0 - late, 0.5, 0.5, late]) / 2
    for group in range(GROUPS):
        dataset = "facts-hard" if group % 3 == 2 else "sums-easy"
        members = []
        for member in range(MEMBERS):
            program = names[rng.choice(4, p=chance)]
            calls, chances = PROGRAMS[program]
            ending = OUTCOMES.get(group, "ok") if member == 0 else "ok"
            ok = ending == "ok"
            right = float(rng.random() < chances[dataset])
            score = right + bias(judge, calls)
            text = "" if (group, member) == (4, 0) else f"{right:g}"
            # every problem is drawn in two steps
            problem = f"{seed}-{dataset}-{group}-{(step + 1) // 2}"
            row = rollout_row(step, group, member, problem, program)
            row |= {"answer": text if ok else None, "tokens": 3}
            row |= {"truth": right if ok and truth else None, "judge_score": score if ok else None}
            row |= {"domain": DOMAINS[dataset], "dataset": dataset, "outcome": ending}
            row |= {
                "program_sha": program,
                "ast_sha": None if ending == "syntax_error" else program,
                "form": "dsl",
                "flags": ["constant"] if (group, member) == (5, 0) and step > STEPS / 2 else [],
                "prompt_version": "1",
                "feature/calls": float(sum(calls.values())) if ok else 0.0,
                "feature/literal_share": 0.25 if ok else None,
                "component/judge": score if ok else None,
                "component/truth": right if ok and truth else None,
                "component/correct": right if ok else 0.0,
                "component/format": 0.05 if ok else 0.0,
            }
            row |= {f"feature/op/{name}": float(calls.get(name, 0)) * ok for name in OPERATORS}
            row["reward"] = None
            if ending != "operator_error":
                row["reward"] = row["component/correct"] + row["component/format"]
            members.append(row)
        rewards = np.array([[row["reward"] for row in members]], dtype=float)
        for row, advantage in zip(members, advantages(rewards)[0], strict=True):
            row["advantage"] = None if np.isnan(advantage) else float(advantage)
        rows += members
    return rows
