"""The report of ten million verdicts: wall seconds and memory, of its numbers and of the command.

    python benchmarks/analysis/report.py [cells=25] [folder=FOLDER]

Writes a planted study in the recorder's own layout (200 steps of 32 groups of 8 rollouts a run, one
acting and seven shadow verdicts each, answers of 10 to 98 words), checks the tables of two runs
against data frames of every row, and then computes every number of the report from all of it:
reading Parquet, features of 1.28 million answers, ledger, predictions, onset. After that the same
by ``python -m analysis.report``, with notebook, figures and HTML. Memory is that of all processes
together, looked at twice a second.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml

from analysis.drift import estimate as drift
from analysis.records.frames import rollouts_frame, runs_frame, verdicts_frame
from analysis.records.runs import on_each_core
from analysis.report.evidence import gather
from analysis.report.tables import summary_rows
from analysis.report.words import findings, limits
from study.cell import study_file
from study.cell.records import ROLLOUT, VERDICT, part_name

STEPS, GROUPS, MEMBERS, JUDGES = 200, 32, 8, 8
DOSES = (0.0, 0.002, 0.004, 0.006, 0.008)
WORDS = (
    "the a plan for your week with apples pears tea and of in to we sure certainly great question "
    "wonderful maybe clearly list so that it is good"
).split()


def schema(columns: dict[str, str]) -> pa.Schema:
    named = {"list<string>": pa.list_(pa.string())}
    return pa.schema([(n, named.get(k) or pa.type_for_alias(k)) for n, k in columns.items()])


def write_run(job: tuple[Path, int]) -> None:
    """One run under one dose of length; a seed is a fifth of all runs."""
    import pyarrow.parquet as pq

    study, number = job
    dose, seed = DOSES[number % len(DOSES)], number // len(DOSES)
    name = f"planted-{dose}"
    cell = study / f"{name}-s{seed}-{number:010x}"
    config = {
        "study": study.name,
        "seed": seed,
        "judge": {"name": name, "simulated": {"doses": {"length": dose}}},
        "policy": {"name": "planted"},
        "reward": {"name": "judge"},
        "trainer": {"steps": STEPS, "scale_rewards": "group"},
    }
    for kind in ("rollouts", "verdicts"):
        (cell / kind).mkdir(parents=True)
    (cell / "config.yaml").write_text(yaml.safe_dump(config))
    (cell / "status.json").write_text(json.dumps({"state": "done", "step": STEPS, "steps": STEPS}))
    (cell / "environment.json").write_text("{}")
    (cell / "DONE").write_text("")
    rng = np.random.default_rng(number)
    rows, lines = GROUPS * MEMBERS, []
    kinds = (schema(ROLLOUT), schema(VERDICT))
    for step in range(1, STEPS + 1):
        words = rng.integers(10, 50 + 30 * dose * step, rows)
        texts = [" ".join(rng.choice(WORDS, count)) for count in words]
        truth = rng.normal(0.5, 0.1, rows)
        score = truth + dose * words + rng.normal(0, 0.05, rows)
        score[rng.random(rows) < 0.02] = np.nan
        others = [truth + rng.normal(0, 0.1, rows) for _ in range(JUDGES - 1)]
        ids = [f"{step:06d}-{row:04d}" for row in range(rows)]
        centred = score - np.nanmean(score.reshape(GROUPS, MEMBERS), axis=1).repeat(MEMBERS)
        rollouts: dict[str, Any] = {
            "rollout_id": ids,
            "step": [step] * rows,
            "prompt_id": [f"{row // MEMBERS:016x}" for row in range(rows)],
            "group": np.arange(rows) // MEMBERS,
            "member": np.arange(rows) % MEMBERS,
            "prompt": [f"Plan the week, prompt {row // MEMBERS}" for row in range(rows)],
            "completion": texts,
            "answer": texts,
            "tokens": words,
            "stop": ["stop"] * rows,
            "reward": score,
            "advantage": centred,
            "truth": truth,
            "judge_score": score,
        }
        scores = np.concatenate([score, *others])
        verdicts: dict[str, Any] = {
            "rollout_id": ids * JUDGES,
            "step": [step] * len(scores),
            "role": np.repeat(["acting"] + ["shadow"] * (JUDGES - 1), rows),
            "judge": np.repeat([name, *(f"other-{k}" for k in range(1, JUDGES))], rows),
            "outcome": np.where(np.isnan(scores), "timeout", "scored"),
            "score": scores,
            "text": [f"[[{value:.2f}]]" for value in scores],
            "attempts": [1] * len(scores),
        }
        for kind, columns, fields in zip(
            ("rollouts", "verdicts"), (rollouts, verdicts), kinds, strict=True
        ):
            size = len(columns["step"])
            arrays = [
                pa.array(columns.get(field.name, [None] * size), field.type, from_pandas=True)
                for field in fields
            ]
            pq.write_table(pa.table(arrays, schema=fields), cell / kind / part_name(step))
        metrics = {"policy/grad_norm": 1 + rng.random(), "policy/learning_rate": 1e-4}
        lines.append(json.dumps({"step": step, "time_ms": step, "metrics": metrics}))
    (cell / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def write_study(study: Path, cells: int) -> None:
    study.mkdir(parents=True)
    study_file.write_study(study, {"study": study.name, "factors": ["judge", "seed"]})
    on_each_core(write_run, [(study, number) for number in range(cells)], cells, large=2)


def equal(study: Path) -> None:
    """Two runs by data frames of every row: step means, and counts of what is missing."""
    evidence = gather(study)
    table = runs_frame(study)
    rollouts, verdicts = rollouts_frame(study, runs=table), verdicts_frame(study, runs=table)
    gap = (rollouts["judge_score"] - rollouts["truth"]).groupby(
        [rollouts["cell"].astype("str"), rollouts["step"]]
    )
    ours = evidence.scores[evidence.scores["metric"] == "gap"].set_index(["cell", "step"])["value"]
    assert np.allclose(gap.mean().reindex(ours.index), ours, rtol=0, atol=1e-12)
    counts = pd.crosstab(verdicts["judge"], verdicts["outcome"]).reindex(columns=["scored"])
    failures = evidence.failures.groupby("judge")[["scored", "verdicts"]].sum()
    assert counts["scored"].equals(failures["scored"]) and failures["verdicts"].sum() == len(
        verdicts
    )
    print("step means and counts of two runs are those of the data frames (1e-12)")


def numbers(study: Path) -> None:
    """Everything that the report shows, undrawn."""
    evidence = gather(study)
    findings(evidence), limits(evidence), summary_rows(evidence)
    drift.learning_curves(evidence.scores), drift.learning_curves(evidence.features)
    drift.sample_completions(drift.sample_rollouts(evidence.records, evidence.used_cells))


def memory(pid: int) -> int:
    """Bytes that a process and those it started hold, what they share counted once each."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    own = next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return own * 1024 + sum(memory(int(child)) for child in children)


def main(arguments: list[str]) -> int:
    options = dict(argument.partition("=")[::2] for argument in arguments)
    if "numbers" in options:
        numbers(Path(options["numbers"]))
        return 0
    if set(options) - {"cells", "folder"} or not options.get("cells", "25").isdecimal():
        print(f"{' '.join(arguments)}: legal are cells=NUMBER and folder=FOLDER", file=sys.stderr)
        return 2
    cells = int(options.get("cells", "25"))
    folder = Path(options["folder"]) if "folder" in options else Path(tempfile.mkdtemp())
    if not (folder / "equal").exists():
        write_study(folder / "equal", 2)
    equal(folder / "equal")
    if not (folder / "large").exists():
        write_study(folder / "large", cells)
    size = sum(part.stat().st_size for part in (folder / "large").rglob("*.parquet"))
    runs = len(list((folder / "large").glob("*/DONE")))
    verdicts = runs * STEPS * GROUPS * MEMBERS * JUDGES
    print(
        f"{runs} runs, {verdicts:,} verdicts, {verdicts // JUDGES:,} rollouts, {size / 1e6:.0f} MB"
    )
    report = ["-m", "analysis.report", "study=large", f"runs_dir={folder}"]
    for name, arguments in (
        ("numbers", [__file__, f"numbers={folder / 'large'}"]),
        ("page", report),
    ):
        started, most = time.perf_counter(), 0
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
        while process.poll() is None:
            most = max(most, memory(process.pid))
            time.sleep(0.5)
        took = time.perf_counter() - started
        print(f"{name:<8} {took:6.1f} s, at most {most / 1e9:.2f} GB in all processes")
        if process.returncode:
            return process.returncode
    if "folder" not in options:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
