"""Reads a grade in the replies to a request, and says how to ask again if there is none.

At temperature 0 the same question has the same answer, so the second request is changed: it
reminds of the format, or allows more tokens.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from judges.endpoint.chat_completions import FILTERED
from judges.endpoint.client import Body, Fetched
from judges.endpoint.dialects import changed_body
from judges.grading.base import Grading
from study.config.schema import Judge
from study.screen import one_line
from study.verdict import Outcome, Parsed, Reply, Request

log = logging.getLogger(__name__)

Parse = Callable[[Reply], Parsed]
"""How a grading reads the reply to one request."""


def read_reply(parse: Parse, reply: Reply) -> Parsed:
    """What a reply says. A bug in the parser costs this verdict and not the run."""
    if reply.finish_reason == FILTERED:
        return Parsed(Outcome.refused, reason="the endpoint filtered the answer")
    try:
        return parse(reply)
    except Exception as error:
        log.exception("the grading failed on a reply")
        return Parsed(
            Outcome.unparsed, reason=one_line(f"reading failed: {type(error).__name__}: {error}")
        )


class Retry:
    """The further requests after replies without a grade: at most one reminder and one with twice
    the tokens. None after a reply with some of the labels: the session asks for the missing ones.
    """

    def __init__(self, judge: Judge, body: Body, parse: Parse) -> None:
        self._judge, self._body, self._parse = judge, body, parse
        self._remind, self._budget = False, 1
        self.parsed: list[Parsed] = []
        """What was read in each reply so far."""

    def __call__(self, reply: Reply) -> tuple[Body, str] | None:
        """The next request and what it changes; None if there is nothing to try."""
        parsed = read_reply(self._parse, reply)
        self.parsed.append(parsed)
        if self._judge.simulated is not None:
            # a simulated judge's failures are planted; asking again would dilute the dose
            return None
        if any(label != "unknown" for label in parsed.labels):
            return None
        if parsed.outcome is Outcome.truncated and self._budget == 1:
            self._budget = 2
        elif parsed.outcome in (Outcome.unparsed, Outcome.empty) and not self._remind:
            self._remind = True
        else:
            return None
        changes = ["a format reminder"] * self._remind
        changes += [f"{self._budget} times the tokens"] * (self._budget > 1)
        body = changed_body(self._judge, self._body, self._remind, self._budget)
        return body, f"with {' and '.join(changes)}"


def settle(
    parse: Parse, replies: Sequence[Reply], parsed: Sequence[Parsed] = ()
) -> tuple[Reply, Parsed]:
    """The reply that counts and what it says: the first that holds a grade, else the last. The
    reason says what was changed to obtain it. ``parsed`` are the first replies that have been read
    already."""
    reply, grade = replies[-1], Parsed(Outcome.empty)
    for place, reply in enumerate(replies):
        grade = parsed[place] if place < len(parsed) else read_reply(parse, reply)
        if grade.outcome in (Outcome.scored, Outcome.refused):
            break
    if reply.asked:
        reason = "; ".join(filter(None, (grade.reason, f"asked again {reply.asked}")))
        grade = dataclasses.replace(grade, reason=reason)
    return reply, grade


def read(
    grading: Grading, request: Request, fetched: Fetched, parsed: Sequence[Parsed] = ()
) -> Fetched:
    """The same with the reply that counts and what it says of the request's criteria. Without a
    reply all labels are unknown and the outcome is that of the request. ``parsed`` as in `settle`.
    """
    blank = ("unknown",) * len(request.criteria)
    if not fetched.replies:
        assert fetched.outcome is not None
        grade = Parsed(fetched.outcome, blank, reason=fetched.reason)
        return dataclasses.replace(fetched, request=request, parsed=grade)
    reply, grade = settle(lambda reply: grading.parse(reply, request), fetched.replies, parsed)
    if fetched.outcome is not None and grade.outcome is not Outcome.scored:
        grade = dataclasses.replace(grade, reason=f"{grade.reason}; asked again: {fetched.reason}")
    if len(grade.labels) < len(request.criteria):  # a bug in the parser, which cost the labels
        grade = Parsed(grade.outcome, blank, reason=grade.reason)
    return dataclasses.replace(fetched, request=request, reply=reply, parsed=grade)
