"""Variants written by a model, where an endpoint is configured: one request per slot and prompt.

The rewriter is any judge preset, for its endpoint and sampling; its replies go through the same
store as verdicts, so the same text is never written twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from judges.ask.allowance import Allowance
from judges.ask.replies import Store
from judges.ask.session import Session
from judges.grading.base import NOTHING, OneRequest, readable
from judges.grading.delimiters import delimit
from judges.probes.rewriters import TEXTS
from judges.probes.variants import Source
from study.config.schema import Judge
from study.errors import UserError
from study.rows import Row
from study.screen import writable
from study.verdict import Outcome, Parsed, Reply, Request

INSTRUCTIONS: dict[str, str] = TEXTS["instructions"]
TOKENS = 2048
_VERDICT = re.compile(r"\[\[(SAME|DIFFERENT)\]\]")


class _Writing(OneRequest):
    """Any text is a good reply. The option of all is ``room``, the tokens of a reply at least."""

    option_names = ("room",)

    def body(self, request: Request = NOTHING) -> dict[str, Any]:
        """Room for a long answer."""
        return {"max_tokens_at_least": self.options.get("room", TOKENS)}

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """Whether there is a whole text."""
        text = readable(reply)
        return text if isinstance(text, Parsed) else Parsed(Outcome.scored, score=1.0)


class Rewrite(_Writing):
    """Another form of an answer. An option is the instruction."""

    name = "rewrite"
    option_names = ("instruction", "room")
    _template: str = TEXTS["rewrite"]

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """One user turn with the delimited prompt and answer."""
        instruction = self.options["instruction"]
        return self.turn(row, instruction=instruction, answer=delimit("answer", answer))


class Answer(_Writing):
    """A right answer to the prompt, whose criteria are shown."""

    name = "answer"
    _template: str = TEXTS["answer"]

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """One user turn with the delimited prompt and criteria."""
        return self.turn(row)


class Same(_Writing):
    """Whether an answer says what another does, which is an option."""

    name = "same"
    option_names = ("other", "room")
    _template: str = TEXTS["same"]

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """One user turn with the delimited prompt and both answers."""
        other = delimit("answer", self.options["other"])
        return self.turn(row, answer=delimit("answer", answer), other=other)


Text = tuple[str | None, str]
"""What a model wrote, or None and the reason."""


def written(session: Session, questions: Sequence[tuple[OneRequest, Row, str]]) -> list[Text]:
    """The text of each reply to a grading's request about a row and an answer; a model of little
    context has half of it for a reply."""
    context = session.judge.context
    room = {"room": min(TOKENS, context // 2)} if 0 < context < 2 * TOKENS else {}
    requests = []
    for grading, row, answer in questions:
        sized = replace(grading, options=grading.options | room)
        requests += [(sized, request) for request in sized.requests(row, answer)]
    texts: list[Text] = []
    for fetched in session.replies(requests):
        text = readable(fetched.reply) if fetched.reply is not None else None
        if isinstance(text, str):
            texts.append((writable(text), ""))
        else:
            texts.append((None, f"{fetched.parsed.outcome} from the rewriter"))
    return texts


def same(text: str | None) -> bool | None:
    """Whether a reply to `Same` says that two answers are alike; None where it does not say."""
    verdicts = set(_VERDICT.findall(text or ""))
    return verdicts == {"SAME"} if len(verdicts) == 1 else None


def check_writer(judge: Judge) -> None:
    """Raises UserError: the rewriter is simulated."""
    if judge.simulated is not None:
        raise UserError(
            f"rewriter={judge.name} is simulated and writes nothing. Name a preset with an"
            " endpoint, for example rewriter=openai-compatible."
        )


def rewritten(
    judge: Judge,
    sources: Sequence[Source],
    store: Store | None,
    allowance: Allowance | None = None,
) -> tuple[list[Source], list[str], int]:
    """The sources with every slot filled that was empty and that the model could fill; one line per
    slot and reason for those that stayed empty; and the calls made.
    Raises UserError: the rewriter is simulated, or its endpoint cannot be asked."""
    check_writer(judge)
    empty_slots = [
        (place, slot)
        for place, source in enumerate(sources)
        for slot in INSTRUCTIONS
        if slot not in source.slot_texts and "correct" in source.contents
    ]
    texts_by_source = [dict(source.slot_texts) for source in sources]
    failures: Counter[str] = Counter()
    me = judge.name, judge.family
    with Session(judge, store, allowance=allowance) as session:
        session.check()
        questions = [
            (Rewrite({"instruction": INSTRUCTIONS[slot]}), source.row, source.contents["correct"])
            for source, slot in ((sources[place], slot) for place, slot in empty_slots)
        ]
        texts = written(session, questions)
        calls = session.calls
    for (place, slot), (text, why) in zip(empty_slots, texts, strict=True):
        if text is not None:
            texts_by_source[place][slot] = (text, "model")
        else:
            failures[f"{slot}: {why}"] += 1
    new = [
        replace(
            source,
            slot_texts=slot_texts,
            by=source.by | dict.fromkeys(slot_texts.keys() - source.slot_texts, me),
        )
        for source, slot_texts in zip(sources, texts_by_source, strict=True)
    ]
    return new, [f"{count} x {why}" for why, count in sorted(failures.items())], calls
