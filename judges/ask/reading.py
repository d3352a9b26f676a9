"""Reads a grade in the replies to a request, says how to ask again if there is none, and adds up
what the requests of one verdict said and cost.

At temperature 0 the same question has the same answer, so the second request is changed: it
reminds of the format, or allows more tokens.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from judges.endpoint.chat_completions import FILTERED
from judges.endpoint.client import Fetched
from judges.endpoint.dialects import Body, changed_body
from judges.grading.base import Grading
from study.config.schema import Judge, Model
from study.screen import one_line
from study.verdict import Outcome, Parsed, Reply, Request, Verdict

log = logging.getLogger(__name__)


def read_reply(parse: Callable[[Reply], Parsed], reply: Reply) -> Parsed:
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

    def __init__(self, judge: Judge, body: Body, parse: Callable[[Reply], Parsed]) -> None:
        self._judge, self._body, self._parse = judge, body, parse
        self._remind, self._budget = False, 1
        self.parsed: list[Parsed] = []
        """What was read in each reply so far."""

    def __call__(self, reply: Reply) -> tuple[Body, str] | None:
        """The next request and what it changes; None if there is nothing to try."""
        parsed = read_reply(self._parse, reply)
        self.parsed.append(parsed)
        if self._judge.computed:
            # a scorer would say the same, and a simulated judge's failures are planted: asking
            # again would dilute the dose
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
    parse: Callable[[Reply], Parsed], replies: Sequence[Reply], parsed: Sequence[Parsed] = ()
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


def joined(verdict: Verdict, parts: Sequence[Fetched]) -> Verdict:
    """The verdict with what adds up over its requests. Texts are joined by blank lines; the finish
    reason is the first that is not ``stop``."""
    replies = [part.reply for part in parts if part.reply is not None]
    every = [reply for part in parts for reply in part.replies]
    finished = [reply.finish_reason for reply in replies]
    # what the replies say, also where another model answered than was asked
    served = [name for p in parts for name in (*(reply.model for reply in p.replies), p.served)]
    return dataclasses.replace(
        verdict,
        text="\n\n".join(reply.text for reply in replies),
        reasoning="\n\n".join(reply.reasoning for reply in replies if reply.reasoning),
        finish_reason=next((word for word in finished if word != "stop"), "".join(finished[:1])),
        attempts=sum(part.attempts for part in parts),
        latency_s=sum(part.latency_s for part in parts),
        tokens_in=total(every, "tokens_in"),
        tokens_cached=total(every, "tokens_cached"),
        tokens_out=total(every, "tokens_out"),
        cost_usd=_paid(parts),
        from_cache=bool(parts) and all(part.from_cache for part in parts),
        served_model=", ".join(dict.fromkeys(filter(None, served))),
    )


def shared(verdict: Verdict, parts: Sequence[Fetched], member: int) -> Verdict:
    """The verdict on one answer with its share of ``parts``, the requests about it and others.

    Attempts, tokens and cost are split evenly among the answers of each request, what does not
    divide going to the first shown, so that the sum over the group is what was spent. Texts and
    latency are those of all requests about the answer.
    """
    verdict = joined(verdict, parts)

    def share(name: str) -> int | None:
        shares = []
        for part in parts:
            amount = part.attempts if name == "attempts" else total(part.replies, name)
            if amount is not None:
                each, rest = divmod(amount, len(part.request.members))
                shares.append(each + (part.request.members.index(member) < rest))
        return sum(shares) if shares else None

    cost_usd = verdict.cost_usd
    if cost_usd is not None:
        cost_usd = sum((part.cost_usd or 0.0) / len(part.request.members) for part in parts)
    counts = ("attempts", "tokens_in", "tokens_cached", "tokens_out")
    return dataclasses.replace(verdict, cost_usd=cost_usd, **{name: share(name) for name in counts})


def _paid(parts: Sequence[Fetched]) -> float | None:
    """What the requests with a reply cost; None if that of one is unknown, or none has a reply."""
    costs = [part.cost_usd for part in parts if part.reply is not None]
    if not costs:
        return 0.0 if all(part.cost_usd == 0.0 for part in parts) else None
    return None if None in costs else sum(cost or 0.0 for cost in costs)


def cost_usd(model: Model, replies: Sequence[Reply]) -> float | None:
    """US dollars of all replies to one question; None if the price or the usage is unknown.

    Without a price of their own, cached tokens cost what the others do.
    """
    if model.computed:
        return 0.0
    price = model.price
    tokens_in, tokens_out = total(replies, "tokens_in"), total(replies, "tokens_out")
    priced = price.input or price.cached or price.output
    if not priced or tokens_in is None or tokens_out is None:
        return None
    cached = min(total(replies, "tokens_cached") or 0, tokens_in)
    paid = (tokens_in - cached) * price.input + cached * (price.cached or price.input)
    return (paid + tokens_out * price.output) / 1e6


def total(replies: Sequence[Reply], name: str) -> int | None:
    """The sum of one token count over the replies; None if one of them is unknown."""
    counts = [getattr(reply, name) for reply in replies]
    return sum(counts) if counts and None not in counts else None
