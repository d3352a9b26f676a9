"""The gradings by name: what is asked of a judge and how its reply is read."""

from __future__ import annotations

from judges.grading.base import AnswerGrading, Grading, GroupGrading, OneRequest
from judges.grading.binary import Binary, Verif
from judges.grading.comparing import Listwise, Pairwise
from judges.grading.likert import Likert
from judges.grading.rubric import RubricBatch, RubricChunk, RubricItem
from judges.grading.soft_choice import SoftChoice

GRADINGS: dict[str, type[AnswerGrading] | type[GroupGrading]] = {
    "likert": Likert,
    "soft_choice": SoftChoice,
    "rubric_batch": RubricBatch,
    "rubric_chunk": RubricChunk,
    "rubric_item": RubricItem,
    "verif": Verif,
    "binary": Binary,
    "pairwise": Pairwise,
    "listwise": Listwise,
}

__all__ = ["GRADINGS", "AnswerGrading", "Grading", "GroupGrading", "OneRequest"]


def __dir__() -> list[str]:
    return [*__all__]
