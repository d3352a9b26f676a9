"""The gradings by name: what is asked of a judge and how its reply is read."""

from __future__ import annotations

from judges.grading.base import Grading
from judges.grading.likert import Likert
from judges.grading.soft_choice import SoftChoice

GRADINGS: dict[str, type[Likert] | type[SoftChoice]] = {
    "likert": Likert,
    "soft_choice": SoftChoice,
}

__all__ = ["GRADINGS", "Grading"]
