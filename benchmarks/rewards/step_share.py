"""What of a training step is reward work outside the judge: step_share.py runs/STUDY

Read from what each run logged: time/reward_s (rules, truth, composition and records, without
waiting for judges) and, of it, time/truth_s, over time/step_s.
"""

from __future__ import annotations

import sys

from analysis.records.frames import steps_frame

NAMES = ("reward", "truth", "judge", "step")


def main(study: str) -> None:
    """One line per run and one for all."""
    steps = steps_frame(study)
    wide = steps.pivot_table(index=["cell", "step"], columns="metric", values="value")
    sums = wide[[f"time/{name}_s" for name in NAMES]].groupby("cell").sum()
    for cell, row in [*sums.iterrows(), ("all", sums.sum())]:
        reward, truth, judge, step = row
        print(
            f"{cell}: reward {reward:.2f} s, of it truth {truth:.2f} s, judge {judge:.1f} s of"
            f" {step:.1f} s of steps, {100 * reward / step:.2f} % outside the judge,"
            f" {100 * truth / step:.2f} % truth"
        )


if __name__ == "__main__":
    main(sys.argv[1])
