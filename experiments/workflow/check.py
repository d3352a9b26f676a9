"""Refuses a world of programs that cannot work, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.policies.load import same_model
from experiments.policies.tokens import by_rule
from experiments.trainer.processes import processes_of
from experiments.workflow.problem import problem_of
from experiments.workflow.prompt import Prompter, offered
from judges.ask.identity import build_grading, check_settings
from judges.grading.base import GroupGrading
from study.config.compose import preset_names
from study.config.schema import Model, Study
from study.errors import UserError
from study.finding import Finding, problem
from study.programs.rewards import FORMULAS
from study.rows import Row
from study.tasks import kind_of

PLANTED = "workflow-mini"
"""The task that a simulated executor knows."""
SAMPLE = 64
"""Rows whose prompts are made."""


def check_world(config: Study, rows: Sequence[Row]) -> Iterator[Finding]:
    """Refuse a world, a reward, an executor, judges and a task that do not go together."""
    programs = config.world == "workflow"
    pays_programs = config.reward.name in FORMULAS
    if programs != pays_programs:
        instead = (
            f"world=workflow needs a reward of programs. Type reward={next(iter(FORMULAS))}, or"
            f" one of {', '.join(FORMULAS)}"
            if programs
            else f"reward={config.reward.name} is a reward of programs. Add world=workflow"
            " executor=NAME, or type another reward, such as reward=judge"
        )
        yield problem("world", f"world={config.world} reward={config.reward.name}: {instead}.")
    if not programs:
        return
    yield from check_executor(config)
    for judge in (config.judge, *config.shadow_judges):
        if isinstance(build_grading(judge), GroupGrading):
            yield problem(
                "judges",
                f"judge.grading.name={judge.grading.name} of judge={judge.name} compares the"
                " answers of a group, but programs may leave some without an answer. Type"
                " judge.grading.name=likert or judge.grading.name=binary",
            )
    if processes_of(config).count > 1:
        yield problem(
            "world",
            "world=workflow executes programs in one process per cell, but sweep.accelerate="
            f"{config.sweep.accelerate} trains a cell in several. Leave sweep.accelerate out.",
        )
    if config.reward.rules != "ignore":
        yield problem(
            "world",
            f"reward.rules={config.reward.rules} runs the rules of rows on answers, which a reward"
            " of programs does not use. Type reward.rules=ignore.",
        )
    if not kind_of(config.task).tells_truth(rows):
        yield problem(
            "world",
            f"world=workflow needs a task with rule truth, but task={config.task.name} has none:"
            " none of its rows has a reference answer. Type for example task=mixed"
            " task.path=FOLDER.",
        )
    if config.workflow.prompt == "layered":
        workflow = config.workflow
        prompter = Prompter(workflow.form, by_rule, offered(workflow), workflow.blocks)
        for row in rows[:: max(1, len(rows) // SAMPLE)][:SAMPLE]:
            try:
                prompter.prompt(problem_of(row), None, config.workflow.cap, 0)
            except UserError as error:
                yield problem("world", f"workflow.{error}")


def check_executor(config: Study) -> Iterator[Finding]:
    """Refuse no executor, one that cannot work, or that does not know the task."""
    executor = config.executor
    if not executor.name:
        names = [name for name in preset_names("executor") if name != "none"]
        yield problem(
            "executor",
            "world=workflow needs an executor, the model that programs call. Type executor=NAME"
            f" with one of {', '.join(names)}.",
        )
    check_settings(executor)
    if executor.simulated is not None and config.task.name != PLANTED:
        yield problem(
            "executor",
            f"executor={executor.name} is simulated and knows the problems of task={PLANTED} only,"
            f" but task={config.task.name} is given. Type task={PLANTED}, or another executor.",
        )
    if config.allow_same_model:
        return
    for judge in (config.judge, *config.shadow_judges):
        judging, answering = _model_of(judge), _model_of(executor)
        if judging and answering and same_model(judging, answering):
            yield problem(
                "executor",
                f"judge={judge.name} and executor={executor.name} are one model ({judging}),"
                " which would judge its own answers. Choose another judge or executor; if that is"
                " what you study, type allow_same_model=true, which is recorded.",
            )


def _model_of(model: Model) -> str:
    """The model behind an endpoint, as far as the settings tell."""
    name = model.endpoint.extra_body.get("model") or model.serve.model or model.endpoint.model
    return "" if model.computed else str(name)
