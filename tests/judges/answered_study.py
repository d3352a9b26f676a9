"""A run whose rollouts are made by hand: one right answer of each group, bare, wordy, and none."""

import dataclasses
from pathlib import Path

import yaml

from study.cell import study_file
from study.cell.records import ROLLOUT, part_name, write_part
from study.config.compose import load_presets
from study.config.identity import digest
from study.config.schema import Reward, Study, Trainer
from study.tasks import kind_of

LONG = "I have thought about this with care, step by step, and I am sure of it. The answer is {}"
PLAIN = {"math": "{}", "qa": "{}", "code": "```python\n{}\n```"}
WORDY = {
    **dict.fromkeys(("math", "qa"), LONG),
    "code": "I have thought about this with care, step by step.\n```python\n{}\n```\nIt is right.",
}


def write_run(
    runs: Path,
    task_name: str = "mixed-mini",
    reward: str = "judge",
    steps: int = 1,
    truths: bool = True,
    seed: int = 0,
) -> Path:
    """A run whose groups of three give one right answer: bare, wordy, and none at all. Without
    ``truths`` no rule has told any, no two texts are equal, and the run is done."""
    # so low that no score reaches the end of the scale
    judge, task = load_presets("sim-verbose", task_name, ["judge.simulated.leniency=-0.4"])
    study = runs / "told"
    study.mkdir(parents=True, exist_ok=True)
    study_file.write_study(study, {"study": "told", "factors": ["judge", "seed"]})
    config = Study(
        study="told",
        judge=judge,
        task=task,
        reward=Reward(name=reward),
        trainer=Trainer(steps=steps, group_size=3),
        seed=seed,
    )
    data = dataclasses.asdict(config)
    cell = study / f"sim-verbose-s{seed}-{digest(data)}"
    (cell / "rollouts").mkdir(parents=True)
    (cell / "config.yaml").write_text(yaml.safe_dump(data))
    rows = kind_of(task).rows(task, "train")
    if task_name == "mixed-mini":
        rows = [next(row for row in rows if row.domain == domain) for domain in PLAIN]
    for step in range(1, steps + 1):
        records = [
            record | {"step": step, "rollout_id": f"{step:06d}-{record['rollout_id'][7:]}"}
            for group, row in enumerate(rows[:3])
            for record in _group(group, row, program=reward != "judge")
        ]
        if not truths:
            apart = " " * (step + steps * seed)
            for record in records:
                answer = record["answer"] and record["answer"] + apart
                record |= {"truth": None, "answer": answer}
        write_part(cell / "rollouts" / part_name(step), records, ROLLOUT)
    if not truths:
        (cell / "DONE").touch()
    return study


def _group(group, row, program):
    item = row.spec.get("item")
    right = (item.reference or next(iter(item.answers), "unanswerable")) if item else "yes"
    texts = [PLAIN[row.domain or "qa"].format(right), WORDY[row.domain or "qa"].format(right), None]
    values = [0.9, 1.0, None if program else 0.0]
    features = [0.1, 0.2, -0.3]
    return [
        {
            **{"rollout_id": f"000001-{3 * group + member:04d}", "step": 1, "group": group},
            **{"member": member, "prompt_id": row.prompt_id, "prompt": row.prompt_text()},
            **{"completion": text, "answer": text, "tokens": 5, "stop": "stop"},
            **{"logprob_sum": -1.0, "reward": values[member], "advantage": features[member]},
            **{"judge_score": values[member], "domain": row.domain or None},
            "truth": None if text is None and program else float(text is not None),
            "outcome": ("ok" if text is not None else "timeout") if program else None,
            **({"feature/op/Custom": float(member + 1)} if program else {}),
        }
        for member, text in enumerate(texts)
    ]
