"""What to do next about a study: one or two commands that can be typed as they stand, chosen from
what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path

from analysis.display.markup import render_text
from analysis.records.runs import Run
from analysis.report.evidence import Evidence
from analysis.report.study_command import StudyCommand, command_of, steps_of
from study.command_names import study_words
from study.config.compose import preset_names

FEWEST_STEPS = 8
"""Steps below which a study is a smoke test."""
FEW_SEEDS, SEEDS = 3, 6
"""Seeds that a study has at least; from six on an exact test can reach p < .05."""
MOST = 2
"""Commands that are offered."""
STEPS = 40
"""Of a study whose experiment has too few."""
ADDS_DOSE = ("likert", "soft_choice", "rubric_batch", "rubric_chunk", "rubric_item")
"""Gradings under which a simulated judge's dose can be taken out of its score."""
_say = partial(render_text, "next")


@dataclass(frozen=True)
class NextStep:
    """One thing to do: why, and what to type."""

    why: str
    command: str


def choose(evidence: Evidence, harmed: tuple[str, str] | None) -> list[NextStep]:
    """At most `MOST` steps.

    Args:
        harmed: an arm and its behaviour that went with harm; None where none is told.
    """
    return list(islice(_steps(evidence, harmed), MOST)) if evidence.runs else []


def _steps(evidence: Evidence, harmed: tuple[str, str] | None) -> Iterator[NextStep]:
    runs, name, where = evidence.runs, evidence.name, _runs_dir(evidence)
    seeds = sorted({run.seed for run in runs})
    study = command_of(runs)
    if study is not None:
        if max(len(run.steps) for run in runs) < FEWEST_STEPS:
            yield NextStep(_say("longer"), _longer(study, seeds, f"{name}-whole", where))
            return
        if len(evidence.arms) == 1 and (judges := _with_baseline(study, runs[0])):
            words = [_seeds(seeds, len(seeds)), "factors=[judge,seed]"]
            command = study.typed(words, judges)
            yield NextStep(_say("baseline"), f"{command} {study_words(f'{name}-compared', where)}")
        acted = evidence.knockouts or evidence.interventions
        if len(seeds) >= FEW_SEEDS and harmed and study.key and not acted:
            yield _against(evidence, study, *harmed)
        most = next((each for each in (FEW_SEEDS, SEEDS) if len(seeds) < each), 2 * len(seeds))
        why = {FEW_SEEDS: "few_seeds", SEEDS: "more_seeds"}.get(most, "still_more")
        if evidence.look.looks:
            most, why = evidence.look.next or 0, "next_look"
        if most:
            command = study.typed([_seeds(seeds, most)])
            yield NextStep(_say(why, n=most), f"{command} {study_words(name, where)}")
    if judge := _other_judge(evidence):
        command = f"python -m judges.replay {study_words(name, where)} judge={judge}"
        yield NextStep(_say("replay", judge=judge), command)


def _longer(study: StudyCommand, seeds: Sequence[int], name: str, where: str) -> str:
    """The study with the steps of its experiment, and seeds enough for an interval."""
    shared = tuple(word for word in study.shared if not word.startswith("trainer."))
    whole = StudyCommand(study.experiment, shared, study.key, study.values)
    enough = steps_of(study.experiment, shared) >= FEWEST_STEPS
    words = [*([] if enough else [f"trainer.steps={STEPS}"]), _seeds(seeds, FEW_SEEDS)]
    return f"{whole.typed(words)} {study_words(name, where)}"


def _against(evidence: Evidence, study: StudyCommand, arm: str, behaviour: str) -> NextStep:
    """A knock-out of what a simulated judge pays for a behaviour; of another judge, scores that do
    not go with it."""
    runs = [run for run in evidence.runs if run.arm == arm]
    grading, doses = runs[0].config.get("judge.grading.name"), runs[0].doses or {}
    is_dosed = bool(doses.get(behaviour)) and grading in ADDS_DOSE
    kind = "knockout" if is_dosed else "intervention"
    seeds = sorted({run.seed for run in runs})
    words = [
        f"correction.{'without' if is_dosed else 'debias'}=[],[{behaviour}]",
        _seeds(seeds, len(seeds)),
        "factors=[judge,correction,seed]",
    ]
    command = study.typed(words, [study.values[arm]])
    where = study_words(f"{evidence.name}-{kind}", _runs_dir(evidence))
    return NextStep(_say(kind, arm=arm, behaviour=behaviour), f"{command} {where}")


def _seeds(seeds: Sequence[int], most: int) -> str:
    """The seeds, and new ones up to so many."""
    new = (seed for seed in count() if seed not in seeds)
    return f"seed={','.join(map(str, [*seeds, *islice(new, max(0, most - len(seeds)))]))}"


def _runs_dir(evidence: Evidence) -> str:
    folder = evidence.records.folder.parent
    return "runs" if folder == Path("runs").absolute() else str(folder)


def _with_baseline(study: StudyCommand, run: Run) -> list[str]:
    """The judge of a study of one arm beside the one whose score is the truth; nothing where there
    is no truth, or it is that one."""
    has_truth = bool((run.truth == run.truth).any())
    is_other = run.acting != "sim-fair" and study.key == "judge"
    return ["sim-fair", run.acting] if has_truth and is_other else []


def _other_judge(evidence: Evidence) -> str:
    """A judge of the study that did not score the other arms' answers; empty where others did, or
    there is one judge."""
    if any(run.shadows for run in evidence.runs):
        return ""
    base = [run.acting for run in evidence.runs if run.arm == evidence.base]
    name = base[0] if base and len({run.acting for run in evidence.runs}) > 1 else ""
    return name if name in preset_names("judge") else ""
