"""Vectors of problems by a model at an endpoint, asked as judges are and kept in their store.

    with Embeddings(config.workflow.buffer.embedder, store) as vectors:
        a, b = vectors(["How many primes are there below 100?", "Count the primes up to 99."])
        a @ b  # their cosine

A text whose vector could not be had has none: words do not stand in for it, and it is not asked
for again in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np

from judges.ask.asker import Asker
from judges.ask.identity import check_settings
from judges.endpoint.client import ask
from judges.endpoint.embeddings import embedding_body, vector_of
from judges.endpoint.keys import check_key
from judges.endpoint.loop import Loop, gather
from study.errors import UserError
from study.screen import one_line

if TYPE_CHECKING:
    from judges.ask.replies import Store
    from study.config.schema import Embedder

MOST_LOST = 8
"""Texts in a row without a vector, which are not about single texts any more."""


class Embeddings:
    """`experience.Vectors` of one embedder; use it as a context.
    Raises UserError: the settings cannot work, or the variable of the key is not set."""

    def __init__(self, embedder: Embedder, store: Store | None) -> None:
        check_settings(embedder)
        check_key(embedder.endpoint, f"The embedder {embedder.endpoint.model!r}")
        self.embedder = embedder
        self.lost: dict[str, str] = {}
        """Text without a vector -> why."""
        self._known: dict[str, np.ndarray] = {}
        self._in_a_row = 0
        self._asker = Asker(embedder, store)
        self._loop = Loop(self._asker.close)

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """A vector of length 1 for each text, None where it could not be had.
        Raises UserError: the embedder is down or refuses, or its vectors are of two sizes."""
        new = [
            text
            for text in dict.fromkeys(texts)
            if text not in self._known and text not in self.lost
        ]
        if new:
            self._loop.run(self._obtain(new))
        return [self._known.get(text) for text in texts]

    async def _obtain(self, texts: Sequence[str]) -> None:
        await gather(partial(self._one, text) for text in texts)
        self._asker.stop_if_refused()

    async def _one(self, text: str) -> None:
        asker, model = self._asker, self.embedder
        body = embedding_body(model.endpoint, text)
        fetched = await asker.fetch(asker.key(body, 0), partial(ask, asker.channel, body))
        if fetched.outcome is not None or not fetched.replies:
            self.lost[text] = one_line(f"{fetched.outcome}: {fetched.reason}")
            self._in_a_row += 1
            asker.stop_if_refused()
            if self._in_a_row == MOST_LOST:
                raise UserError(
                    f"The embedder {model.endpoint.model!r} at {model.endpoint.url} gave no vector"
                    f" for {MOST_LOST} problems in a row ({self.lost[text]}). Restart it and rerun"
                    " the command to resume, or leave workflow.buffer.embedder out: words then say"
                    " which problems are alike."
                )
            return
        self._in_a_row = 0
        vector = np.array(vector_of(fetched.replies[-1]), dtype=float)
        size = len(next(iter(self._known.values()), vector))
        if len(vector) != size:
            raise UserError(
                f"The embedder {model.endpoint.model!r} at {model.endpoint.url} gives vectors of"
                f" {len(vector)} and of {size} numbers: another model has the same name there now."
                f" To ask it for all of them, type {model.role}.revision=NAME"
            )
        self._known[text] = vector / np.linalg.norm(vector)

    def close(self) -> None:
        """End what is in flight, and the connections."""
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
