"""A rubric in requests of at most k criteria, in the order of the rubric."""

from __future__ import annotations

from judges.grading.rubric import Rubric
from study.errors import UserError


class RubricChunk(Rubric):
    """See ``Rubric`` for the options; besides, ``k`` (10), the most criteria of a request.

    Raises:
        UserError: as ``Rubric``, or k is no whole number above 0.
    """

    name = "rubric_chunk"
    option_names = (*Rubric.option_names, "k")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise UserError(
                f"judge.grading.options.k={self.k!r} is no number of criteria per request; give a"
                " whole number from 1, for example +judge.grading.options.k=10."
            )

    @property
    def k(self) -> int:
        """The most criteria of one request."""
        return self.options.get("k", 10)

    def chunks(self, count: int) -> list[tuple[int, ...]]:
        """Chunks of k; the last has what is left."""
        return [
            tuple(range(start, min(start + self.k, count))) for start in range(0, count, self.k)
        ]
