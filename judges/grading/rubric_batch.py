"""All criteria of a rubric in one request: the cheapest, and one bad reply loses the most."""

from __future__ import annotations

from judges.grading.rubric import Rubric


class RubricBatch(Rubric):
    """See ``Rubric`` for the options."""

    name = "rubric_batch"

    def chunks(self, count: int) -> list[tuple[int, ...]]:
        """One chunk of all criteria."""
        return [tuple(range(count))]
