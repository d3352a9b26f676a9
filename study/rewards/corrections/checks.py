"""Refuses corrections that make no sense, or that a cell cannot serve."""

from __future__ import annotations

from collections.abc import Iterable

from study.config import bounds
from study.config.schema import ByAudit, Study
from study.errors import UserError
from study.features import FEATURES, shared_keyword
from study.rewards.formulas import needs_judge

FEWEST_STEPS = 8
"""Of a run that an alarm may end: fewer say nothing of a gap."""


def check_correction(config: Study, has_truth: bool, domains: Iterable[str] = ("",)) -> None:
    """Refuse a correction that this cell cannot have; ``has_truth`` says whether a rule tells the
    truth of the task's answers, ``domains`` are those of its rows.
    Raises UserError: what was given, what is legal, what to type."""
    correction, reward = config.correction, config.reward
    if not correction.changes and not correction.stop and not correction.fit:
        return
    _check_features(config)
    if correction.fit and not correction.without:
        raise UserError(
            f"correction.fit={bounds.shown(correction.fit)} names the rollouts to fit a feature's"
            " bias on, but correction.without names no feature. Type for example"
            " correction.without=[length], or leave correction.fit out."
        )
    if correction.changes and not any(_judged(config, domain) for domain in domains):
        raise UserError(
            f"correction changes the judge's score, but reward={reward.name} uses no judge's score"
            " here. Type reward=judge, or leave correction out."
        )
    by_rule = [name for name in ("calibrate", "recheck", "stop") if getattr(correction, name)]
    if by_rule == ["stop"]:
        if not (has_truth or config.truth.audit):
            raise UserError(
                "correction.stop=true needs the truth of answers, but no rule gives it in"
                f" task={config.task.name}. Name judges that are asked for it about a share of the"
                " groups, for example truth.audit=[qwen3-32b] truth.share=0.1, or leave"
                " correction.stop out."
            )
    elif by_rule and not has_truth:
        value = str(getattr(correction, by_rule[0])).lower()
        raise UserError(
            f"correction.{by_rule[0]}={value} needs the rule truth of answers, but no rule gives"
            f" it in task={config.task.name}. Take a task with a truth, for example"
            f" task=instruct-mini, or leave correction.{by_rule[0]} out."
        )
    if correction.panel != "none" and not config.shadows:
        raise UserError(
            f"correction.panel={correction.panel} combines the acting judge with the shadow"
            " judges, but shadow names none. Type for example shadow=[sim-fair,sim-noisy]"
        )
    grading = config.judge.grading.name
    if correction.rubric_dropout and not grading.startswith("rubric_"):
        raise UserError(
            f"correction.rubric_dropout={correction.rubric_dropout:g} leaves criteria out, but"
            f" judge.grading.name={grading} labels no criteria. Type"
            " judge.grading.name=rubric_batch (or rubric_chunk, rubric_item)."
        )
    _check_sizes(config)


def check_audit(config: Study, has_rule: bool) -> None:
    """Refuse judges of ``truth.audit`` that would be asked nothing, or twice; ``has_rule`` says
    whether a rule tells the truth of every answer.
    Raises UserError: what was given, what is legal, what to type."""
    names, truth = config.truth.audit, config.truth
    typed = f"truth.audit=[{','.join(names)}]"
    if not names:
        if truth != ByAudit():
            raise UserError(
                f"truth.share={truth.share:g} truth.seed={truth.seed} say which groups are asked"
                " about, but truth.audit names no judge. Type for example truth.audit=[qwen3-32b],"
                " or leave both out."
            )
        return
    twice = sorted(name for name in {*names} if [*names, *config.shadow].count(name) > 1)
    if twice:
        raise UserError(
            f"{typed} shadow=[{','.join(config.shadow)}] names {twice[0]} twice. A judge is asked"
            " about every answer (shadow) or about the drawn groups (truth.audit): leave it out of"
            " one of them."
        )
    if has_rule:
        raise UserError(
            f"{typed} would be asked nothing: a rule gives the truth of every answer in"
            f" task={config.task.name}. Leave truth.audit out. To see how well a judge agrees with"
            f" the rule, type afterwards: judgedrift audit study={config.study} by={names[0]}"
            " rules=true"
        )


def _judged(config: Study, domain: str) -> bool:
    """Whether the reward of a row of this domain is made of a judge's score."""
    reward = config.reward
    weight = {"judge": 1.0 - reward.truth_weight, "hybrid": reward.weights.get("judge", 0.0)}
    return (
        reward.name != "rule"
        and weight.get(reward.name, 1.0) != 0.0
        and needs_judge(reward, domain)
    )


def _check_features(config: Study) -> None:
    correction, legal = config.correction, bounds.Choice(FEATURES)
    for key in ("without", "debias"):
        names = getattr(correction, key)
        for place, name in enumerate(names):
            bounds.check(f"correction.{key}.{place}", name, legal)
        if len(set(names)) < len(names):
            raise UserError(
                f"correction.{key}=[{','.join(names)}] names a feature twice. Type"
                f" correction.{key}=[{','.join(dict.fromkeys(names))}]"
            )
    for name in correction.penalty:
        bounds.check("a key of correction.penalty", name, legal)
    features = {*correction.without, *correction.debias, *correction.penalty}
    if "keyword" in features and not keyword_of(config):
        raise UserError(
            "correction names the feature keyword, but no judge of this cell has a keyword. Type"
            " for example judge=sim-keyword, or name another feature."
        )


def _check_sizes(config: Study) -> None:
    """Refuse labels that no run has, and an alarm for a run that is too short for one."""
    correction, trainer = config.correction, config.trainer
    most = trainer.steps * trainer.prompts_per_step * trainer.group_size
    if correction.calibrate > most:
        raise UserError(
            f"correction.calibrate={correction.calibrate} needs more labelled rollouts than the"
            f" {most} of a run with trainer.steps={trainer.steps}. Type at most"
            f" correction.calibrate={most}"
        )
    if correction.stop and (trainer.steps < FEWEST_STEPS or trainer.prompts_per_step < 2):
        raise UserError(
            f"correction.stop=true needs {FEWEST_STEPS} steps of two groups or more, but"
            f" trainer.steps={trainer.steps}, trainer.prompts_per_step={trainer.prompts_per_step}."
            f" Type trainer.steps={max(trainer.steps, FEWEST_STEPS)}"
            f" trainer.prompts_per_step={max(trainer.prompts_per_step, 2)}, or"
            " correction.stop=false"
        )


def keyword_of(config: Study) -> str:
    """The word that counts as a keyword: the acting judge's, else a shadow judge's."""
    own, *others = [
        judge.simulated.keyword if judge.simulated else ""
        for judge in (config.judge, *config.shadow_judges)
    ]
    return own or shared_keyword(others)
