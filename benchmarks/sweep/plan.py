"""Planning a sweep against Hydra's own multirun: equal cells first, then CPU seconds of a cell.

    python -m benchmarks.sweep.plan [cells=20] [raced=100] [planned=500]

Command lines that sweep over presets, values, lists and tables, each of about ``cells`` cells, are
expanded by `experiments.plan.expand` and by Hydra's multirun, in one process; every cell has to be
the same. Then both expand ``raced`` cells of five judges, in two turns. At last ``planned`` cells
of five judges, and of ten learning rates, are planned by the whole command (composing, checks,
cost, printing), in processes of their own.
"""

from __future__ import annotations

import os
import tempfile
import time

from benchmarks.race import race, read_sizes, spent
from experiments.sweep import cells_of

JUDGES = "judge=sim-fair,sim-verbose,sim-flattery,sim-noisy,sim-strict"
RATES = "trainer.learning_rate=1e-3,2e-3,3e-3,4e-3,5e-3,6e-3,7e-3,8e-3,9e-3,1e-2"
LINES = (
    [JUDGES, "seed=range(0,{fifth})"],
    [RATES, "judge=sim-fair", "seed=range(0,{tenth})", "debug=tiny"],
    ["experiment=knockout", "seed=range(0,{tenth})"],
    ["judge=glob(sim-f*)", "seed=range(0,{tenth})", "shadow=[sim-fair],[]"],
    ["judge=sim-verbose", "~judge.simulated.doses.length", "++judge.simulated.doses.bold=0.1,0.2"],
    ["reward=judge,rule", "judge.grading.options.clip=zero,none", "study=${{judge.name}}-${{seed}}",
     "+judge.endpoint.extra_body={{top_k:20}}", "seed=range(0,{tenth})"],
    ["experiment=mixed-quickstart", "policy=tiny", "debug=tiny", "seed=range(0,{tenth})"],
)  # fmt: skip


def laid(arguments: list[str]) -> list[object]:
    """What makes up each cell of a command line."""
    return [(cell.data, cell.config, cell.id, cell.folder) for cell in cells_of(arguments)]


def planned(*arguments: str) -> float:
    """CPU seconds of a whole plan."""
    with tempfile.TemporaryDirectory() as runs:
        return spent("-m", "experiments.sweep", "plan=true", *arguments, f"runs_dir={runs}")


def main() -> None:
    sizes = read_sizes(cells=20, raced=100, planned=500)
    os.environ.setdefault("COLUMNS", "120")
    numbers = {"fifth": max(1, sizes["cells"] // 5), "tenth": max(1, sizes["cells"] // 10)}
    count = 0
    for line in LINES:
        typed = [text.format(**numbers) for text in line]
        ours, hydras = laid(typed), laid(["--multirun", *typed])
        assert ours == hydras, f"{' '.join(typed)}: not the cells of Hydra's multirun"
        count += len(ours)
    print(f"{count} cells of {len(LINES)} command lines are those of Hydra's multirun")
    typed = [JUDGES, f"seed=range(0,{max(1, sizes['raced'] // 5)})"]
    peers = {f"{len(laid(typed))} cells by Hydra": lambda: laid(["--multirun", *typed])}
    race(lambda: laid(typed), peers, rounds=2, repeats=1, clock=time.process_time)
    fifth, tenth = (max(1, sizes["planned"] // share) for share in (5, 10))
    factors = "factors=[judge,seed,trainer.learning_rate]"
    rates = [RATES, "judge=sim-fair", f"seed=range(0,{tenth})", factors, "study=rates"]
    print(f"import hydra, yaml: {spent('-c', 'import hydra, yaml'):.2f} s of CPU")
    for name, words in (
        ("9 cells", []),
        (f"5 judges x {fifth} seeds", [JUDGES, f"seed=range(0,{fifth})"]),
        (f"10 learning rates x {tenth} seeds", rates),
    ):
        print(f"plan=true of {name}: {planned(*words):.1f} s of CPU")


if __name__ == "__main__":
    main()
