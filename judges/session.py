"""A judge, ready to be asked: synchronous for the trainer, concurrent towards the endpoint.

A session has its own event loop in a thread, looks into the store first, and answers with one
``Verdict`` per draw whatever happens out there: what could not be obtained is a typed outcome.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from judges.aggregate import Got, Part, cost, joined, read_part, shared
from judges.endpoint.client import Channel, EndpointRefused, Fault, Fetched, ask, list_models
from judges.endpoint.dialects import check_dialect, dialect_of, judge_body
from judges.endpoint.fields import one_line
from judges.endpoint.loop import Loop
from judges.endpoint.replicas import open_wire
from judges.endpoint.served import is_asked
from judges.grading.adapters import Bound, check_group, in_asks, is_group
from judges.grading.base import Ask, GroupGrading, Reading
from judges.identity import build_grading, judge_id, request_key
from judges.reading import Retry
from judges.simulated.app import simulated_app
from judges.singleflight import Desk
from judges.store import content_key
from study.errors import UserError
from study.secrets import refuse_secrets
from study.verdict import Outcome, Reply, Verdict

if TYPE_CHECKING:
    from judges.endpoint.transport import Asgi
    from judges.probes.allowance import Allowance
    from judges.store import Store
    from study.rows import Row, Truth
    from study.schema import Endpoint, Judge
    from study.verdict import Parsed

MANY_MODELS = 8
AT_ONCE = 200
"""Questions that are begun before replies get a turn again."""


@dataclass(frozen=True)
class _Question:
    """One request of one draw."""

    ask: Ask
    bound: Bound
    body: dict[str, Any]
    key: str
    index: int
    within_s: float | None = None


class Session:
    """Everything that one process needs to get verdicts of one judge.

    Args:
        judge: whom to ask, what and how.
        store: where replies are kept and found; None asks anew each time.
        oracle: (prompt text, answer) -> truth; what a simulated judge knows.
        calls_before: calls that a simulated judge has answered in earlier processes of this run.
        allowance: what may be spent; without one nothing is held back.

    Raises:
        UserError: the judge's settings cannot work.
    """

    def __init__(
        self,
        judge: Judge,
        store: Store | None,
        oracle: Callable[[str, str], Truth | None] | None = None,
        calls_before: int = 0,
        allowance: Allowance | None = None,
    ) -> None:
        _check_settings(judge)
        self.judge = judge
        self.judge_id = judge_id(judge)
        self.hits = 0
        """Draws found in the store, or already in flight for somebody else."""
        # what a drifting judge says depends on when it is asked: the store cannot know it again
        drifts = judge.simulated is not None and judge.simulated.drift_per_1000 != 0.0
        self._store = None if drifts else store
        self._allowance = allowance
        self._grading = build_grading(judge)
        check_dialect(judge, _carried(self._grading))
        self._app = _simulated(judge, oracle, calls_before)
        open_wire(judge.endpoint, self._app)  # an address that cannot work is refused now
        name = judge.endpoint.api_key_env
        self._key = os.environ.get(name, "").strip() if name else ""
        self._channel: Channel | None = None
        self._desk: Desk | None = None
        self._flights: dict[str, asyncio.Task[Got]] = {}
        self._loop = Loop(self._open, self._shut)

    @property
    def calls(self) -> int:
        """Requests for verdicts that this session has sent, failed ones too; not the preflight."""
        return self._channel.calls if self._channel is not None else 0

    def stop_if_refused(self) -> None:
        """Whether it makes sense to ask on, after some verdicts were asked for.

        Raises:
            EndpointRefused: the endpoint serves this judge nothing at all, and one paragraph says
                why. A single question that it refuses does not count.
        """
        refusal = self._channel.refused if self._channel is not None else None
        if refusal is None:
            return
        endpoint, name = self.judge.endpoint, self.judge.endpoint.api_key_env
        key = f"the key in the environment variable {name}" if name else "a request without a key"
        raise EndpointRefused(
            *refusal.parts,
            f"The endpoint {endpoint.url} of judge {self.judge.name or endpoint.model!r} refuses "
            f"every request ({refusal}): no later verdict would fare better. It was sent {key}, "
            f"and asked for judge.endpoint.model={endpoint.model!r}. Mend the key, its account or "
            "the model's name, see with `python -m judges.check judge="
            f"{self.judge.name}`, and run the same command again: it goes on where it stopped.",
        )

    def verdicts(self, items: Sequence[tuple[Row, str]]) -> list[list[Verdict]]:
        """Judge each (row, answer), ``sampling.votes`` times; order is kept.

        What a reply leaves out is asked for once more, by itself. Never raises for what a judge
        or its endpoint does.

        Raises:
            UserError: the grading compares the answers of a group.
        """
        if is_group(self._grading):
            raise UserError(
                f"judge.grading.name={self._grading.name} compares the answers of a group with each"
                " other, and here each answer is judged by itself. Choose another grading, for"
                " example judge.grading.name=likert."
            )
        grading = in_asks(self._grading)
        votes = range(self.judge.sampling.votes)
        asked = [grading.asks(row, answer) for row, answer in items for _ in votes]
        drawn = [(row, answer, index) for row, answer in items for index in votes]
        questions = [
            [self._question(grading, ask, index) for ask in asks]
            for asks, (_, _, index) in zip(asked, drawn, strict=True)
        ]
        first = self._parts(questions)
        follow = [
            [
                self._question(grading, narrow, index, self._left(part))
                for part in parts
                if (narrow := self._narrow(row, answer, part)) is not None
            ]
            for parts, (row, answer, index) in zip(first, drawn, strict=True)
        ]
        second = self._parts(follow)
        found = []
        for number, (row, _, index) in enumerate(drawn):
            parts = first[number] + second[number]
            parsed = grading.combine(row, [(part.ask, part.parsed) for part in parts])
            found.append(self._verdict(questions[number], index, parsed, joined(parts)))
        return [found[start : start + len(votes)] for start in range(0, len(found), len(votes))]

    @property
    def compares(self) -> bool:
        """Whether the grading judges the answers of a group against each other."""
        return is_group(self._grading)

    def group_verdicts(self, row: Row, answers: Sequence[str], index: int = 0) -> list[Verdict]:
        """Judge the G answers to one prompt against each other; draw ``index`` of the votes.

        Raises:
            UserError: the grading judges single answers, or there is only one answer.
        """
        grading = self._comparing()
        check_group(grading.name, len(answers))
        asks = grading.group_asks(row, answers)
        questions = [self._question(grading, ask, index) for ask in asks]
        (parts,) = self._parts([questions])
        found = grading.group_combine(row, answers, [(part.ask, part.parsed) for part in parts])
        return [
            self._verdict(
                [question for question in questions if member in question.ask.members],
                index,
                parsed,
                shared(parts, member),
            )
            for member, parsed in enumerate(found)
        ]

    def ask_verdicts(
        self, groups: Sequence[tuple[Row, Sequence[str]]], index: int = 0
    ) -> list[list[Verdict]]:
        """One verdict on every request about each (row, answers), as the grading orders them.

        For ``pairwise`` and two answers: as given, then swapped; a score says how far the answer
        shown first is preferred.

        Raises:
            UserError: the grading judges single answers.
        """
        grading = self._comparing()
        questions = [
            [self._question(grading, ask, index) for ask in grading.group_asks(row, answers)]
            for row, answers in groups
        ]
        return [
            [
                self._verdict([question], index, part.parsed, joined([part]))
                for question, part in zip(own, parts, strict=True)
            ]
            for own, parts in zip(questions, self._parts(questions), strict=True)
        ]

    def replies(self, asked: Sequence[tuple[Reading, Ask]]) -> list[Part]:
        """The replies to requests of other gradings than the judge's own."""
        (parts,) = self._parts([[self._question(grading, ask, 0) for grading, ask in asked]])
        return parts

    def _comparing(self) -> GroupGrading:
        if not is_group(self._grading):
            raise UserError(
                f"judge.grading.name={self._grading.name} judges each answer by itself and cannot"
                " compare a group; choose judge.grading.name=pairwise or listwise."
            )
        return self._grading

    def check(self) -> None:
        """Find out before any training whether this judge can be asked.

        Raises:
            UserError: the key variable is missing, the endpoint does not answer or does not
                accept the key, or it serves other models.
        """
        endpoint = self.judge.endpoint
        name = endpoint.api_key_env
        if name and not self._key:
            raise UserError(
                f"Judge {self.judge.name or endpoint.model!r} needs its API key in the environment "
                f"variable {name}, which is not set. Type `export {name}=...` with the key, and "
                "start again; the key is never written anywhere."
            )
        try:
            served = self._loop.run(self._list_models())
        except EndpointRefused as refusal:
            key = f"the key in the environment variable {name}" if name else "a request without key"
            raise EndpointRefused(
                *refusal.parts,
                f"The judge's endpoint {endpoint.url} does not accept {key} ({refusal}). Check "
                "the key, its account and judge.endpoint.url, or set judge.endpoint.api_key_env "
                "to the name of the variable that holds the right key.",
            ) from None
        except (Fault, TimeoutError) as error:
            start = (
                f"Start it with `{endpoint.start_command}`"
                if endpoint.start_command
                else "Start it (judge.endpoint.start_command can hold the command)"
            )
            why = str(error) or f"nothing within {endpoint.deadline_s:g} s"
            raise UserError(
                f"The judge's endpoint {endpoint.url} does not answer ({why}). {start}, or point "
                "judge.endpoint.url to where it runs."
            ) from None
        wanted = endpoint.model or (self.judge.name if self.judge.simulated is not None else "")
        binding = dialect_of(self.judge).lists_models
        if binding and served is not None and wanted not in served:
            more = f" and {len(served) - MANY_MODELS} more" if len(served) > MANY_MODELS else ""
            names = ", ".join(served[:MANY_MODELS]) or "no model at all"
            raise UserError(
                f"The judge's endpoint {endpoint.url} does not serve judge.endpoint.model="
                f"{wanted!r}; it serves {names}{more}. Set judge.endpoint.model to one of "
                "these."
            )

    def close(self) -> None:
        """Give up what is in flight (its verdicts are ``aborted``) and close every connection."""
        self._loop.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _open(self) -> None:
        endpoint = self.judge.endpoint
        folder = None if self._store is None else self._store.path.parent / ".limits"
        self._channel = Channel(endpoint, open_wire(endpoint, self._app), self._key, folder)
        self._desk = Desk(self._store, accept=self._accepted) if self._store is not None else None

    def _accepted(self, value: dict[str, Any]) -> bool:
        """Whether the stored replies are of this judge's model; another's are asked for anew."""
        endpoint = self.judge.endpoint
        asked = str(endpoint.extra_body.get("model") or endpoint.model)
        return all(
            is_asked(asked, reply.get("model", ""), endpoint.served_as)
            for reply in value["replies"]
        )

    async def _shut(self) -> None:
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        if self._desk is not None:
            await self._desk.close()
        if self._channel is not None:
            await self._channel.wire.close()

    async def _list_models(self) -> list[str] | None:
        assert self._channel is not None
        return await list_models(self._channel)

    def _question(
        self, grading: Reading, ask: Ask, index: int, within_s: float | None = None
    ) -> _Question:
        bound = Bound(grading, ask)
        body = judge_body(self.judge, bound.body(), ask.messages, index)
        return _Question(ask, bound, body, request_key(self.judge, body, index), index, within_s)

    def _narrow(self, row: Row, answer: str, part: Part) -> Ask | None:
        """The follow-up of a part; none where a failure was planted, or no time is left."""
        if part.reply is None or self.judge.simulated is not None or self._left(part) <= 0:
            return None
        return in_asks(self._grading).narrow(row, answer, part.ask, part.parsed)

    def _left(self, part: Part) -> float:
        """Seconds of the deadline that a request has left for its follow-up."""
        used = 0.0 if part.got.from_cache else part.got.attempted.latency_s
        return self.judge.endpoint.deadline_s - used

    def _parts(self, questions: Sequence[Sequence[_Question]]) -> list[list[Part]]:
        """Obtain and read the replies to all questions at once, grouped as they were given."""
        got = iter(self._fetch([question for group in questions for question in group]))
        return [
            [read_part(question.bound.grading, question.ask, next(got)) for question in group]
            for group in questions
        ]

    def _fetch(self, questions: Sequence[_Question]) -> list[Got]:
        keys = list(dict.fromkeys(question.key for question in questions))
        stored = (
            self._store.get_many(keys, self._accepted) if self._store is not None and keys else {}
        )
        missing = [question for question in questions if question.key not in stored]
        self.hits += len(questions) - len(missing)
        fresh = iter(self._fresh(missing) if missing else [])
        return [
            _from_value(stored[question.key]) if question.key in stored else next(fresh)
            for question in questions
        ]

    def _fresh(self, missing: Sequence[_Question]) -> list[Got]:
        def send(wanted: Sequence[_Question]) -> list[Got]:
            return self._loop.run(self._obtain_all(wanted))

        if self._allowance is None:
            return send(missing)
        return self._allowance.spend(self.judge, missing, send)

    async def _obtain_all(self, wanted: Sequence[_Question]) -> list[Got]:
        waiters: list[Awaitable[Got]] = []
        for number, question in enumerate(wanted):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            key = question.key
            flight, first = self._flights.get(key), False
            if flight is None:
                first = True
                flight = asyncio.create_task(self._obtain(question))
                self._flights[key] = flight
                flight.add_done_callback(lambda _, key=key: self._flights.pop(key))
            waiters.append(self._join(flight, first))
        return list(await asyncio.gather(*waiters))

    async def _join(self, flight: asyncio.Task[Got], first: bool) -> Got:
        try:
            got = await asyncio.shield(flight)
        except asyncio.CancelledError:
            if not flight.cancelled():
                raise
            nothing = Fetched((), Outcome.aborted, "the session was closed", 0, 0.0)
            return Got(nothing, cost(self.judge, ()))
        if first:
            return got
        self.hits += 1
        return dataclasses.replace(got, from_cache=True, cost_usd=0.0)

    async def _obtain(self, question: _Question) -> Got:
        """One flight per key among all processes that share the store."""
        if self._desk is None:
            return await self._ask(question)
        landed = await self._desk.claim(question.key)
        if landed is not None:
            self.hits += 1
            return _from_value(landed.value)
        try:
            got = await self._ask(question)
        except BaseException:
            self._desk.give_up(question.key)
            raise
        mine = _to_value(got.attempted)
        if not got.attempted.replies or got.attempted.outcome is not None:
            self._desk.give_up(question.key, mine)
            return got
        winner = await self._desk.put(question.key, mine)
        if winner != mine:  # its lease had lapsed and another was first: that is the verdict
            return dataclasses.replace(_from_value(winner), cost_usd=got.cost_usd)
        return got

    async def _ask(self, question: _Question) -> Got:
        assert self._channel is not None
        retry = Retry(self.judge, question.body, question.bound.parse)
        try:
            attempted = await ask(self._channel, question.body, retry, question.within_s)
        except EndpointRefused as refusal:
            attempted = Fetched((), Outcome.endpoint_down, str(refusal), refusal.attempts, 0.0)
        return Got(attempted, cost(self.judge, attempted.replies))

    def _verdict(
        self,
        questions: Sequence[_Question],
        index: int,
        parsed: Parsed,
        spent: dict[str, Any],
    ) -> Verdict:
        keys = [question.key for question in questions]
        return Verdict(
            judge_id=self.judge_id,
            judge=self.judge.name,
            revision=self.judge.revision,
            grading=self._grading.name,
            grading_version=self._grading.version,
            prompt_sha=self._grading.prompt_sha,
            sample_index=index,
            outcome=parsed.outcome,
            labels=parsed.labels,
            score=parsed.score,
            reason=one_line(parsed.reason),
            key=keys[0] if len(keys) == 1 else content_key(keys),
            **spent,
        )


def _simulated(judge: Judge, oracle: Any, calls_before: int) -> Asgi | None:
    if not judge.endpoint.url.startswith("asgi:") or judge.simulated is None:
        return None

    return simulated_app(judge, oracle, calls_before)


def _carried(grading: Any) -> dict[str, Any]:
    """What a request of this grading carries beside messages and sampling."""
    reading = grading if is_group(grading) else in_asks(grading)
    return reading.body(Ask((), criteria=(0,), members=(0, 1)))


def _check_settings(judge: Judge) -> None:
    endpoint: Endpoint = judge.endpoint
    refuse_secrets(
        [
            ("judge.endpoint.url", endpoint.url),
            ("judge.endpoint.api_key_env", endpoint.api_key_env or ""),
            ("judge.endpoint.extra_body", str(endpoint.extra_body)),
            ("judge.endpoint.start_command", endpoint.start_command),
            ("judge.endpoint.replicas", " ".join(endpoint.replicas)),
        ]
    )
    for lacking in ("url", "model"):
        if judge.simulated is None and not getattr(endpoint, lacking):
            raise UserError(
                f"judge.endpoint.{lacking} is empty, and judge={judge.name} cannot be asked "
                "without it. Type for example judge.endpoint.url=http://127.0.0.1:8000/v1 "
                "judge.endpoint.model=NAME_OF_THE_MODEL."
            )
    least = {
        "judge.endpoint.max_concurrency": (endpoint.max_concurrency, 1),
        "judge.endpoint.attempts": (endpoint.attempts, 1),
        "judge.sampling.votes": (judge.sampling.votes, 1),
        "judge.endpoint.deadline_s": (endpoint.deadline_s, 0.001),
        "judge.endpoint.idle_timeout_s": (endpoint.idle_timeout_s, 0.001),
        "judge.endpoint.connect_timeout_s": (endpoint.connect_timeout_s, 0.001),
    }
    for name, (value, legal) in least.items():
        if not value >= legal:
            raise UserError(f"{name}={value} asks for nothing; give {legal} or more.")


def _from_value(value: dict[str, Any]) -> Got:
    replies = tuple(Reply(**reply) for reply in value["replies"])
    outcome = Outcome(value["outcome"]) if "outcome" in value else None
    reason = value.get("reason", "")
    attempted = Fetched(
        *(replies, outcome, reason, value["attempts"], value["latency_s"], value.get("served", ""))
    )
    return Got(attempted, 0.0, from_cache=True)


def _to_value(attempted: Fetched) -> dict[str, Any]:
    value = {
        "replies": [dataclasses.asdict(reply) for reply in attempted.replies],
        "attempts": attempted.attempts,
        "latency_s": round(attempted.latency_s, 4),
    }
    if attempted.outcome is not None:  # never stored, but told to those who wait for it
        value |= {"outcome": attempted.outcome.value, "reason": attempted.reason}
        value |= {"served": attempted.served}
    return value


def judge_all(
    session: Session, items: Sequence[tuple[Row, str]], group_size: int
) -> list[list[Verdict]]:
    """Verdicts of P * G items in group order, ``sampling.votes`` for each.

    A grading that compares is asked group by group: each answer against its own group.

    Raises:
        EndpointRefused: the judge's key, account or model is refused; asking on makes no sense.
    """
    if not session.compares:
        found = session.verdicts(items)
        session.stop_if_refused()
        return found
    votes_N: list[list[Verdict]] = []
    for start in range(0, len(items), group_size):
        row, answers = items[start][0], [answer for _, answer in items[start : start + group_size]]
        draws = [
            session.group_verdicts(row, answers, index)
            for index in range(session.judge.sampling.votes)
        ]
        session.stop_if_refused()
        votes_N += [list(votes) for votes in zip(*draws, strict=True)]
    return votes_N
