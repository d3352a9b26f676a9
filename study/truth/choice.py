"""Questions with choices: the one label that an answer gives.

An answer that gives two is no answer; neither is the first capital letter of a sentence a label.
"""

from __future__ import annotations

import re
import string

from study.truth.extract import after_answer, first_sentence, last_box
from study.truth.item import Item
from study.truth.score import Score, no_answer, verdict

_EDGES = string.whitespace + string.punctuation


def chosen(choices: tuple[tuple[str, str], ...], answer: str) -> str | None:
    """The label that ``answer`` gives, or None: looked for in the last box, behind the last "answer
    is" or "answer:", in the last line, and in all of the text. In each of these a label counts that
    stands alone, or first with a mark behind it, or the text of a choice; else the only label that
    stands in it between marks or words. Where several choices are listed in lines of their own, a
    line of the list is no answer, nor is all of the text."""
    boxed, stated = last_box(answer), after_answer(answer)
    last_line = answer.strip().rpartition("\n")[2]
    begin = _beginning(choices)
    labels = {match[1].casefold() for match in begin.finditer(answer)}
    looked = [boxed, first_sentence(stated) if stated else None, last_line, answer]
    if len(labels) > 1:
        looked[2:] = [] if begin.match(last_line) else [last_line]
    for part in looked:
        if part is not None and (label := _label(choices, part)) is not None:
            return label
    return None


def _plain(text: str) -> str:
    """A text without its case and the marks around it; LaTeX's ``\\text{}`` is a mark."""
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s?\{", " ", text)
    return " ".join(text.strip(_EDGES).split()).casefold()


def _names(choices: tuple[tuple[str, str], ...]) -> str:
    """A pattern of the labels."""
    return "|".join(re.escape(label) for label, _ in choices)


def _beginning(choices: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    """A line that begins with a label, in either case, and a mark behind it."""
    names = _names(choices)
    return re.compile(
        rf"^[ \t]{{0,8}}[(\[*_]{{0,4}}((?i:{names}))[*_]{{0,3}}[).:\]](?!\w)", re.MULTILINE
    )


def _label(choices: tuple[tuple[str, str], ...], part: str) -> str | None:
    labels = {label.casefold(): label for label, _ in choices}
    plain = _plain(part)
    if plain in labels:
        return labels[plain]
    same = [label for label, text in choices if _plain(text) == plain]
    if len(same) == 1:
        return same[0]
    names, first = _names(choices), _beginning(choices).match(part.lstrip())
    label_matches = set(re.findall(rf"[(\[*]({names})[)\]*]", part))
    label_matches |= set(re.findall(rf"[(\[]((?i:{names}))[)\]]", part))
    label_matches |= {first[1]} if first else set()
    if not label_matches:
        # an "A" before another word is an article
        behind = r"(?![\w'’-])(?!(?<=[Aa]) (?!is\b|because\b)[a-z])"  # noqa: RUF001
        label_matches = set(re.findall(rf"(?<![\w'’-])({names}){behind}", part))  # noqa: RUF001
        label_matches |= set(re.findall(rf"\b(?i:option|choice) ((?i:{names})){behind}", part))
    candidates = {labels[name.casefold()] for name in label_matches}
    return candidates.pop() if len(candidates) == 1 else None


def score(item: Item, answer: str) -> Score:
    """Whether ``answer`` gives the label of a right choice. ``item.answers`` are labels, or the
    texts of choices."""
    label = chosen(item.choices, answer)
    if label is None:
        return no_answer()
    right = {name for name, text in item.choices if {name, text} & set(item.answers)}
    return verdict(label in right, label)
