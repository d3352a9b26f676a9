"""Rows, and a judge behind an endpoint, for the tests of sessions."""

from collections.abc import Sequence
from typing import Any

from judges.ask.replies import Store
from judges.ask.session import Session
from study.config.schema import Endpoint, Grading, Judge, Price, Sampling
from study.rows import Criterion, Row, make_row
from study.verdict import Verdict

ROWS = [make_row(({"role": "user", "content": f"Write {number} words."},)) for number in range(4)]

COLOURS = [
    make_row(({"role": "user", "content": f"Say {word}."},), (Criterion("One."), Criterion("Two.")))
    for word in ("red", "blue", "green")
]


def ask_once(
    judge: Judge, store: Store | None = None, item: tuple[Row, str] = (ROWS[0], "x")
) -> tuple[Verdict, int]:
    """The verdict of a session of its own, and the calls that it made."""
    with Session(judge, store) as session:
        ((verdict,),) = session.ask_many([item])
        return verdict, session.calls


def ask_group(
    session: Session, row: Row, answers: Sequence[str], draws: Sequence[int] | None = None
) -> list[Verdict]:
    """The first of the votes on each of the answers, which are one group."""
    votes_G = session.ask_many([(row, answer) for answer in answers], len(answers), draws)
    return [votes[0] for votes in votes_G]


def held(grading: str = "likert", votes: int = 1, **endpoint: Any) -> Judge:
    """A judge that is asked once for each verdict: the application of a test, or an address."""
    settings: dict[str, Any] = {
        **{"url": "asgi://held", "deadline_s": 20.0, "attempts": 1, "backoff_s": 0.001},
        **endpoint,
    }
    return Judge(
        name="real",
        endpoint=Endpoint(model="m", **settings),
        grading=Grading(grading),
        sampling=Sampling(votes=votes),
    )


def http(url: str, price: Price | None = None, **endpoint: Any) -> Judge:
    settings: dict[str, Any] = {
        **{"model": "m", "deadline_s": 1.0, "idle_timeout_s": 0.5, "attempts": 2},
        **{"backoff_s": 0.01},
        **endpoint,
    }
    return Judge(
        name="real",
        revision="r",
        endpoint=Endpoint(url=url, **settings),
        grading=Grading("one-word"),
        price=price or Price(),
    )
