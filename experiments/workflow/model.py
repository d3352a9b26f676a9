"""The executor of a study: a model at an endpoint, asked as judges are and kept in their store."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from experiments.workflow.executor import ATTEMPTS, Answer, Down, Question
from judges.ask.asker import Asker
from judges.ask.identity import check_settings
from judges.ask.reading import cost_usd, total
from judges.endpoint.client import Fetched, ask
from judges.endpoint.dialects import Body, chat_body, dialect_of
from judges.simulated.operators import operators_app
from study.screen import one_line

if TYPE_CHECKING:
    from judges.ask.replies import Store
    from study.config.schema import Executor
    from study.truth.oracle import Oracle
    from study.verdict import Reply


APART = 1000
"""Between the samples of two draws: more than one run asks of the same question."""
WARM = 0.7
"""Temperature of further draws from an executor that is greedy, which would repeat itself."""


class ModelExecutor:
    """Answers questions by ``executor`` of a study. Lives in one event loop, where `close` ends it.

    A reply is kept under its body and the place of the question among equal ones of its run, so
    that a run that is repeated is told the same.
    Raises UserError: the settings cannot work.
    """

    def __init__(self, executor: Executor, store: Store | None, oracle: Oracle) -> None:
        check_settings(executor)
        self.settings, self.name = executor, executor.name
        self.draw = 0
        """Which of several draws of everything is asked for; training asks for the first."""
        self.price = executor.price
        if executor.simulated is None and not (self.price.input or self.price.output):
            self.price = None
        self.dialect = dialect_of(executor)
        thinks = self.dialect.thinking == "always" or bool(executor.sampling.thinking)
        self._thinks = thinks
        inside = None
        if executor.endpoint.url.startswith("asgi:") and executor.simulated is not None:
            model = executor.endpoint.model or executor.name
            inside = operators_app(executor.simulated, model, oracle)
        self.asker = Asker(executor, store, inside)

    async def ask(self, question: Question) -> Answer:
        """The reply, asked for again where it is empty. Raises Down: there is none."""
        sampling, most = self.settings.sampling, question.max_tokens
        # room to think is not the operator's to give
        most = sampling.max_tokens if self._thinks else min(most, sampling.max_tokens)
        sample, parameters = question.sample + APART * self.draw, dict(question.parameters)
        if self.draw and not parameters.get("temperature", sampling.temperature):
            parameters["temperature"] = WARM
        body = chat_body(
            self.settings.endpoint,
            dataclasses.replace(sampling, max_tokens=most),
            question.messages,
            sample,
            parameters,
            self.dialect,
        )
        key = self.asker.key(body, sample)
        fetched = await self.asker.fetch(key, partial(self._send, body))
        if fetched.outcome is not None or not fetched.replies:
            raise Down(one_line(f"{fetched.outcome}: {fetched.reason}"))
        replies = fetched.replies
        return Answer(
            replies[-1].text,
            total(replies, "tokens_in"),
            total(replies, "tokens_out"),
            0 if fetched.from_cache else fetched.attempts,
            0.0 if fetched.from_cache else fetched.cost_usd,
            key,
        )

    async def _send(self, body: Body) -> Fetched:
        fetched = await ask(self.asker.channel, body, _Again(body))
        cost = cost_usd(self.settings, fetched.replies)
        return dataclasses.replace(fetched, cost_usd=cost)

    async def close(self) -> None:
        """End what is in flight, and the connections."""
        await self.asker.close()


class _Again:
    """The next request after an empty reply: another draw, for the same one would be empty too."""

    def __init__(self, body: Body) -> None:
        self.body, self.empty = body, 0

    def __call__(self, reply: Reply) -> tuple[Body, str] | None:
        self.empty += not reply.text.strip()
        if reply.text.strip() or self.empty == ATTEMPTS:
            return None
        changed: Body = {"seed": (self.body.get("seed") or 0) + 1_000_003 * self.empty}
        return self.body | changed, f"again {self.empty}"
