"""A simulated judge as an ASGI application that speaks OpenAI's chat-completions protocol.

Like any judge it gets only the messages. It finds the task row by the prompt in them and asks its
own oracle for the rule truth, so the truth is never sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from judges.simulated import protocol
from judges.simulated.bias import Bias, check
from judges.simulated.protocol import generator, hang, tokens, truths_of
from judges.simulated.reply_format import Unanswerable, judged, read_question, spoil
from judges.simulated.truths import Single, Truths
from study.config.schema import Judge
from study.config.simulated import DOMAINS, in_domain
from study.errors import UserError
from study.truth.oracle import Oracle

TRANSIENT = {
    "http_500": (500, "The simulated judge failed on this request.", "internal_error"),
    "rate_limited": (429, "Too many requests to the simulated judge.", "rate_limited"),
}
"""Failures that are over when the same question is asked again, and what they answer."""


def simulated_app(judge: Judge, oracle: Oracle | Single, calls_before: int = 0) -> Starlette:
    """The application of one simulated judge; ``calls_before`` are questions answered before, for
    the drift of a resumed run.
    Raises UserError: the judge has no ``simulated`` settings, or one is not legal."""
    return SimulatedJudge(judge, oracle, calls_before).app()


class SimulatedJudge(protocol.Simulated):
    """What is remembered between questions: how many came, and how often each."""

    def __init__(self, judge: Judge, oracle: Oracle | Single, calls_before: int = 0) -> None:
        if judge.simulated is None:
            raise UserError(
                f"judge={judge.name} has no `simulated` settings, so it cannot be simulated. Type"
                " for example judge=sim-fair"
            )
        super().__init__(judge.endpoint.model or judge.name)
        check(judge.simulated)
        self._bias = {name: Bias(in_domain(judge.simulated, name)) for name in ("", *DOMAINS)}
        """By the domain of a row; "" is of any other row."""
        self._truths = Truths(oracle)
        self._calls = calls_before
        self._request_counts: Counter[bytes] = Counter()

    async def reply(self, body: Mapping[str, object], request: Request) -> Response:
        """The verdict, or the failure in its place."""
        question = read_question(body)
        row, rule_truths = await self._truths.of(question.prompt, question.answers)
        truths = truths_of(rule_truths)
        bias = self._bias.get(row.domain if row else "", self._bias[""])
        nth = self._request_counts[question.content]
        self._request_counts[question.content] += 1
        calls, self._calls = self._calls, self._calls + 1
        draw = generator(bias.seed, question.content, nth)
        verdict, failure = judged(bias, question, truths, draw, calls)
        if failure == "hang":
            return await hang(request)
        if failure in TRANSIENT and not nth:
            status, message, code = TRANSIENT[failure]
            raise Unanswerable(status, message, code)
        reply = spoil(failure, verdict)
        prompt, completion = tokens(question.characters), tokens(len(reply.text))
        return self.respond(body, reply, prompt, completion, f"{question.content.hex()}-{nth}")
