"""What was fetched from an endpoint, as the store keeps it and as it comes back."""

from __future__ import annotations

import dataclasses
from typing import Any

from judges.endpoint.client import Fetched
from study.verdict import Outcome, Reply


def from_value(value: dict[str, Any]) -> Fetched:
    """What was fetched, from a row of the store: it cost nothing now."""
    return Fetched(
        tuple(Reply(**reply) for reply in value["replies"]),
        Outcome(value["outcome"]) if "outcome" in value else None,
        value.get("reason", ""),
        value["attempts"],
        value["latency_s"],
        value.get("served", ""),
        cost_usd=0.0,
        from_cache=True,
    )


def to_value(fetched: Fetched) -> dict[str, Any]:
    """The row of the store for what was fetched."""
    value = {
        "replies": [dataclasses.asdict(reply) for reply in fetched.replies],
        "attempts": fetched.attempts,
        "latency_s": round(fetched.latency_s, 4),
    }
    if fetched.outcome is not None:  # never stored, but told to those who wait for it
        value |= {"outcome": fetched.outcome.value, "reason": fetched.reason}
        value |= {"served": fetched.served}
    return value
