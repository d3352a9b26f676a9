"""Asks one judge for verdicts: about one answer with ``await``, or about many at once without.

    with Session(judge, store) as session:
        verdict = await session.ask_one(row, answer)         # from any event loop
        votes_N = session.ask_many(items, group_size)        # from a trainer, a notebook, a script
        with session.batch(group_size) as ahead:
            ahead.submit({5: (row, answer)})                 # the answer at place 5 has ended
            votes_N = ahead.votes(items)                     # all have

A session has its own event loop in a thread and looks into the store first. It gives one
``Verdict`` per draw; one that could not be obtained has an outcome that says why. Answers are
judged independently: repeats and follow-ups of one delay no other.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from judges.ask.asker import Asker
from judges.ask.identity import build_grading, check_settings, judge_id
from judges.ask.reading import Retry, cost_usd, joined, read, shared
from judges.ask.replies import content_key
from judges.endpoint.client import Fetched, ask
from judges.endpoint.dialects import check_dialect, judge_body
from judges.endpoint.loop import Loop, cancel, gather
from judges.grading.base import AnswerGrading, GroupGrading
from judges.grading.delimiters import escape_tokens
from judges.grading.special_tokens import special_tokens
from judges.scorers.app import computed_app
from judges.simulated.bias import drifts
from study.errors import UserError
from study.progress import work
from study.screen import one_line
from study.verdict import Request, Verdict

if TYPE_CHECKING:
    from concurrent.futures import Future

    from judges.ask.allowance import Allowance
    from judges.ask.replies import Store
    from judges.endpoint.dialects import Body
    from judges.endpoint.transport import Asgi
    from study.config.schema import Judge
    from study.rows import Row, RuleTruth
    from study.verdict import Parsed

T = TypeVar("T")


class Session:
    """One judge as one process asks it.

    Args:
        store: where replies are kept and found; None sends a new request each time.
        oracle: (prompt text, answer) -> truth, such as a `study.truth.oracle.Oracle`; for a
            judge that ``needs_rows``.
        calls_before: calls that a simulated judge has answered in earlier processes of this run.
        allowance: what may be spent; None is no limit.
        grading: another than the one that the judge's settings name.

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
        grading: AnswerGrading | GroupGrading | None = None,
    ) -> None:
        check_settings(judge)
        self.judge = judge
        self.judge_id = judge_id(judge)
        self.drifts = judge.simulated is not None and drifts(judge.simulated)
        """Whether what the judge says depends on when it is asked; then nothing is stored."""
        self._store = None if self.drifts else store
        self._tokens = special_tokens(judge)
        self._grading = grading or build_grading(judge)
        check_dialect(judge, self._grading.body(Request(criteria=(0,), members=(0, 1))))
        inside = _simulated(judge, oracle, calls_before)
        self._asker = Asker(judge, self._store, inside, allowance)
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

    @property
    def throttled(self) -> str:
        """What its endpoint holds back now, in words; empty if nothing."""
        rates = self._asker.channel.throttle.throttled()
        if rates is None:
            return ""
        allowed, possible = (f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}" for rate in rates)
        return f"throttled by the endpoint: {allowed} of {possible} calls a second"

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

    async def ask_one(self, row: Row, answer: str, index: int = 0) -> Verdict:
        """Judge one answer by itself; draw ``index`` of the votes. Await it in any event loop.

        Labels missing from a reply are asked for once more. Failures of the judge or its endpoint
        are outcomes and raise nothing.

        Raises:
            UserError: the grading compares the answers of a group.
        """
        (verdict,) = await self._loop.call(self._judge([(row, answer)], index))
        return verdict

    def ask_many(
        self,
        items: Sequence[tuple[Row, str] | None],
        group_size: int = 1,
        draws: Sequence[int] | None = None,
    ) -> list[list[Verdict]]:
        """Judge P * G answers in group order, as `ask_one` does, and wait for all: the votes on
        each. A grading that compares judges each answer against its own group.

        Args:
            items: None is a rollout without an answer; nobody is asked about it, nor about an
                answer that would be compared and is alone in its group. There are no votes then.
            draws: which of the votes; all of ``sampling.votes`` if None.

        Raises:
            UserError: the grading compares the answers of a group, and each is one of its own.
        """
        return Ahead(self, group_size, draws).votes(items)

    @contextmanager
    def batch(self, group_size: int = 1) -> Generator[Ahead]:
        """What is asked about the answers of one step while others are still written.

        Within it equal questions are asked once, also where the first has its reply already, but
        for a judge that drifts. Its end cancels what was submitted and has not ended. Only one
        thread may ask this session meanwhile.
        """
        ahead = Ahead(self, group_size)
        if self.drifts:
            yield ahead
            return
        self._asker.in_batch = True
        try:
            yield ahead
        finally:
            self._asker.in_batch = False
            self._loop.run(self._drop())

    def _begin(
        self, groups: Sequence[Sequence[tuple[Row, str]]], draws: Sequence[int] | None
    ) -> Future[list[list[Verdict]]]:
        """Begin to judge all answers of some groups, for `Ahead`; the future has their votes."""
        return self._loop.submit(self._votes(groups, draws))

    async def _votes(
        self, groups: Sequence[Sequence[tuple[Row, str]]], draws: Sequence[int] | None
    ) -> list[list[Verdict]]:
        submission = asyncio.current_task()
        assert submission is not None
        self._submissions.add(submission)
        submission.add_done_callback(self._submissions.discard)
        draws = range(self.judge.sampling.votes) if draws is None else draws
        calls = (partial(self._judge, group, index) for group in groups for index in draws)
        with work(f"verdicts of {self.judge.name}", len(groups) * len(draws)) as asked:
            verdicts = iter(await gather(calls, asked.advance))
        return [
            list(votes) for _ in groups for votes in zip(*islice(verdicts, len(draws)), strict=True)
        ]

    def check(self) -> None:
        """Check that this judge can be asked: now, or with a store, before the first question that
        the store does not answer, which raises then. What is all in the store needs no server.

        Raises:
            UserError: the key variable is missing, or the endpoint does not answer, does not
                accept the key, or serves other models.
        """
        if self._store is None:
            self._loop.run(self._asker.check())
        else:
            self._asker.check_first = True

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

    async def _judge(self, group: Sequence[tuple[Row, str]], index: int) -> list[Verdict]:
        """One verdict on each answer of a group, which is one answer where nothing compares."""
        grading, row, answers = self._grading, group[0][0], [answer for _, answer in group]
        if isinstance(grading, GroupGrading):
            if len(answers) < 2:
                raise UserError(
                    f"judge.grading.name={grading.name} compares the answers of a group, but here"
                    " each answer is judged alone. Choose another grading, for example"
                    " judge.grading.name=likert."
                )
            requests = grading.group_requests(row, answers)
            parts = await _all([self._fetch(request, index) for request in requests])
            read = [(part.request, part.parsed) for part in parts]
            verdicts = []
            for member, parsed in enumerate(grading.group_combine(row, answers, read)):
                mine = [part for part in parts if member in part.request.members]
                verdicts.append(shared(self._verdict(mine, index, parsed), mine, member))
            return verdicts
        (answer,) = answers
        requests = grading.requests(row, answer)
        chains = await _all([self._chain(grading, row, answer, each, index) for each in requests])
        first = [parts[0] for parts in chains]
        parts = first + [part for parts in chains for part in parts[1:]]
        parsed = grading.combine(row, [(part.request, part.parsed) for part in parts])
        return [joined(self._verdict(first, index, parsed), parts)]

    async def _chain(
        self, grading: AnswerGrading, row: Row, answer: str, request: Request, index: int
    ) -> list[Fetched]:
        """The reply to one request, and to the follow-up for what it leaves out."""
        part = await self._fetch(request, index)
        left_s = self.judge.endpoint.deadline_s - (0 if part.from_cache else part.latency_s)
        # what a simulated judge leaves out is a planted failure
        if part.reply is None or self.judge.computed or left_s <= 0:
            return [part]
        rest = grading.follow_up(row, answer, request, part.parsed)
        return [part] if rest is None else [part, await self._fetch(rest, index, left_s)]

    async def _fetch(self, request: Request, index: int, within_s: float | None = None) -> Fetched:
        """The reply to one request, read. Who asks the same at the same time shares it."""
        messages = [
            turn | {"content": escape_tokens(turn["content"], self._tokens)}
            for turn in request.messages
        ]
        body = judge_body(self.judge, self._grading.body(request), messages, index)
        request = dataclasses.replace(request, key=self._asker.key(body, index))
        ask = partial(self._ask, request, body, within_s)
        fetched = await self._asker.fetch(request.key, ask)
        # unread, or the same words about other members of a group
        return fetched if fetched.request == request else read(self._grading, request, fetched)

    async def _ask(self, request: Request, body: Body, within_s: float | None) -> Fetched:
        retry = Retry(self.judge, body, lambda reply: self._grading.parse(reply, request))
        fetched = await ask(self._asker.channel, body, retry, within_s)
        cost = cost_usd(self.judge, fetched.replies)
        fetched = dataclasses.replace(fetched, cost_usd=cost)
        return read(self._grading, request, fetched, retry.parsed)

    def _verdict(self, parts: Sequence[Fetched], index: int, parsed: Parsed) -> Verdict:
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
        )


class Ahead:
    """What one judge has been asked about the answers of one step; see `Session.batch`.

    Args:
        group_size: G; the answers at places n * G to n * G + G - 1 are of one group.
        draws: as in `Session.ask_many`.
    """

    def __init__(
        self, session: Session, group_size: int, draws: Sequence[int] | None = None
    ) -> None:
        self._session, self._draws = session, draws
        self._size = group_size if session.compares else 1
        """Answers that are asked about together."""
        self._items: dict[int, tuple[Row, str]] = {}
        self._submitted: dict[int, tuple[Future[list[list[Verdict]]], int]] = {}
        """Place -> submission and place in it."""

    @property
    def has_requests(self) -> bool:
        """Whether anything was submitted."""
        return bool(self._submitted)

    def submit(self, items: Mapping[int, tuple[Row, str]]) -> None:
        """Ask about answers that have ended, and do not wait: place in the step -> (row, answer).

        A grading that compares is asked once all of a group have ended. A judge that drifts is
        asked by `votes` alone, for what it says depends on the order of questions.
        """
        self._items |= items
        if not self._session.drifts:
            groups = {place // self._size for place in items}
            self._begin({each for each in groups if len(self._places(each)) == self._size})

    def votes(self, items: Sequence[tuple[Row, str] | None]) -> list[list[Verdict]]:
        """The votes on all P * G answers; what was not submitted in these words is asked now.
        ``items`` and what is raised are as in `Session.ask_many`."""
        changed = {
            place // self._size
            for place, item in enumerate(items)
            if self._items.get(place) != item or (item is not None and place not in self._submitted)
        }
        self._items = {place: item for place, item in enumerate(items) if item is not None}
        self._begin(changed)
        try:
            submitted = self._submitted.items()
            votes = {place: future.result()[number] for place, (future, number) in submitted}
        except BaseException:
            for future, _ in self._submitted.values():
                future.cancel()
            raise
        return [votes.get(place, []) for place in range(len(items))]

    def _places(self, group: int) -> list[int]:
        """The places of a group that have an answer."""
        start = group * self._size
        return [place for place in range(start, start + self._size) if place in self._items]

    def _begin(self, groups: Collection[int]) -> None:
        """Ask about these groups, unless one has nothing to compare with; a submission of which
        nothing is wanted any more is cancelled."""
        replaced = [
            self._submitted.pop(place)[0]
            for place in [*self._submitted]
            if place // self._size in groups
        ]
        places_of = [self._places(group) for group in sorted(groups)]
        asked = [places for places in places_of if len(places) >= min(self._size, 2)]
        if asked:
            items = [[self._items[place] for place in places] for places in asked]
            future = self._session._begin(items, self._draws)
            places = [place for group in asked for place in group]
            self._submitted |= {place: (future, number) for number, place in enumerate(places)}
        for stale in set(replaced) - {future for future, _ in self._submitted.values()}:
            stale.cancel()


def _simulated(judge: Judge, oracle: Any, calls_before: int) -> Asgi | None:
    inside = judge.endpoint.url.startswith("asgi:") and judge.computed
    return computed_app(judge, oracle, calls_before) if inside else None


async def _all(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of several coroutines; one alone needs no task."""
    return [await work[0]] if len(work) == 1 else list(await asyncio.gather(*work))
