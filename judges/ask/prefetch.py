"""Verdicts on a step's answers, which may be asked for while other answers are still written.

with session.batch():
    ahead = Ahead(session, group_size)
    ahead.submit({5: (row, answer)})        # the answer at place 5 has ended
    votes_N = judge_all(session, items, group_size, ahead)      # all have
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

    from judges.ask.session import Session
    from study.rewards.compose import RewardInputs
    from study.rows import Row
    from study.verdict import Verdict


class Ahead:
    """What one judge has been asked about the answers of one step.

    Args:
        group_size: G; the answers at places n * G to n * G + G - 1 are of one group.
    """

    def __init__(self, session: Session, group_size: int) -> None:
        self._session = session
        self._size = group_size if session.compares else 1
        """Answers that are asked about together."""
        self._items: dict[int, tuple[Row, str]] = {}
        self._submitted: dict[int, tuple[Future[list[list[Verdict]]], int]] = {}
        """Place -> submission and place in it."""

    def submit(self, items: Mapping[int, tuple[Row, str]]) -> None:
        """Ask about answers that have ended, and do not wait: place in the step -> (row, answer).

        A grading that compares is asked once all of a group have ended. A judge that drifts is
        asked by `judge_all` alone, for what it says depends on the order of questions.
        """
        self._items |= items
        if self._session.drifts:
            return
        size = self._size
        starts = sorted({place - place % size for place in items})
        groups = [range(start, start + size) for start in starts]
        whole = [group for group in groups if all(place in self._items for place in group)]
        self._begin([place for group in whole for place in group])

    @property
    def has_requests(self) -> bool:
        """Whether anything was submitted."""
        return bool(self._submitted)

    def votes(self, items: Sequence[tuple[Row, str]]) -> list[list[Verdict]]:
        """The votes on all P * G answers; what was not submitted in these words is asked now."""
        stale = {
            place // self._size
            for place, item in enumerate(items)
            if place not in self._submitted or self._items[place] != item
        }
        self._items = dict(enumerate(items))
        self._begin([place for place in self._items if place // self._size in stale])
        try:
            return [
                future.result()[number]
                for future, number in (self._submitted[place] for place in self._items)
            ]
        except BaseException:
            for future, _ in self._submitted.values():
                future.cancel()
            raise

    def _begin(self, places: Sequence[int]) -> None:
        """Ask about these places; a submission of which nothing is wanted any more is cancelled."""
        if not places:
            return
        before = {self._submitted[place][0] for place in places if place in self._submitted}
        future = self._session.submit([self._items[place] for place in places], self._size)
        self._submitted |= {place: (future, number) for number, place in enumerate(places)}
        for stale in before - {future for future, _ in self._submitted.values()}:
            stale.cancel()


def judge_all(
    session: Session,
    items: Sequence[tuple[Row, str]],
    group_size: int,
    ahead: Ahead | None = None,
) -> list[list[Verdict]]:
    """Verdicts of P * G items in group order, ``sampling.votes`` for each.

    A grading that compares judges each answer against its own group.

    Args:
        ahead: what this session has been asked already; the rest is asked now.

    Raises:
        EndpointRefused: the judge's key, account or model is refused.
    """
    votes_N = (ahead or Ahead(session, group_size)).votes(items)
    session.stop_if_refused()
    return votes_N


def judge_asked(
    session: Session,
    inputs: Sequence[RewardInputs],
    group_size: int,
    ahead: Ahead | None = None,
) -> list[list[Verdict]]:
    """The votes on each of P * G rollouts; none on one whose program came to no answer, and none
    where a grading that compares has less than two answers of a group. ``ahead`` is as in
    `judge_all`, of rollouts that all have an answer."""
    if all(rollout.has_answer for rollout in inputs):
        return judge_all(session, [rollout.item for rollout in inputs], group_size, ahead)
    places = [place for place, rollout in enumerate(inputs) if rollout.has_answer]
    if session.compares:
        groups: dict[int, list[int]] = defaultdict(list)
        for place in places:
            groups[place // group_size].append(place)
        whole = [group for group in groups.values() if len(group) > 1]
        places = [place for group in whole for place in group]
        items = [[inputs[place].item for place in group] for group in whole]
        votes_N = session.groups(
            [(group[0][0], [answer for _, answer in group]) for group in items]
        )
        session.stop_if_refused()
    else:
        votes_N = judge_all(session, [inputs[place].item for place in places], 1)
    votes = dict(zip(places, votes_N, strict=True))
    return [votes.get(place, []) for place in range(len(inputs))]
