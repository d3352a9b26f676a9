"""Reading a run's records from one merged file of each kind, against a part per step.

    python -m benchmarks.records.merged [steps=350] [rounds=5]

A planted run of 32 rollouts a step and 4 judges is written in parts. First both layouts must be
read alike, step by step and as a whole; then they take turns, in one process and from a warm page
cache. Prints the least CPU ms of the rounds and the ratio, for what the analysis reads and for one
step alone, and bytes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.race import read_sizes, seconds
from study.cell.folder import CellFolder
from study.cell.merged import merge
from study.cell.parts import parts, read_all, read_part
from study.cell.records import ROLLOUT, VERDICT, part_name, rollout_id, write_part

ROLLOUTS, JUDGES = 32, 4
WORDS = (
    "the plan for your week with apples and pears tea sure certainly great maybe clearly".split()
)
READ = {
    "rollouts": ["rollout_id", "step", "group", "member", "answer", "reward", "truth"],
    "verdicts": ["rollout_id", "step", "judge", "role", "outcome", "score"],
}
"""What the analysis reads of each kind, about."""


def write(cell: Path, steps: int) -> None:
    rng = np.random.default_rng(0)
    for step in range(1, steps + 1):
        texts = [" ".join(rng.choice(WORDS, rng.integers(20, 120))) for _ in range(ROLLOUTS)]
        rollouts: list[dict[str, Any]] = [
            dict.fromkeys(ROLLOUT)
            | {"rollout_id": rollout_id(step, row), "step": step, "group": row // 8}
            | {"member": row % 8, "prompt_id": f"{row // 8:016x}", "prompt": f"Plan {row // 8}"}
            | {"completion": text, "answer": text, "tokens": len(text.split()), "stop": "stop"}
            | {"reward": rng.random(), "truth": rng.random(), "judge_score": rng.random()}
            for row, text in enumerate(texts)
        ]
        verdicts = [
            dict.fromkeys(VERDICT)
            | {"rollout_id": row["rollout_id"], "step": step, "judge": f"judge-{judge}"}
            | {"role": "shadow" if judge else "acting", "outcome": "scored", "attempts": 1}
            | {
                "score": rng.random(),
                "text": f"[[{rng.random():.2f}]]",
                "judge_id": f"{judge:012x}",
            }
            for row in rollouts
            for judge in range(JUDGES)
        ]
        write_part(cell / "rollouts" / part_name(step), rollouts, ROLLOUT, durable=False)
        write_part(cell / "verdicts" / part_name(step), verdicts, VERDICT, durable=False)


def whole(folder: Path, columns: list[str] | None) -> pa.Table:
    return pa.concat_tables([table for _, table in read_all(folder, columns)])


def taken(work: Callable[[Path], object], folder: Path) -> float:
    """CPU ms."""
    return 1000 * seconds(lambda: work(folder), time.process_time)


def main() -> None:
    sizes = read_sizes(steps=350, rounds=5)
    steps, rounds = sizes["steps"], sizes["rounds"]
    with tempfile.TemporaryDirectory() as scratch:
        old, new = Path(scratch) / "parts" / "cell", Path(scratch) / "merged" / "cell"
        write(old, steps)
        shutil.copytree(old, new)
        for kind, columns in READ.items():
            begun = time.perf_counter()
            merge(new / kind)
            merging = time.perf_counter() - begun
            assert len(list((new / kind).iterdir())) == 1
            pairs = list(zip(CellFolder(old).parts(kind), CellFolder(new).parts(kind), strict=True))
            assert all(a.step == b.step and read_part(a).equals(read_part(b)) for a, b in pairs)
            assert whole(old / kind, None).equals(whole(new / kind, None))
            print(f"{kind}: {steps} steps are read alike; merged in {merging:.2f} s")
            a, b = (sum(f.stat().st_size for f in (c / kind).iterdir()) for c in (old, new))
            print(f"  bytes {a:12,} {b:12,}   / {a / b:.1f}")
            works: dict[str, Callable[[Path], object]] = {
                "what is analysed": lambda folder, c=columns: whole(folder, c),
                "all columns": lambda folder: whole(folder, None),
                "one column": lambda folder: whole(folder, ["step"]),
                "one step alone": lambda folder: read_part(parts(folder)[steps // 2]),
            }
            for name, work in works.items():
                times = [[taken(work, cell / kind) for cell in (old, new)] for _ in range(rounds)]
                apart, merged = (min(column) for column in zip(*times, strict=True))
                print(f"  {name:17} {apart:9.1f} ms {merged:9.1f} ms   x {apart / merged:.1f}")


if __name__ == "__main__":
    main()
