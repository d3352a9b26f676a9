"""A study of three domains, written as the recorder writes one, with planted rates and changes.

A prompt's answers are right with a chance drawn from a beta distribution of its domain; each judge
says yes to right and wrong answers at its rates. Held-out accuracy is .5 at step 0, and at the last
step .5 + `GAIN` of the domain times what the arm's judge teaches there, and a part of the seed.
"""

from pathlib import Path
from typing import Any

import numpy as np

from study.cell import study_file
from study.cell.records import OPTIONAL, ROLLOUT
from study.rewards.advantages import advantages
from tests.analysis.conftest import rollout_row, run_config, schema, write_head, write_part
from tests.study.tasks.datasets import roots

GROUP, STEPS = 8, 6
DOMAINS = {"code": (3.0, 2.0), "math": (2.0, 3.0), "qa": (3.0, 3.0)}
"""Domain -> parameters of its beta distribution of pass rates."""
PROMPTS = {"code": 6, "math": 8, "qa": 6}
"""Groups of a step: shares .3, .4, .3."""
GAIN = {"code": 0.3, "math": 0.1, "qa": 0.2}
FAIR = dict.fromkeys(DOMAINS, (1.0, 0.0))
LENIENT = {**FAIR, "qa": (1.0, 0.7)}
STRICT = {**FAIR, "code": (0.3, 0.0)}
ARMS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[float, float]]]] = {
    "by-rule": ("sim-lenient", {"name": "rule"}, FAIR),
    "lenient": ("sim-lenient", {"name": "judge"}, LENIENT),
    "qa-by-rule": (
        "sim-lenient",
        {"name": "by-domain", "domains": {"math": "judge", "code": "judge", "qa": "rule"}},
        FAIR,
    ),
    "strict": ("sim-strict", {"name": "judge"}, STRICT),
}
"""Named arm -> judge, reward, and the rates by which it is rewarded."""
TAUGHT = {("lenient", "qa"): 0.5, ("strict", "code"): 0.4}
"""Share of the gain under the rule that an arm has; 1 where nothing is said."""
MIXED = schema(ROLLOUT | OPTIONAL, [*ROLLOUT, "domain"])


def write_mixed(folder: Path, seeds: int = 3, arms: tuple[str, ...] = tuple(ARMS)) -> Path:
    """Write the study and return its folder."""
    folder.mkdir(parents=True)
    study_file.write_study(folder, {"study": folder.name, "factors": ["judge", "reward", "seed"]})
    for arm in arms:
        for seed in range(seeds):
            _write_cell(folder, arm, seed)
    return folder


def _write_cell(study: Path, arm: str, seed: int) -> None:
    judge, reward, _ = ARMS[arm]
    preset = {"name": judge, "on_failure": "unscored"}
    config = run_config(study, seed, preset, "mixed", arm=arm, reward=reward)
    config["trainer"] = {"steps": STEPS, "scale_rewards": "group"}
    cell = write_head(study / judge, config, STEPS)
    rng = np.random.default_rng([seed, sum(map(ord, arm))])
    lines = [{"step": 0, "time_ms": 0, "metrics": held_out(arm, seed, 0)}]
    for step in range(1, STEPS + 1):
        rollouts = _rollouts(rng, arm, step)
        truths = [row["truth"] for row in rollouts if row.get("truth") is not None]
        mean = {"truth/mean": float(np.mean(truths))} if truths else {}
        write_part(cell / "rollouts", step, rollouts, MIXED)
        metrics = held_out(arm, seed, step) if step == STEPS else {}
        lines.append({"step": step, "time_ms": step, "metrics": mean | metrics})
    roots.lines(cell / "metrics.jsonl", lines)


def held_out(arm: str, seed: int, step: int) -> dict[str, float]:
    """The metrics of an evaluation."""
    done = step / STEPS
    by_domain = {
        f"eval/averages/{domain}": 0.5
        + done * gain * TAUGHT.get((arm, domain), 1.0) * (1 + 0.1 * (seed - 1))
        for domain, gain in GAIN.items()
    }
    return by_domain | {"eval/averages/by_domain": 0.5, "eval/averages/by_dataset": 0.5}


def _rollouts(rng: np.random.Generator, arm: str, step: int) -> list[dict[str, Any]]:
    _, _, rates = ARMS[arm]
    judge_rates = {"by-rule": LENIENT, "qa-by-rule": LENIENT}.get(arm, rates)
    rows, group = [], 0
    for domain, prompts in PROMPTS.items():
        for number in range(prompts):
            truth = (rng.random(GROUP) < rng.beta(*DOMAINS[domain])).astype(float)
            tpr, fpr = judge_rates[domain]
            judge = (rng.random(GROUP) < np.where(truth > 0, tpr, fpr)).astype(float)
            rewarded = truth if rates[domain] == (1.0, 0.0) else judge
            told = advantages(rewarded[None])[0]
            for member in range(GROUP):
                rows.append(
                    rollout_row(step, group, member, f"{domain}-{step}-{number}", "!")
                    | {"answer": f"{member}!", "reward": rewarded[member]}
                    | {"advantage": told[member]}
                    | {"truth": truth[member], "judge_score": judge[member], "domain": domain}
                )
            group += 1
    return rows
