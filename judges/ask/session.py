"""Asks one judge for verdicts: about one answer with ``await``, or about many at once without.

    with Session(judge, store) as session:
        [[verdict]] = session.verdicts([(row, answer)])      # from a trainer, a notebook, a script
        verdict = await session.verdict(row, answer)         # from any event loop
        future = session.submit(items, group_size)           # begins, and waits for nothing

A session has its own event loop in a thread and looks into the store first. It gives one
``Verdict`` per draw; one that could not be obtained has an outcome that says why. Answers are
judged independently: repeats and follow-ups of one delay no other.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from judges.ask.asker import Asker
from judges.ask.identity import build_grading, check_settings, judge_id, request_keys
from judges.ask.reading import Retry, cost_usd, joined_fields, member_fields, read
from judges.ask.replies import content_key
from judges.endpoint.client import Fetched, ask
from judges.endpoint.dialects import check_dialect, judge_body
from judges.endpoint.loop import Loop, cancel, gather
from judges.grading.base import AnswerGrading, Grading, GroupGrading, check_group
from judges.grading.delimiters import escape_tokens
from judges.grading.special_tokens import special_tokens
from judges.simulated.app import simulated_app
from judges.simulated.bias import drifts
from study.errors import UserError
from study.screen import one_line
from study.verdict import Request, Verdict

if TYPE_CHECKING:
    from concurrent.futures import Future

    from judges.ask.allowance import Allowance
    from judges.ask.replies import Store
    from judges.endpoint.client import Body
    from judges.endpoint.transport import Asgi
    from study.config.schema import Judge
    from study.rows import Row, RuleTruth
    from study.verdict import Parsed

T = TypeVar("T")


class Session:
    """One judge as one process asks it.

    Args:
        store: where replies are kept and found; None asks anew each time.
        oracle: (prompt text, answer) -> truth, such as a `study.truth.oracle.Oracle`; for a
            simulated judge.
        calls_before: calls that a simulated judge has answered in earlier processes of this run.
        allowance: what may be spent; None is no limit.

    Raises:
        UserError: the judge's settings cannot work, or a file of its tokenizer is damaged.
    """

    def __init__(
        self,
        judge: Judge,
        store: Store | None,
        oracle: Callable[[str, str], RuleTruth] | None = None,
        calls_before: int = 0,
        allowance: Allowance | None = None,
    ) -> None:
        check_settings(judge)
        self.judge = judge
        self.judge_id = judge_id(judge)
        self._request_key = request_keys(judge)
        self.drifts = judge.simulated is not None and drifts(judge.simulated)
        """Whether what the judge says depends on when it is asked; then nothing is stored."""
        self._store = None if self.drifts else store
        self._allowance = allowance
        self._tokens = special_tokens(judge)
        self._grading = build_grading(judge)
        check_dialect(judge, self._grading.body(Request(criteria=(0,), members=(0, 1))))
        self._asker = Asker(judge, self._store, _simulated(judge, oracle, calls_before))
        self._submissions: set[asyncio.Task[Any]] = set()
        self._loop = Loop(self._asker.close)

    @property
    def calls(self) -> int:
        """Requests for verdicts sent so far, failed ones too; without those of `check`."""
        return self._asker.channel.calls

    @property
    def hits(self) -> int:
        """Draws found in the store, or already in flight."""
        return self._asker.hits

    def stop_if_refused(self) -> None:
        """Raise if the endpoint has refused this judge altogether, and not only single questions.

        Raises:
            EndpointRefused: with what to do.
        """
        self._asker.stop_if_refused()

    @property
    def compares(self) -> bool:
        """Whether the grading judges the answers of a group against each other."""
        return isinstance(self._grading, GroupGrading)

    async def verdict(self, row: Row, answer: str, index: int = 0) -> Verdict:
        """Judge one answer by itself; draw ``index`` of the votes. Await it in any event loop.

        Labels missing from a reply are asked for once more. Failures of the judge or its endpoint
        are outcomes and raise nothing.

        Raises:
            UserError: the grading compares the answers of a group.
        """
        return await self._loop.call(self._answer(self._single(), row, answer, index))

    async def group(self, row: Row, answers: Sequence[str], index: int = 0) -> list[Verdict]:
        """Judge the G answers to one prompt against each other; draw ``index`` of the votes.

        Raises:
            UserError: the grading judges single answers, or there is only one answer.
        """
        return await self._loop.call(
            self._group(self._comparing(len(answers)), row, answers, index)
        )

    def verdicts(self, items: Sequence[tuple[Row, str]]) -> list[list[Verdict]]:
        """`verdict` of each (row, answer), ``sampling.votes`` times; order is kept.

        Raises:
            UserError: the grading compares the answers of a group.
        """
        return self._loop.run(self._verdicts(items))

    def groups(self, groups: Sequence[tuple[Row, Sequence[str]]]) -> list[list[Verdict]]:
        """`group` of each (row, answers), ``sampling.votes`` times: the votes of each answer, in
        the order of the groups.

        Raises:
            UserError: the grading judges single answers, or a group has only one answer.
        """
        return self._loop.run(self._groups(groups))

    def submit(
        self, items: Sequence[tuple[Row, str]], group_size: int
    ) -> Future[list[list[Verdict]]]:
        """Begin to judge P * G items in group order, ``sampling.votes`` times each, and do not
        wait; the future has their verdicts in that order.

        A grading that compares judges each answer against its own group. What `verdicts` and
        `groups` raise is raised by the future.
        """
        if not self.compares:
            return self._loop.submit(self._verdicts(items))
        groups = [items[start : start + group_size] for start in range(0, len(items), group_size)]
        return self._loop.submit(
            self._groups([(group[0][0], [answer for _, answer in group]) for group in groups])
        )

    @contextmanager
    def batch(self) -> Generator[None]:
        """Within it equal questions are asked once, also where the first has its reply already.

        Its end cancels what was submitted and has not ended. Only one thread may ask this session
        meanwhile.
        """
        self._asker.in_batch = True
        try:
            yield
        finally:
            self._asker.in_batch = False
            self._loop.run(self._drop())

    async def _verdicts(self, items: Sequence[tuple[Row, str]]) -> list[list[Verdict]]:
        grading = self._single()
        return await self._draws(
            partial(self._answer, grading, row, answer) for row, answer in items
        )

    async def _groups(self, groups: Sequence[tuple[Row, Sequence[str]]]) -> list[list[Verdict]]:
        grading = self._comparing(min((len(answers) for _, answers in groups), default=2))
        draws = await self._draws(
            partial(self._group, grading, row, answers) for row, answers in groups
        )
        return [list(votes) for group in draws for votes in zip(*group, strict=True)]

    async def _draws(
        self, calls: Iterable[Callable[[int], Coroutine[Any, Any, T]]]
    ) -> list[list[T]]:
        """What each call gives for the number of each draw, ``sampling.votes`` of them."""
        submission = asyncio.current_task()
        assert submission is not None
        self._submissions.add(submission)
        submission.add_done_callback(self._submissions.discard)
        votes = self.judge.sampling.votes
        draws = await gather(partial(call, index) for call in calls for index in range(votes))
        return [draws[start : start + votes] for start in range(0, len(draws), votes)]

    def request_verdicts(
        self, groups: Sequence[tuple[Row, Sequence[str]]], index: int = 0
    ) -> list[list[Verdict]]:
        """One verdict for each request about each (row, answers), in the grading's order.

        For ``pairwise`` and two answers: as given, then swapped; the score says how far the answer
        shown first is preferred.

        Raises:
            UserError: the grading judges single answers.
        """
        grading = self._comparing()

        async def each(row: Row, answers: Sequence[str]) -> list[Verdict]:
            parts = await self._fetch_all(grading, grading.group_requests(row, answers), index)
            return [
                self._verdict([part], index, part.parsed, joined_fields([part])) for part in parts
            ]

        return self._loop.run(gather(partial(each, row, answers) for row, answers in groups))

    def replies(self, requests: Sequence[tuple[Grading, Request]]) -> list[Fetched]:
        """The replies to requests of other gradings than the judge's own."""
        return self._loop.run(
            gather(partial(self._fetch, grading, request, 0) for grading, request in requests)
        )

    def _single(self) -> AnswerGrading:
        if isinstance(self._grading, GroupGrading):
            raise UserError(
                f"judge.grading.name={self._grading.name} compares the answers of a group with each"
                " other, and here each answer is judged by itself. Choose another grading, for"
                " example judge.grading.name=likert."
            )
        return self._grading

    def _comparing(self, size: int | None = None) -> GroupGrading:
        if not isinstance(self._grading, GroupGrading):
            raise UserError(
                f"judge.grading.name={self._grading.name} judges each answer by itself and cannot"
                " compare a group; choose judge.grading.name=pairwise or listwise."
            )
        if size is not None:
            check_group(self._grading.name, size)
        return self._grading

    def check(self) -> None:
        """Check that this judge can be asked.

        Raises:
            UserError: the key variable is missing, or the endpoint does not answer, does not
                accept the key, or serves other models.
        """
        self._loop.run(self._asker.check())

    def close(self) -> None:
        """Abort what is in flight (its verdicts are ``aborted``) and close all connections."""
        self._loop.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _drop(self) -> None:
        await cancel(self._submissions)
        await self._asker.drop()

    async def _answer(self, grading: AnswerGrading, row: Row, answer: str, index: int) -> Verdict:
        """One answer's verdict: all its requests at once, each with its follow-up."""

        async def chain(request: Request) -> list[Fetched]:
            part = await self._fetch(grading, request, index)
            left_s = self.judge.endpoint.deadline_s - (0 if part.from_cache else part.latency_s)
            # what a simulated judge leaves out is a planted failure
            if part.reply is None or self.judge.simulated is not None or left_s <= 0:
                return [part]
            rest = grading.follow_up(row, answer, request, part.parsed)
            return (
                [part] if rest is None else [part, await self._fetch(grading, rest, index, left_s)]
            )

        chains = await _all([chain(request) for request in grading.requests(row, answer)])
        first = [parts[0] for parts in chains]
        parts = first + [part for parts in chains for part in parts[1:]]
        parsed = grading.combine(row, [(part.request, part.parsed) for part in parts])
        return self._verdict(first, index, parsed, joined_fields(parts))

    async def _group(
        self, grading: GroupGrading, row: Row, answers: Sequence[str], index: int
    ) -> list[Verdict]:
        parts = await self._fetch_all(grading, grading.group_requests(row, answers), index)
        read = [(part.request, part.parsed) for part in parts]
        return [
            self._verdict(
                [part for part in parts if member in part.request.members],
                index,
                parsed,
                member_fields(parts, member),
            )
            for member, parsed in enumerate(grading.group_combine(row, answers, read))
        ]

    async def _fetch_all(
        self, grading: Grading, requests: Sequence[Request], index: int
    ) -> list[Fetched]:
        return await _all([self._fetch(grading, request, index) for request in requests])

    async def _fetch(
        self, grading: Grading, request: Request, index: int, within_s: float | None = None
    ) -> Fetched:
        """The reply to one request, read. Who asks the same at the same time shares it."""
        messages = [
            turn | {"content": escape_tokens(turn["content"], self._tokens)}
            for turn in request.messages
        ]
        body = judge_body(self.judge, grading.body(request), messages, index)
        request = dataclasses.replace(request, key=self._request_key(body, index))
        fetched = await self._asker.fetch(
            request.key,
            partial(self._ask, grading, request, body, within_s),
            partial(read, grading, request),
            None if self._allowance is None else partial(self._allowance.spend, self.judge),
        )
        # the same words about other members of a group, or what an allowance left unread
        return fetched if fetched.request == request else read(grading, request, fetched)

    async def _ask(
        self, grading: Grading, request: Request, body: Body, within_s: float | None
    ) -> Fetched:
        retry = Retry(self.judge, body, lambda reply: grading.parse(reply, request))
        fetched = await ask(self._asker.channel, body, retry, within_s)
        cost = cost_usd(self.judge, fetched.replies)
        return read(grading, request, dataclasses.replace(fetched, cost_usd=cost), retry.parsed)

    def _verdict(
        self,
        parts: Sequence[Fetched],
        index: int,
        parsed: Parsed,
        spent: dict[str, Any],
    ) -> Verdict:
        keys = [part.request.key for part in parts]
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
    inside = judge.endpoint.url.startswith("asgi:") and judge.simulated is not None
    return simulated_app(judge, oracle, calls_before) if inside else None


async def _all(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of several coroutines; one alone needs no task."""
    return [await work[0]] if len(work) == 1 else list(await asyncio.gather(*work))
