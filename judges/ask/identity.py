"""What makes two judges the same: a hash over all that can change a verdict. That of a request
(`asker.request_keys`) takes the settings of a model that is computed from here.

Where a judge runs (URL, key, time limits, concurrency) and what it costs are not part of it: the
same model on another host is the same judge, and finds the replies that are already stored.
"""

from __future__ import annotations

import dataclasses
import functools
import operator

from judges.ask.replies import content_key
from judges.endpoint.dialects import dialect_name
from judges.grading import GRADINGS
from judges.grading.base import AnswerGrading, GroupGrading
from judges.scorers.table import check_scorer, scorer_identity
from judges.simulated.bias import effective
from study.config import bounds
from study.config.marks import JUDGE_ID, marked_keys
from study.config.schema import Judge, Model, freeze
from study.config.simulated_executor import SimulatedExecutor
from study.errors import UserError
from study.system.secrets import refuse_config

SCHEMA = 1
"""Part of both hashes: raised when their meaning changes, so that old ones no longer match."""


def build_grading(judge: Judge) -> AnswerGrading | GroupGrading:
    """The grading that ``judge.grading`` names, with its options.
    Raises UserError: there is no such grading."""
    make = bounds.pick("judge.grading.name", judge.grading.name, GRADINGS, "likert")
    return make(judge.grading.options)


def judge_id(judge: Judge) -> str:
    """16 hex digits over the fields of a judge that carry the mark `study.config.marks.judge_id`.

    They stand under their last name. Three are taken as what they come to: the dialect that an
    empty one stands for, the grading with its prompt and its version, the doses of a simulated
    judge without those of 0. A scorer stands for ``simulated``.
    """
    grading = build_grading(judge)
    plain = dataclasses.asdict(judge)
    paths = [key.split(".") for key in marked_keys(type(judge), JUDGE_ID)]
    return content_key(
        {
            "schema": SCHEMA,
            **{
                path[-1]: functools.reduce(operator.getitem, path, plain)
                for path in paths
                if path != ["scorer"]
            },
            "dialect": dialect_name(judge),
            "grading": {
                "name": grading.name,
                "version": grading.version,
                "prompt_sha": grading.prompt_sha,
                "options": judge.grading.options,
            },
            "simulated": computed_settings(judge),
        }
    )[:16]


def computed_settings(model: Model) -> dict[str, object] | None:
    """Of a model that is computed its settings are the weights; None for any other."""
    if isinstance(model, Judge) and model.scorer is not None:
        return scorer_identity(model.scorer)
    settings = model.simulated
    if isinstance(settings, SimulatedExecutor):
        return dataclasses.asdict(settings)
    return None if settings is None else effective(settings)


def check_settings(model: Model) -> None:
    """Refuse a model built in code with settings that no preset could have.
    Raises UserError: a value that is not legal, a key in it, or no address or model."""
    endpoint, role = model.endpoint, model.role
    plain = dataclasses.asdict(model)
    refuse_config(plain, role)
    freeze(type(model), plain)
    if isinstance(model, Judge) and model.scorer is not None:
        if model.simulated is not None:
            raise UserError(
                f"judge={model.name} has both `simulated` and `scorer` settings. Type"
                " judge.simulated=null or judge.scorer=null."
            )
        check_scorer(model.scorer)
    for field in ("url", "model"):
        if not model.computed and not getattr(endpoint, field):
            raise UserError(
                f"{role}.endpoint.{field} is empty, but {role}={model.name} needs it. Type for"
                f" example {role}.endpoint.url=http://127.0.0.1:8000/v1"
                f" {role}.endpoint.model=NAME_OF_THE_MODEL."
            )
