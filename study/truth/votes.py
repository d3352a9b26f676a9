"""What answers have in common that count as one in a vote, however they are written."""

from __future__ import annotations

import re

from study.truth.mathematics import tidy
from study.truth.numbers import final_number
from study.truth.qa import normalised

_NUMBER = re.compile(
    r"(-?)(\d{1,99}(?:\.\d{1,99})?(?:/\d{1,99})?|\\frac(?:\{\d{1,99}\}|\d)(?:\{\d{1,99}\}|\d))"
)
"""An expression, without blanks, that is a number and nothing else."""


def ballot(dataset: str, domain: str, extracted: str | None) -> str | None:
    """The name under which an answer is counted, from what a `study.truth.Score` extracted of it:
    GSM8K's by the number, spans by SQuAD's normal form, MATH's by the number or, where it is none,
    by the tidy expression; labels and programs as they are. None is no vote."""
    if extracted is None:
        return None
    if dataset == "gsm8k":
        number = final_number(extracted)
        return extracted if number is None else str(number.value)
    if domain == "math":
        return _expression(tidy(extracted).replace(" ", ""))
    if dataset in ("squad2", "hotpotqa"):
        return normalised(extracted)
    return extracted


def _expression(text: str) -> str:
    """An expression without blanks, under one name for each number; a word has no case."""
    if (plain := _NUMBER.fullmatch(text)) and (number := final_number(plain[2])) is not None:
        return str(-number.value if plain[1] else number.value)
    return text.casefold() if len(text) > 1 and text.isalpha() else text
