r"""GSM8K: the number that a text gives as its answer, compared as an exact rational.

The answer is looked for behind the last ``####``, else in the last ``\boxed{}``, else behind the
last "answer is", else it is the last number: the order of the official files, of papers, of chat.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from study.truth.extract import after_answer, first_sentence, last_box
from study.truth.item import Item
from study.truth.score import Score, no_answer, verdict

LONGEST_NUMBER = 400
"""Characters of a number, and its largest exponent."""
_RUN = re.compile(r"(?:(?<![.\d])\.)?\d[\d,.]*(?:[eE][+-]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{2,3})*,\d{3}(?:\.\d*)?", re.ASCII)
_PLAIN = re.compile(r"\d*\.?\d*(?:[eE][+-]?\d{1,3})?", re.ASCII)
_BELOW = re.compile(r"\s?/\s?(-?\d[\d,.]{0,400})", re.ASCII)
_MIXED = re.compile(r" \d{1,9}\s?/\s?\d", re.ASCII)
_PERCENT = re.compile(r"\s?(?:\\?%|percent)")
_SIGN = re.compile(r"(?:^|[^\w)\]}%.])(?:-[$£€]?|[$£€]-)\Z")
_QUANTITY = re.compile(
    r"[^\w=]{0,12}\d[\d.,/ ]{0,400}\W{0,4}(?: (?![a-zA-Z]\b)[A-Za-z]{1,20}\b[ *]{0,4}){0,3}",
    re.ASCII,
)
"""A number alone, or with words behind it that may be its unit; a letter is an unknown."""
_REMARK = re.compile(r"\([^()]{0,300}\)")
_FRACTION = r"\s?(-?[\d.,]{1,40})\s?"
_LATEX = (
    (re.compile(rf"\\[dtc]?frac\s?\{{{_FRACTION}\}}\s?\{{{_FRACTION}\}}"), r" \1/\2"),
    (re.compile(r"\\[dtc]?frac\s?(\d)\s?(\d)"), r" \1/\2"),
    (re.compile(r"\s?(?:\\times|\\cdot|[\u00d7x*])\s?10\s?\^\s?\{?\s?([-+]?\d{1,3})\}?"), r"e\1"),
    (re.compile(r"\{,\}|,\\!"), ","),
    (re.compile(r"\\[!,;: ]"), ""),
    (re.compile(r"[\u2212\u2013](?=[$£€]?[.\d])"), "-"),
)
"""How LaTeX writes numbers, and plain text in its place."""


class Number(NamedTuple):
    """A number of a text, what stood there, and whether a percent sign stood behind it."""

    value: Fraction
    text: str
    percent: bool


def final_number(text: str) -> Number | None:
    """The number that ``text`` gives as its answer, or None."""
    for part in (
        text.rpartition("####")[2] if "####" in text else None,
        last_box(text),
        after_answer(text),
    ):
        if part is not None and (number := _stated(part)) is not None:
            return number
    plain = _REMARK.sub(
        lambda match: " " if re.search(r"[^\W\d_]{2}", match[0]) else match[0], text
    )
    return next(iter(list(numbers(plain))[-1:] or list(numbers(text))[-1:]), None)


def _stated(part: str) -> Number | None:
    """The number of the sentence that ``part`` begins with: the first behind its last equals sign,
    or the quantity that the sentence begins with and explains ("18 = 9*2", "5 dollars = 500
    cents")."""
    sentence = first_sentence(part.strip()[:1000])
    head, equals, _ = sentence.partition("=")
    stated = head if equals and _QUANTITY.fullmatch(head) else sentence.rpartition("=")[2]
    for side in (stated, sentence):
        if (number := next(numbers(side), None)) is not None:
            return number
    return None


def numbers(text: str) -> Iterator[Number]:
    """The numbers of ``text`` from front to back: grouped, decimal, with an exponent, fractions and
    mixed ones; in digits or in LaTeX. What is part of a word is none."""
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    whole: Fraction | None = None
    """What may be the whole part of a mixed number, and has been taken back."""
    done = first = 0
    for start, end in _runs(text):
        before = text[max(0, start - 4) : start]
        if start < done or before[-1:].isalnum() or before[-1:] == "_":
            continue  # the denominator of the last one, or the end of a word
        value = _value(text[start:end])
        first = start if whole is None else first
        negative = _SIGN.search(before) is not None
        if value is not None and (below := _BELOW.match(text, end)):
            spelled = below[1].rstrip(".,")
            divisor = _value(spelled.lstrip("-"))
            value = value / divisor if divisor else None
            negative ^= spelled.startswith("-")
            end = below.start(1) + len(spelled)
        elif value is not None and value.denominator == 1 and _MIXED.match(text, end):
            whole = -value if negative else value
            continue
        if value is not None:
            value = -value if negative else value
            if whole is not None:
                value = whole + (value if whole >= 0 else -value)
            spelled_value = "-" * (value < 0) + text[first:end].lstrip("-")
            yield Number(value, spelled_value, _PERCENT.match(text, end) is not None)
        whole, done = None, end


def _runs(text: str) -> Iterator[tuple[int, int]]:
    """Where numbers stand, half open, without the punctuation behind them. Several commas that do
    not group digits stand between several numbers."""
    for run in _RUN.finditer(text):
        body = run[0].rstrip(".,")
        if body.count(",") < 2 or _GROUPED.fullmatch(body):
            yield run.start(), run.start() + len(body)
            continue
        for part in re.finditer(r"[^,]+", body):
            yield run.start() + part.start(), run.start() + part.end()


def _value(run: str) -> Fraction | None:
    """The number that a run of digits, commas and points spells, or None.

    Commas group thousands, or Indian lakhs; a lone one that groups nothing is a decimal comma.
    """
    if len(run) > LONGEST_NUMBER:
        return None
    run = run.replace(",", "" if _GROUPED.fullmatch(run) else ".")
    if not _PLAIN.fullmatch(run) or abs(int(run.lower().partition("e")[2] or 0)) > LONGEST_NUMBER:
        return None
    return Fraction(run)


def score(item: Item, answer: str) -> Score:
    """Whether the number of ``answer`` is that of a right answer; 25% is 25 and 0.25."""
    number = final_number(answer)
    if number is None:
        return no_answer()
    golds = [gold.value for gold in map(final_number, item.answers) if gold is not None]
    values = {number.value, number.value / 100} if number.percent else {number.value}
    return verdict(any(gold in values for gold in golds), number.text)
