"""Adds up the requests of one verdict: their texts, tokens and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from judges.endpoint.client import Fetched
from study.config.schema import Model
from study.verdict import Reply


def joined_fields(parts: Sequence[Fetched]) -> dict[str, Any]:
    """The fields of a verdict that add up over its requests. Texts are joined by blank lines;
    the finish reason is the first that is not ``stop``."""
    replies = [part.reply for part in parts if part.reply is not None]
    every = [reply for part in parts for reply in part.replies]
    finished = [reply.finish_reason for reply in replies]
    # what the replies say, also where another model answered than was asked
    served = [name for p in parts for name in (*(reply.model for reply in p.replies), p.served)]
    return {
        "text": "\n\n".join(reply.text for reply in replies),
        "reasoning": "\n\n".join(reply.reasoning for reply in replies if reply.reasoning),
        "finish_reason": next((word for word in finished if word != "stop"), "".join(finished[:1])),
        "attempts": sum(part.attempts for part in parts),
        "latency_s": sum(part.latency_s for part in parts),
        "tokens_in": total(every, "tokens_in"),
        "tokens_cached": total(every, "tokens_cached"),
        "tokens_out": total(every, "tokens_out"),
        "cost_usd": _paid(parts),
        "from_cache": bool(parts) and all(part.from_cache for part in parts),
        "served_model": ", ".join(dict.fromkeys(filter(None, served))),
    }


def member_fields(parts: Sequence[Fetched], member: int) -> dict[str, Any]:
    """The fields of one answer's verdict out of requests about several answers.

    Attempts, tokens and cost are split evenly among the answers of each request, what does not
    divide going to the first shown, so that the sum over the group is what was spent. Texts and
    latency are those of all requests about the answer.
    """
    mine = [part for part in parts if member in part.request.members]
    fields = joined_fields(mine)
    wholes = [joined_fields([part]) for part in mine]
    for name in ("attempts", "tokens_in", "tokens_cached", "tokens_out"):
        shares = []
        for part, whole in zip(mine, wholes, strict=True):
            amount = whole[name]
            if amount is not None:
                each, rest = divmod(amount, len(part.request.members))
                shares.append(each + (part.request.members.index(member) < rest))
        fields[name] = sum(shares) if shares else None
    if fields["cost_usd"] is not None:
        fields["cost_usd"] = sum(
            (part.cost_usd or 0.0) / len(part.request.members) for part in mine
        )
    return fields


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
    if model.simulated is not None:
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
