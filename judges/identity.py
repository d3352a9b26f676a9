"""What makes two judges, or two requests, the same: hashes over all that can change a verdict.

Where a judge runs (URL, key, time limits, concurrency) and what it costs are not part of it: the
same model on another host is the same judge, and finds the replies that are already stored.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from judges.endpoint.dialects import dialect_name
from judges.grading import GRADINGS, AnswerGrading, GroupGrading
from judges.simulated.bias import effective
from judges.store import content_key
from study.errors import UserError

if TYPE_CHECKING:
    from study.schema import Judge

SCHEMA = 1
"""Part of both hashes: raised when their meaning changes, so that old ones no longer match."""


def build_grading(judge: Judge) -> AnswerGrading | GroupGrading:
    """The grading that ``judge.grading`` names, with its options.

    Raises:
        UserError: there is no such grading.
    """
    name = judge.grading.name
    if name not in GRADINGS:
        raise UserError(
            f"judge.grading.name={name!r} is not a grading. Legal are "
            f"{', '.join(sorted(GRADINGS))}; type for example judge.grading.name={min(GRADINGS)}."
        )
    return GRADINGS[name](judge.grading.options)


def judge_id(judge: Judge) -> str:
    """16 hex digits over the model, the grading with its prompt, the sampling and the bias."""
    grading = build_grading(judge)
    return content_key(
        {
            "schema": SCHEMA,
            "model": judge.endpoint.model,
            "revision": judge.revision,
            "extra_body": judge.endpoint.extra_body,
            "dialect": dialect_name(judge),
            "max_tokens_field": judge.endpoint.max_tokens_field,
            "grading": {
                "name": grading.name,
                "version": grading.version,
                "prompt_sha": grading.prompt_sha,
                "options": judge.grading.options,
            },
            "sampling": dataclasses.asdict(judge.sampling),
            "simulated": _simulated(judge),
        }
    )[:16]


def request_key(judge: Judge, body: dict[str, Any], sample_index: int) -> str:
    """The store key of one draw: a hash over the very body that would be sent, and the salt.

    The number of votes and the parser are left out: the first of three draws is the draw that a
    single vote makes, and reading a stored reply anew asks nobody.
    """
    return content_key(
        {
            "schema": SCHEMA,
            "revision": judge.revision,
            "body": body,
            "sample_index": sample_index,
            "salt": judge.sampling.salt,
            "simulated": _simulated(judge),
        }
    )


def _simulated(judge: Judge) -> dict[str, Any] | None:
    """Of a simulated judge its settings are the weights."""
    if judge.simulated is None:
        return None

    return effective(judge.simulated)
