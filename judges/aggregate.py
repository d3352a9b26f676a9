"""Makes one verdict of the requests that it took: what they said, and what they cost together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from judges.endpoint.client import Fetched
from judges.grading.adapters import Bound
from judges.grading.base import Ask, Reading
from judges.reading import settle
from study.verdict import Outcome, Parsed, Reply

if TYPE_CHECKING:
    from study.schema import Judge


@dataclass(frozen=True)
class Got:
    """How one request ended, what it cost now, and whether somebody else had asked it before."""

    attempted: Fetched
    cost_usd: float | None
    from_cache: bool = False


@dataclass(frozen=True)
class Part:
    """One request of a verdict and what was read in its reply."""

    ask: Ask
    got: Got
    reply: Reply | None
    parsed: Parsed


def read_part(grading: Reading, ask: Ask, got: Got) -> Part:
    """Read the reply to one request; a request without one has no labels and its own outcome."""
    attempted = got.attempted
    if not attempted.replies:
        assert attempted.outcome is not None
        blank = ("unknown",) * len(ask.criteria)
        parsed = Parsed(attempted.outcome, blank, reason=attempted.reason)
        return Part(ask, got, None, parsed)
    reply, parsed = settle(Bound(grading, ask).parse, attempted.replies, attempted.parsed)
    if attempted.outcome is not None and parsed.outcome is not Outcome.scored:
        reason = f"{parsed.reason}; asked again: {attempted.reason}"
        parsed = Parsed(parsed.outcome, parsed.labels, reason=reason)
    if len(parsed.labels) < len(ask.criteria):  # a bug in the parser, which settle made a reply of
        parsed = Parsed(parsed.outcome, ("unknown",) * len(ask.criteria), reason=parsed.reason)
    return Part(ask, got, reply, parsed)


def joined(parts: Sequence[Part]) -> dict[str, Any]:
    """The fields of a verdict that add up over its requests. Texts are joined by blank lines;
    the finish reason is the first that is not ``stop``."""
    replies = [part.reply for part in parts if part.reply is not None]
    every = [reply for part in parts for reply in part.got.attempted.replies]
    finished = [reply.finish_reason for reply in replies]
    return {
        "text": "\n\n".join(reply.text for reply in replies),
        "reasoning": "\n\n".join(reply.reasoning for reply in replies if reply.reasoning),
        "finish_reason": next((word for word in finished if word != "stop"), "".join(finished[:1])),
        "attempts": sum(part.got.attempted.attempts for part in parts),
        "latency_s": sum(part.got.attempted.latency_s for part in parts),
        "tokens_in": total(every, "tokens_in"),
        "tokens_cached": total(every, "tokens_cached"),
        "tokens_out": total(every, "tokens_out"),
        "cost_usd": _paid(parts),
        "from_cache": bool(parts) and all(part.got.from_cache for part in parts),
        "served_model": ", ".join(dict.fromkeys(_served(parts))),
    }


def _served(parts: Sequence[Part]) -> Iterator[str]:
    """Who answered, by what the replies say; also where it was not who was asked."""
    for part in parts:
        attempted = part.got.attempted
        names = [reply.model for reply in attempted.replies] + [attempted.served]
        yield from (name for name in names if name)


def shared(parts: Sequence[Part], member: int) -> dict[str, Any]:
    """The fields of one answer's verdict out of requests about several answers.

    Attempts, tokens and cost are split evenly among the answers of each request, what does not
    divide going to the first shown, so that the sum over the group is what was spent. Texts and
    latency are those of all requests about the answer.
    """
    mine = [part for part in parts if member in part.ask.members]
    fields = joined(mine)
    for name in ("attempts", "tokens_in", "tokens_cached", "tokens_out"):
        fields[name] = _sum(_slice(joined([part])[name], part.ask.members, member) for part in mine)
    if fields["cost_usd"] is not None:
        fields["cost_usd"] = sum(
            (part.got.cost_usd or 0.0) / len(part.ask.members) for part in mine
        )
    return fields


def _slice(amount: int | None, members: tuple[int, ...], member: int) -> int | None:
    if amount is None:
        return None
    each, rest = divmod(amount, len(members))
    return each + (members.index(member) < rest)


def _sum(amounts: Any) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _paid(parts: Sequence[Part]) -> float | None:
    """What the requests that brought a reply cost; None where that is not known of one of them,
    or none brought any."""
    costs = [part.got.cost_usd for part in parts if part.reply is not None]
    known = [cost for cost in costs if cost is not None]
    if costs:
        return sum(known) if len(known) == len(costs) else None
    return 0.0 if all(part.got.cost_usd == 0.0 for part in parts) else None


def cost(judge: Judge, replies: Sequence[Reply]) -> float | None:
    """US dollars of all replies to one question; None where the price or usage is unknown.

    Where no price of cached tokens is given they cost what the others do.
    """
    if judge.simulated is not None:
        return 0.0
    price = judge.price
    took, gave = total(replies, "tokens_in"), total(replies, "tokens_out")
    if not (price.input or price.cached or price.output) or took is None or gave is None:
        return None
    cached = min(total(replies, "tokens_cached") or 0, took)
    paid = (
        (took - cached) * price.input + cached * (price.cached or price.input) + gave * price.output
    )
    return paid / 1e6


def total(replies: Sequence[Reply], name: str) -> int | None:
    """The sum of one token count over the replies; None where one of them did not say."""
    counts = [getattr(reply, name) for reply in replies]
    return sum(counts) if counts and None not in counts else None
