"""What of a training step is reward work outside the judge: step_share.py runs/STUDY

Read from what each run logged: system/reward_s (rules, truth, composition and records, without
waiting for judges) over system/step_s.
"""

from __future__ import annotations

import sys

from analysis.records.frames import steps_frame


def main(study: str) -> None:
    """One line per run and one for all."""
    steps = steps_frame(study)
    wide = steps.pivot_table(index=["cell", "step"], columns="metric", values="value")
    sums = wide[["system/reward_s", "system/judge_s", "system/step_s"]].groupby("cell").sum()
    for cell, row in [*sums.iterrows(), ("all", sums.sum())]:
        reward, judge, step = row
        print(f"{cell}: reward {reward:.2f} s, judge {judge:.1f} s of {step:.1f} s of steps, "
              f"{100 * reward / step:.2f} % outside the judge")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
