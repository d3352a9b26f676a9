"""Variants written by a model, where an endpoint is configured: one request per slot and prompt.

The rewriter is any judge preset, for its endpoint and sampling; its replies go through the same
store as verdicts, so the same text is never written twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from judges.grading.base import NOTHING, OneRequest, readable
from judges.grading.delimiters import delimit
from judges.probes.allowance import Allowance
from judges.probes.rewriters import TEXTS
from judges.probes.variants import Source
from judges.session import Session
from judges.store import Store
from study.errors import UserError
from study.rows import Row
from study.schema import Judge
from study.verdict import Outcome, Parsed, Reply, Request

INSTRUCTIONS: dict[str, str] = TEXTS["instructions"]
TOKENS = 2048


class _Rewrite(OneRequest):
    """Any text is a good reply. The one option is the instruction."""

    name = "rewrite"
    option_names = ("instruction",)
    _template: str = TEXTS["rewrite"]

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """One user turn with the delimited prompt and answer."""
        instruction = self.options["instruction"]
        return self.turn(row, instruction=instruction, answer=delimit("answer", answer))

    def body(self, request: Request = NOTHING) -> dict[str, Any]:
        """Room for a long answer."""
        return {"max_tokens_at_least": TOKENS}

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """Whether there is a whole text."""
        text = readable(reply)
        return text if isinstance(text, Parsed) else Parsed(Outcome.scored, score=1.0)


def rewritten(
    judge: Judge,
    sources: Sequence[Source],
    store: Store | None,
    allowance: Allowance | None = None,
) -> tuple[list[Source], list[str], int]:
    """The sources with every slot filled that was empty and that the model could fill; one line per
    slot and reason for those that stayed empty; and the calls made.
    Raises UserError: the rewriter is simulated, or its endpoint cannot be asked."""
    if judge.simulated is not None:
        raise UserError(
            f"rewriter={judge.name} is simulated and writes nothing. Name a preset with an"
            " endpoint, for example rewriter=openai-compatible."
        )
    wanted = [
        (place, slot)
        for place, source in enumerate(sources)
        for slot in INSTRUCTIONS
        if slot not in source.given and "correct" in source.contents
    ]
    filled = [dict(source.given) for source in sources]
    lost: Counter[str] = Counter()
    with Session(judge, store, allowance=allowance) as session:
        session.check()
        asked = []
        for place, slot in wanted:
            grading, source = _Rewrite({"instruction": INSTRUCTIONS[slot]}), sources[place]
            (request,) = grading.requests(source.row, source.contents["correct"])
            asked.append((grading, request))
        replies = session.replies(asked)
        calls = session.calls
    for (place, slot), fetched in zip(wanted, replies, strict=True):
        text = readable(fetched.reply) if fetched.reply is not None else None
        if isinstance(text, str):
            filled[place][slot] = (text, "model")
        else:
            lost[f"{slot}: {fetched.parsed.outcome} from the rewriter"] += 1
    new = [replace(source, given=given) for source, given in zip(sources, filled, strict=True)]
    return new, [f"{count} x {why}" for why, count in sorted(lost.items())], calls
