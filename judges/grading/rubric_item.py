"""One request per criterion: no criterion colours another, at K times the requests."""

from __future__ import annotations

from judges.grading.rubric import Rubric


class RubricItem(Rubric):
    """See ``Rubric`` for the options."""

    name = "rubric_item"

    def chunks(self, count: int) -> list[tuple[int, ...]]:
        """A chunk per criterion."""
        return [(place,) for place in range(count)]
