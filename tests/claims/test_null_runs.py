"""Studies of null runs share no run, and a difference in them is seen."""

import numpy as np

from analysis.records.runs import Run
from tests.analysis.conftest import made_run
from tests.claims.null_runs import false_findings, main, null_studies

STEPS, PROMPTS = 20, 8


def run_of(arm: str, seed: int, rise: float = 0.0) -> Run:
    """A run whose scores are noise, and rise in the last steps."""
    rng = np.random.default_rng([seed, *arm.encode()])
    score = rng.normal(0.5, 0.1, (STEPS * PROMPTS, 4))
    score[-2 * PROMPTS :] += rise
    step_P = np.repeat(np.arange(1, STEPS + 1), PROMPTS)
    return made_run(score, score, cell=f"{arm}-{seed}", arm=arm, seed=seed, step_P=step_P)


def test_no_run_is_in_two_studies_and_arms_of_one_are_paired() -> None:
    runs = [run_of(arm, seed) for arm in "abcdefg" for seed in range(7)]
    studies = list(null_studies(runs, 3))
    cells = [run.cell for study in studies for run in study]
    assert len(studies) == 4 and len(cells) == len({*cells}) == 36
    for study in studies:
        pairs = {(run.arm, run.seed) for run in study}
        assert len(pairs) == 9 and len({seed for _, seed in pairs}) == 3


def test_arms_that_differ_are_told_apart_and_others_hardly() -> None:
    seeds = range(6)
    nothing = [run_of(f"arm-{k}", seed) for k in range(3) for seed in seeds]
    assert false_findings(nothing) == (0.0, False)
    risen = [run_of("arm-1", seed, rise=0.3) for seed in seeds]
    share, is_finding = false_findings([run for run in nothing if run.arm != "arm-1"] + risen)
    assert 0 < share <= 0.5 and is_finding


def test_too_few_runs_are_said(small_study, capsys) -> None:
    assert main([f"study={small_study.name}", f"runs_dir={small_study.parent}"]) == 0
    assert "4 trained runs\n3 seeds: no study" in capsys.readouterr().out
