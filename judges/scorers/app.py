"""A scorer as an application that speaks OpenAI's protocol, as simulated judges do.

It gets the messages of any grading, and puts its score in the form that is asked for: a number, a
word for .5 and more, a label of each criterion that is met with this probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from judges.scorers.table import check_scorer, score
from judges.simulated.app import simulated_app
from judges.simulated.bias import Bias
from judges.simulated.protocol import Simulated, generator, tokens
from judges.simulated.reply_format import Message, Unanswerable, judged, read_question
from judges.simulated.truths import Single
from study.config.schema import Judge, Scorer
from study.config.schema import Simulated as Settings
from study.rows import Truth, prompt_id
from study.truth.oracle import Oracle

UNDEFINED = "There is no score: it is undefined for this text."
FAIR = Bias(Settings())
"""What says a score as it is."""


def computed_app(judge: Judge, oracle: Any, calls_before: int = 0) -> Starlette:
    """The application of a judge that is computed; ``oracle`` is needed where the judge
    ``needs_rows``, and ``calls_before`` are as for `judges.simulated.app.simulated_app`.
    Raises UserError: the judge is none, or a setting is not legal."""
    if judge.scorer is None:
        return simulated_app(judge, oracle, calls_before)
    return ScorerJudge(judge.endpoint.model or judge.name, judge.scorer, oracle).app()


class ScorerJudge(Simulated):
    """One scorer, and whom it asks for references."""

    def __init__(self, model: str, scorer: Scorer, oracle: Oracle | Single | None) -> None:
        super().__init__(model)
        check_scorer(scorer)
        self._scorer, self._oracle = scorer, oracle
        score(scorer, "word", "word")  # loads its library, before anybody waits

    async def reply(self, body: Mapping[str, object], request: Request) -> Response:
        """The score in the form asked for, or words without a grade where it is undefined."""
        question = read_question(body)
        reference = self._reference(question.prompt)
        scores = [score(self._scorer, answer, reference) for answer in question.answers]
        truths = [Truth(each) for each in scores if each is not None]
        message = Message(UNDEFINED)
        if len(truths) == len(scores):
            draw = generator(0, question.content, 0)
            message, _ = judged(FAIR, question, truths, draw, 0)
        prompt, completion = tokens(question.characters), tokens(len(message.text))
        return self.respond(body, message, prompt, completion, question.content.hex())

    def _reference(self, prompt: str) -> str:
        """What answers to a prompt are compared with; empty where the row has none.
        Raises Unanswerable: no row has this prompt."""
        if not self._scorer.reference:
            return ""
        oracle = self._oracle
        if not isinstance(oracle, Oracle) or (row := oracle.row_of(prompt_id(prompt))) is None:
            raise Unanswerable(404, "No task row has this prompt.", "unknown_prompt")
        return (row.reference if self._scorer.reference == "row" else oracle.teacher(row)) or ""
