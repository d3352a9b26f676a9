"""Answers and groups are judged side by side: no request waits for a reply about another answer.

The endpoint holds replies back until others have been asked for. Where a session asked one answer
or one group after the other, it would wait for itself until the deadline.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from judges.ask.replies import Store
from judges.ask.session import Session
from study.config.schema import Cost
from study.verdict import Outcome
from tests.judges.endpoints import Endpointed, text_of
from tests.judges.sessions import COLOURS, held
from tests.waiting import come

ROWS = COLOURS[:2]


def is_follow_up(content: str) -> bool:
    """Whether only the second criterion is asked about."""
    return "\n2. Two." in content and "\n1. One." not in content


def partial_labels(body: dict[str, Any]) -> str:
    return '{"2": "met"}' if is_follow_up(text_of(body)) else '{"1": "met"}'


@pytest.mark.parametrize("stored", [False, True])
def test_a_follow_up_waits_for_no_other_answer(stored, app, tmp_path) -> None:
    def free(content: str, texts: list[str]) -> bool:
        # the first request about A is answered only after the follow-up about B has come
        about_b = [text for text in texts if "answer B" in text]
        return "answer A" not in content or any(map(is_follow_up, about_b))

    app.say, app.free = partial_labels, free
    store = Store(tmp_path / "replies.db") if stored else None
    with Session(held("rubric_batch"), store) as session:
        verdicts = session.ask_many([(ROWS[0], "answer A"), (ROWS[0], "answer B")])
        assert session.calls == 4
    assert [draws[0].labels for draws in verdicts] == [("met", "met")] * 2
    assert [draws[0].score for draws in verdicts] == [1.0, 1.0]
    order = [("answer A" in text, is_follow_up(text)) for text in app.texts]
    assert order == [(True, False), (False, False), (False, True), (True, True)]
    if store is not None:
        store.close()


@pytest.mark.parametrize(("name", "requests"), [("pairwise", 2), ("listwise", 1)])
def test_groups_and_votes_overlap(name, requests, app, tmp_path) -> None:
    total = requests * len(ROWS) * 3
    reply_text = "[[A]]" if name == "pairwise" else "[[A > B]]"
    app.say, app.free = lambda body: reply_text, lambda content, texts: len(texts) == total
    items = [(row, f"{row.prompt_text()} {member}") for row in ROWS for member in "xy"]
    with Store(tmp_path / "replies.db") as store, Session(held(name, votes=3), store) as session:
        votes_N = session.ask_many(items, 2)
        assert (session.calls, store.count()) == (total, total)
    assert len(app.texts) == total
    assert [len(votes) for votes in votes_N] == [3] * 4
    assert [[vote.sample_index for vote in votes] for votes in votes_N] == [[0, 1, 2]] * 4
    scores = [[vote.score for vote in votes] for votes in votes_N]
    if name == "pairwise":  # whoever is shown first wins, so both orders disagree: a tie
        assert scores == [[0.5] * 3] * 4
    else:
        wanted = [0.0] * 3 + [1.0] * 3
        assert sorted(scores[0] + scores[1]) == sorted(scores[2] + scores[3]) == wanted


def test_a_verdict_can_be_awaited_in_any_loop(app: Endpointed) -> None:
    app.say, app.free = lambda body: "[[70]]", lambda content, texts: len(texts) == 2

    async def main(session: Session) -> None:
        one, other = await asyncio.gather(
            session.ask_one(ROWS[0], "a"), session.ask_one(ROWS[1], "b", index=3)
        )
        assert (one.score, other.score) == (0.7, 0.7)
        assert (one.sample_index, other.sample_index) == (0, 3)

    with Session(held("likert"), None) as session:
        asyncio.run(main(session))


def test_an_awaited_verdict_that_is_given_up_leaves_the_session_usable(app: Endpointed) -> None:
    app.say, app.free = lambda body: "[[70]]", lambda content, texts: "stuck" not in content

    async def main(session: Session) -> float | None:
        stuck = asyncio.create_task(session.ask_one(ROWS[0], "stuck"))
        free = await session.ask_one(ROWS[0], "free")
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        return free.score

    with Session(held("likert"), None) as session:
        assert asyncio.run(main(session)) == 0.7
        assert session.ask_many([(ROWS[1], "x")])[0][0].score == 0.7


def test_a_reply_is_parsed_once_and_a_body_built_once(app, monkeypatch, tmp_path) -> None:
    from judges.ask import session as module
    from judges.grading.likert import Likert

    counts: Counter[str] = Counter()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            counts[name] += 1
            return real(*args)

        return call

    monkeypatch.setattr(Likert, "parse", counted("parse", Likert.parse))
    monkeypatch.setattr(module, "judge_body", counted("body", module.judge_body))
    app.say = lambda body: "[[70]]"
    items = [(ROWS[0], f"answer {number}") for number in range(7)]
    with Store(tmp_path / "replies.db") as store, Session(held("likert"), store) as session:
        session.ask_many(items)
        assert counts == {"parse": 7, "body": 7}
        session.ask_many(items)
        assert counts == {"parse": 14, "body": 14}


def test_closing_during_follow_ups_aborts_them(app: Endpointed) -> None:
    app.say, app.free = partial_labels, lambda content, texts: not is_follow_up(content)

    async def main(session: Session) -> Any:
        task = asyncio.create_task(session.ask_one(ROWS[0], "answer"))
        await come(lambda: len(app.texts) == 2)
        await asyncio.to_thread(session.close)
        return await task

    verdict = asyncio.run(main(Session(held("rubric_batch"), None)))
    assert (verdict.outcome, verdict.labels) == (Outcome.aborted, ("met", "unknown"))
    assert verdict.score is None


def test_an_allowance_holds_over_overlapping_groups(app: Endpointed) -> None:
    from judges.ask.allowance import Allowance

    app.say = lambda body: "[[A]]"
    pairwise_judge = held("pairwise")
    allowance = Allowance(Cost(max_calls=5), [pairwise_judge])
    items = [(row, f"{row.prompt_text()} {member}") for row in ROWS for member in "xyz"]
    with Session(pairwise_judge, None, allowance=allowance) as session:
        verdicts = session.ask_many(items, 3)
        assert (session.calls, len(app.texts), allowance.spent.calls) == (5, 5, 5)
    outcomes = [votes[0].outcome for votes in verdicts]
    assert outcomes[:2] == [Outcome.scored] * 2 and outcomes[3:] == [Outcome.aborted] * 3
