"""An endpoint as one process uses it: how it is reached, what limits it, and whether it refuses."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from judges.endpoint.failures import FINAL, EndpointRefused
from judges.endpoint.throttle import Throttle
from judges.endpoint.transport import Wire
from study.config.schema import Endpoint

MANY_REFUSALS = 8
"""Refusals in a row that are not about single questions any more."""


@dataclass
class Channel:
    """An endpoint as this process uses it: the wire, the key, the limits and the call count."""

    endpoint: Endpoint
    wire: Wire
    key: str = field(default="", repr=False)
    folder: Path | None = None
    """Where limits are shared with other processes; None keeps them to this one."""
    calls: int = 0
    """Requests for verdicts sent so far, failed ones too."""
    throttle: Throttle = field(init=False)
    jitter: random.Random = field(default_factory=random.Random, repr=False)
    """Its own generator: a retry must not move the random numbers of the training."""
    refusal: EndpointRefused | None = None
    """The last one, where no reply has come since."""
    refusals: int = 0
    """How many have come since the last reply."""
    answers: int = 0
    """Replies so far."""
    barred_until: float = float("-inf")
    """By the event loop's clock: ``refusal`` is the answer to whatever is asked before."""
    paused_until: float = float("-inf")
    """By the event loop's clock: the endpoint asked for nothing before."""

    def __post_init__(self) -> None:
        self.throttle = Throttle(self.endpoint, self.folder)

    @property
    def refused(self) -> EndpointRefused | None:
        """The refusal that holds for all verdicts, or None.

        That of a key, an account or a model does. "Forbidden" may be about one question: it holds
        for all only if nothing was ever answered, or after `MANY_REFUSALS` in a row.
        """
        refusal = self.refusal
        if refusal is None:
            return None
        final = refusal.why in FINAL or not self.answers or self.refusals >= MANY_REFUSALS
        return refusal if final else None

    def answered(self) -> None:
        """A reply came, so earlier refusals do not hold."""
        self.refusal, self.refusals, self.barred_until = None, 0, float("-inf")
        self.answers += 1

    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        plain = {"content-type": "application/json"}
        return plain | ({"authorization": f"Bearer {self.key}"} if self.key else {})
