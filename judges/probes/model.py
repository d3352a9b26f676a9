"""Variants written by a model, where an endpoint is configured: one request per slot and prompt.

The rewriter is any judge preset, for its endpoint and sampling; its replies go through the same
store as verdicts, so the same text is never written twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from judges.ask.allowance import Allowance
from judges.ask.replies import Store
from judges.ask.session import Session
from judges.endpoint.dialects import Body
from judges.grading.base import NOTHING, OneRequest, readable
from judges.grading.delimiters import delimit
from judges.probes.rewriters import TEXTS
from judges.probes.variants import Source
from study.answers import strip_thinking
from study.config.schema import Judge
from study.errors import UserError
from study.rows import Row
from study.screen import writable
from study.verdict import Outcome, Parsed, Reply, Request

INSTRUCTIONS: dict[str, str] = TEXTS["instructions"]
TOKENS = 2048
_VERDICT = re.compile(r"\[\[(SAME|DIFFERENT)\]\]")


class Writing(OneRequest):
    """Asks for a text with the words that stand as the answer; any text is a good reply. Option:
    ``room``, the tokens of a reply at least."""

    name = "writing"
    option_names = ("room",)
    _template = ""

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """One user turn of the words."""
        return [{"role": "user", "content": answer}]

    def body(self, request: Request = NOTHING) -> Body:
        """Room for a long answer."""
        return {"max_tokens_at_least": self.options["room"]}

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """Whether there is a whole text."""
        text = readable(reply)
        return text if isinstance(text, Parsed) else Parsed(Outcome.scored, score=1.0)


def writer(judge: Judge, store: Store | None, allowance: Allowance | None = None) -> Session:
    """A session that asks a model for texts, once for each; one of little context has half of it
    for a reply."""
    room = judge.context // 2 if 0 < judge.context < 2 * TOKENS else TOKENS
    once = replace(judge, sampling=replace(judge.sampling, votes=1))
    return Session(once, store, allowance=allowance, grading=Writing({"room": room}))


def question(kind: str, row: Row, instruction: str = "", **answers: str) -> tuple[Row, str]:
    """What a writer is asked about a row: ``rewrite`` of an ``answer``, by an instruction; a right
    ``answer``, with the criteria shown; whether an ``answer`` says the ``same`` as an ``other``."""
    delimited = {name: delimit("answer", text) for name, text in answers.items()}
    (turn,) = Writing().filled(TEXTS[kind], row, instruction=instruction, **delimited)
    return row, turn["content"]


Text = tuple[str | None, str]
"""What a model wrote, or None and the reason."""


def written(session: Session, questions: Sequence[tuple[Row, str]]) -> list[Text]:
    """The text of each reply of a writer."""
    return [
        (writable(strip_thinking(verdict.text)[0]), "")
        if verdict.outcome is Outcome.scored
        else (None, f"{verdict.outcome} from the rewriter")
        for [verdict] in session.ask_many(questions)
    ]


def same(text: str | None) -> bool | None:
    """Whether a reply to ``same`` says that two answers are alike; None where it does not say."""
    verdicts = set(_VERDICT.findall(text or ""))
    return verdicts == {"SAME"} if len(verdicts) == 1 else None


def check_writer(judge: Judge) -> None:
    """Raises UserError: the rewriter is no model."""
    if judge.computed:
        raise UserError(
            f"rewriter={judge.name} is no model and writes nothing. Name a preset with an"
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
    Raises UserError: the rewriter is no model, or its endpoint cannot be asked."""
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
    with writer(judge, store, allowance) as session:
        session.check()
        questions = [
            question("rewrite", source.row, INSTRUCTIONS[slot], answer=source.contents["correct"])
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
