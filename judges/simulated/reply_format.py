"""What a simulated judge reads in a request, and how it puts its verdict in the format asked for.

It gets nothing but the messages, like any judge. Prompt, answers and rubric are found between their
delimiters, and the format of the reply in what stands outside of them, so that no text that is
judged can ask for another format.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from judges.grading import binary, comparing, likert
from judges.grading.delimiters import undelimit, without_delimited
from judges.grading.vocabulary import VOCABULARIES, form
from judges.simulated.bias import Bias
from study.rows import Truth
from study.verdict import Candidate, TokenLogprob

LOGPROB_FLOOR = -9999.0
"""What vLLM writes for a probability of 0: JSON has no infinity."""
OFF_FORMAT = "It is hard to put this into one grade."
REASON = "Yes would need the same result, and any other is a no."
"""What a judge that argues says before either verdict."""

_CRITERION = re.compile(
    r"^([0-9]{1,3})\. (?:\(points: (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\) )?", re.MULTILINE
)


class Unanswerable(Exception):
    """A request that a judge cannot serve; becomes an error response."""

    def __init__(self, status: int, message: str, code: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s
        """What a status of 429 asks to wait."""


@dataclass(frozen=True)
class Question:
    """One request, taken apart."""

    prompt: str
    answers: tuple[str, ...]
    """What is judged: one answer, or those of a group as they are shown."""
    reply_format: str
    """number, choice, binary, pair, ranking, or a vocabulary of rubric labels."""
    words: tuple[str, str] | None
    """The positive and the negative word of a choice."""
    logprobs: bool
    content: bytes
    """Hash of the messages and the seed: what makes a question the same question."""
    characters: int
    rubric: dict[int, float | None] = field(default_factory=dict)
    """Number -> points of the criteria to label; None where the prompt hides them."""


@dataclass(frozen=True)
class Message:
    """What the judge says."""

    text: str
    finish_reason: str = "stop"
    logprobs: list[TokenLogprob] | None = None
    reasoning: str = ""
    """What it thought before, which vLLM and DashScope put beside the text."""
    reasoning_field: str = "reasoning"


def read_question(body: Mapping[str, object]) -> Question:
    """What is asked, found in the messages as a judge finds it.
    Raises Unanswerable: no messages, no delimited prompt and answer, or no form of reply asked for.
    """
    turns, content = read_messages(body)
    text = "\n".join(turns)
    prompt, answers = undelimit("prompt", text), _answers(text)
    if prompt is None or not answers:
        raise Unanswerable(
            404, "The messages hold no delimited prompt and answer.", "unknown_prompt"
        )
    words = _choice(body)
    rubric = undelimit("rubric", text) or ""
    return Question(
        prompt=prompt,
        answers=answers,
        reply_format=_reply_format(without_delimited(text), len(answers), words),
        words=words,
        logprobs=bool(body.get("logprobs")),
        content=content,
        characters=len(text),
        rubric={
            int(item[1]): None if item[2] is None else float(item[2])
            for item in _CRITERION.finditer(rubric)
        },
    )


def read_messages(body: Mapping[str, object]) -> tuple[list[str], bytes]:
    """The texts of the turns, and the hash of messages and seed that makes a request the same
    request. Raises Unanswerable: there are no such messages, or more than one reply is wanted."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Unanswerable(400, "`messages` must be a list of chat turns.", "invalid_messages")
    contents = [turn.get("content") if isinstance(turn, dict) else None for turn in messages]
    turns = [content for content in contents if isinstance(content, str)]
    if len(turns) < len(contents):
        raise Unanswerable(400, "The content of every turn must be text.", "invalid_messages")
    if body.get("n") not in (None, 1):
        raise Unanswerable(400, "`n` must be 1.", "invalid_n")
    canonical = json.dumps([messages, body.get("seed")], sort_keys=True).encode()
    return turns, hashlib.blake2b(canonical, digest_size=12).digest()


def _answers(text: str) -> tuple[str, ...]:
    if (single := undelimit("answer", text)) is not None:
        return (single,)
    answers: list[str] = []
    while (answer := undelimit(comparing.kind(len(answers)), text)) is not None:
        answers.append(answer)
    return tuple(answers)


def _choice(body: Mapping[str, object]) -> tuple[str, str] | None:
    """The two words of a choice; a choice of more is left to what the prompt says of it."""
    wanted = body.get("structured_outputs")
    choice = wanted.get("choice") if isinstance(wanted, dict) else None
    if choice is None:
        return None
    if not isinstance(choice, list) or len(choice) < 2 or {type(word) for word in choice} != {str}:
        raise Unanswerable(400, "A choice is between two words or more.", "invalid_choice")
    return (choice[0], choice[1]) if len(choice) == 2 else None


def _reply_format(instructions: str, answers: int, words: tuple[str, str] | None) -> str:
    """The form of reply that is asked for outside of all delimiters."""
    if words is not None:
        return "choice"
    for vocabulary in VOCABULARIES:
        if form(vocabulary) in instructions:
            return vocabulary
    if answers > 1:
        if comparing.TIE_MARKER in instructions and answers == 2:
            return "pair"
        if comparing.RANKING_MARKER in instructions:
            return "ranking"
    elif likert.MARKER in instructions:
        return "number"
    elif f"[[{binary.YES}]]" in instructions and f"[[{binary.NO}]]" in instructions:
        return "binary"
    raise Unanswerable(
        400,
        "Ask for [[score]], for rubric labels, or in another grading's form.",
        "unknown_grading",
    )


def judged(
    bias: Bias, question: Question, truths: list[Truth], draw: random.Random, calls: int
) -> tuple[Message, str | None]:
    """The verdict in the form that was asked for, and the failure that comes instead, if any.

    A group's answers are each given their value by the same bias, with noise of their own, and
    then compared; it fails as its first shown answer does.
    """
    if question.reply_format in VOCABULARIES:
        met, failure = bias.labels(question.answers[0], truths[0], draw, calls, question.rubric)
        yes, no = VOCABULARIES[question.reply_format]
        labels = {str(number): yes if is_met else no for number, is_met in met.items()}
        return Message(json.dumps(labels)), failure
    pairs = zip(question.answers, truths, strict=True)
    decided = [bias.decide(answer, truth, draw, calls) for answer, truth in pairs]
    message = _write_verdict([value for value, _ in decided], question)
    if question.reply_format == "binary" and bias.argues(draw):
        message = replace(message, text=f"{REASON}\n{message.text}")
    return message, decided[0][1]


def _write_verdict(values: list[float], question: Question) -> Message:
    value = values[0]
    if question.reply_format == "number":
        return Message(f"[[{f'{100 * value:.6f}'.rstrip('0').rstrip('.')}]]")
    if question.reply_format == "binary":
        return Message(f"[[{binary.YES if value >= 0.5 else binary.NO}]]")
    if question.reply_format == "pair":
        better = "A" if value > values[1] else "B" if value < values[1] else comparing.TIE
        return Message(f"[[{better}]]")
    if question.reply_format == "ranking":
        order = sorted(range(len(values)), key=lambda place: -values[place])
        return Message(f"[[{' > '.join(map(comparing.letters, order))}]]")
    assert question.words is not None, "a choice has words"
    positive, negative = question.words
    choice = positive if value >= 0.5 else negative
    if not question.logprobs:
        return Message(choice)
    chances = {positive: value, negative: 1.0 - value}
    top: list[Candidate] = [
        {"token": word, "logprob": math.log(chance) if chance > 0 else LOGPROB_FLOOR}
        for word, chance in sorted(chances.items(), key=lambda item: -item[1])
    ]
    token = next(item for item in top if item["token"] == choice)
    return Message(choice, logprobs=[{**token, "top_logprobs": top}])


def spoil(failure: str | None, reply: Message) -> Message:
    """What is left of a reply after a failure that still gives one."""
    replacements = {
        "unparsed": Message(OFF_FORMAT),
        "empty": Message(""),
        "truncated": Message(reply.text[: len(reply.text) // 2], "length"),
        "refused": Message("", "content_filter"),
    }
    return replacements.get(failure or "", reply)
