"""One of two words; the score is the probability of the positive one, read from log-probs.

A small judge says the same word to nearly everything; how sure it is still orders the answers.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, ClassVar

from judges.endpoint.dialects import Body
from judges.grading import base
from judges.grading.base import NOTHING
from judges.grading.delimiters import delimit
from study.answers import split
from study.config import bounds
from study.errors import UserError
from study.rows import Row
from study.verdict import Outcome, Parsed, Reply, Request, TokenLogprob

TOP = 20
"""The most alternatives that servers give by default."""
MAX_TOKENS = 8
"""Room for a word of several tokens and the end of the turn."""
MOST_MASS = 1.01
"""The most that the probabilities of different tokens may add up to: 1, rounded as coarsely as a
server does that computes in 16 bits."""


class SoftChoice(base.OneRequest):
    """Options: ``prompt`` (default, strict, or a .txt file); ``prompts``, domain -> another prompt
    for its rows; ``reference`` hidden | shown, whether the judge sees ``row.reference``;
    ``rubric`` shown | hidden, whether it sees ``row.criteria``;
    ``positive`` and ``negative`` (Yes and No); ``soft`` (true; false scores the word itself as 1 or
    0).
    Raises UserError: an unknown option or prompt, or two words that read alike."""

    name = "soft_choice"
    version = "4"
    choices: ClassVar = {"reference": ("hidden", "shown"), "rubric": ("shown", "hidden")}
    option_names = ("prompt", "prompts", "positive", "negative", "soft")
    needed = ("{prompt}", "{answer}", "{positive}", "{negative}")

    def __post_init__(self) -> None:
        super().__post_init__()
        bounds.check_kind("+judge.grading.options.soft", self.soft, bool, True)
        for word in self.words:
            if not isinstance(word, str) or not _plain(word) or len(word.split()) != 1:
                raise UserError(
                    f"judge.grading.options: {word!r} is not a single word. `positive` and"
                    " `negative` must be two different words, quoted where YAML would read a"
                    " boolean. Type for example"
                    " \"+judge.grading.options={positive:'Good',negative:'Bad'}\"."
                )
        positive, negative = self.words
        if _plain(positive) == _plain(negative):
            raise UserError(
                f"judge.grading.options: positive={positive!r} and negative={negative!r} read as"
                " the same word. Give two different ones."
            )

    @property
    def words(self) -> tuple[str, str]:
        """The word that scores 1, and the one that scores 0."""
        return self.options.get("positive", "Yes"), self.options.get("negative", "No")

    @property
    def soft(self) -> bool:
        """Whether the score is a probability."""
        return self.options.get("soft", True)

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """The chat turns that ask for one of the two words."""
        positive, negative = self.words
        return self.turn(
            row, answer=delimit("answer", answer), positive=positive, negative=negative
        )

    @property
    def reply_form(self) -> str:
        """One of two words."""
        log_probs = ", with the log-probs of its token" if self.soft else ""
        return f"{' or '.join(self.words)} and nothing else{log_probs}"

    def body(self, request: Request = NOTHING) -> Body:
        """One forced word, the positive one named first, and its alternatives if soft."""
        extra: Body = {
            "structured_outputs": {"choice": list(self.words)},
            "max_tokens": MAX_TOKENS,
        }
        if self.soft:
            extra |= {"logprobs": True, "top_logprobs": TOP}
        return extra

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """The probability of the positive word out of both, at the token that is the choice."""
        text = base.readable(reply)
        if isinstance(text, Parsed):
            return text
        choice, words = _plain(text), [_plain(word) for word in self.words]
        if choice not in words:
            return base.unparsed(f"neither {' nor '.join(self.words)}", text)
        if not self.soft:
            return Parsed(Outcome.scored, score=float(choice == words[0]))
        if not reply.logprobs:
            return base.unparsed("the endpoint gave no log-probs", text)
        chances = _carrier(reply.logprobs, choice)
        if chances is None:
            return base.unparsed("no token of the log-probs is the choice", text)
        if not chances:
            return base.unparsed("the log-probs have no alternatives to the choice", text)
        if (mass := math.fsum(chances.values())) > MOST_MASS:
            why = f"the log-probs at the choice are not a distribution: they add up to {mass:.2f}"
            return base.unparsed(why, text)
        yes, no = (_mass(chances, words, index) for index in (0, 1))
        if not yes + no > 0:
            return base.unparsed("the log-probs leave no mass on the choice", text)
        return Parsed(Outcome.scored, score=yes / (yes + no))


def _plain(word: str) -> str:
    """A word as it counts: without blanks, marks around it, and case."""
    return word.strip().strip(".,;:!\"'*`").strip().casefold()


def _token(entry: Any) -> tuple[str, float] | None:
    """Token and log-prob of one entry; None if it is not one."""
    if not isinstance(entry, dict):
        return None
    token, logprob = entry.get("token"), entry.get("logprob")
    if isinstance(token, str) and isinstance(logprob, int | float) and not math.isnan(logprob):
        return token, float(logprob)
    return None


def _carrier(logprobs: list[TokenLogprob], choice: str) -> dict[str, float] | None:
    """Candidates at the first token outside of thinking that is or begins the choice, with their
    probabilities; none where no alternatives are listed. A token that is given more than once
    counts once, as the likeliest of them."""
    pairs = [_token(entry) for entry in logprobs]
    tokens = [pair[0] if pair else "" for pair in pairs]
    spans = deque(split("".join(tokens)).answers)
    offset = 0
    for entry, pair, token in zip(logprobs, pairs, tokens, strict=True):
        while spans and spans[0][1] <= offset:
            spans.popleft()
        inside = bool(spans) and spans[0][0] <= offset
        offset += len(token)
        word = token.strip().casefold()
        if pair and inside and word and choice.startswith(word):
            top_logprobs = entry.get("top_logprobs")
            top = [_token(item) for item in top_logprobs] if isinstance(top_logprobs, list) else []
            chances: dict[str, float] = {}
            for candidate, logprob in filter(None, [*top, pair] if any(top) else []):
                # A log-prob above 0 is a server's rounding.
                chance = math.exp(min(logprob, 0.0))
                chances[candidate] = max(chance, chances.get(candidate, 0.0))
            return chances
    return None


def _mass(chances: dict[str, float], words: list[str], index: int) -> float:
    """Probability of ``words[index]``: the sum over the tokens that are it or can only begin it.

    A word need not be one token, and under a forced choice what begins a word becomes it: with
    ``Y`` and ``Yes`` both allowed, leaving out ``Y`` would halve a Yes for no reason.
    """
    return math.fsum(
        chance
        for token, chance in chances.items()
        if _begins(token.strip().casefold(), words) == index
    )


def _begins(token: str, words: list[str]) -> int | None:
    """Which of two words a token is or begins; None where neither or both could follow."""
    if token in words:
        return words.index(token)
    indices = [index for index, word in enumerate(words) if token and word.startswith(token)]
    return indices[0] if len(indices) == 1 else None
