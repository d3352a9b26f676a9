r"""MATH: the expression that an answer gives, compared by math-verify in a child that can be ended.

What stands on either side is the answer alone, the last balanced ``\boxed{}``: of a whole solution
math-verify would read one of its other numbers. Signs for degrees, percent and money and the units
in ``\text{}`` are taken off both. What is then the same text needs no child.
"""

from __future__ import annotations

import itertools
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from study.sandbox.calls import Limits, Outcome, Result
from study.sandbox.worker import Broken, Worker
from study.truth.extract import after_answer, first_sentence, last_box
from study.truth.item import Item
from study.truth.numbers import final_number
from study.truth.score import Ending, Score, no_answer, verdict

LONGEST_EXPRESSION = 1000
"""Characters; the longest right answer of MATH has 159."""
DEEPEST = 30
"""Brackets in each other; the parser's time grows out of proportion with them."""
SHORT = 400
"""Characters of a text, or of its last line, that is an expression without a mark of one."""
LIMITS = Limits(cpu_s=2, wall_s=60.0)
_MATHS = re.compile(
    r"\$\$?([^$]{1,1000})\$"
    r"|\\\(((?:[^$\n\\]|\\[^()\[\]]){1,1000})\\\)"
    r"|\\\[((?:[^$\\]|\\[^()\[\]]){1,1000})\\\]"
)
"""Formulas; one does not hold the beginning of another, so that no text is looked through twice."""
_WORDED = re.compile(r"\\(?:text|mbox|mathrm|textbf)\s?\{[^{}]{0,100}\}")
_PROSE = re.compile(r"(?<!\\)\b[A-Za-z][a-z]+\s+[a-z]{2,}")
_SAME = (
    (re.compile(r",\s?\\[!,;:]\s?|\{,\}"), ","),
    (
        re.compile(r"\\(?:left|right|bigl?|bigr?|Bigl?|Bigr?|displaystyle|textstyle)(?![a-zA-Z])"),
        "",
    ),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf)\s?\{"), r"\\text{"),
    (re.compile(r"(?<!\\)\\(?:[!,;:]| (?![a-zA-Z]))|~|\\q?quad(?![a-zA-Z])"), " "),
    (re.compile(r"\^\s?\{?\s?\\circ\s?\}?|\\degree(?![a-zA-Z])|°"), ""),
    (re.compile(r"\\?[%$]|\\text\{\s?\\?%\s?\}"), ""),
    (re.compile(r"[\u2212\u2013]"), "-"),
    (re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])"), r"\\pi"),
)
_UNIT = re.compile(r"(?<=[\d}\s])\s?\\text\{[^{}]{0,60}\}(?:\^\{?\d\}?)?\s*$")
_WORDS = re.compile(
    r"(-?\d[\d,.]*)\s+(?!(?:pi|sqrt|sin|cos|tan|log|ln|or|to|and|mod|choose|million|thousand"
    r"|hundred|dozen|factorial)\b)[A-Za-z]{2,20}(?:\s[A-Za-z]{2,20}){0,3}"
)
"""A number and its unit, which is no word that makes another number of it."""
_BASE = re.compile(r"(?:[A-Za-z]=)?-?\(?[\dA-Za-z.]{1,99}\)?_\{?(\d{1,3})\}?")
"""A number and its base, which math-verify would not read."""
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_NAMED = re.compile(r"\\(?:text|mbox)\s?\{[^{}]*[A-Za-z]{2}[^{}]*\}")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_MIXED = re.compile(r"(-?)(\d{1,9})\s?\\frac\{?(\d{1,9})\}?\s?\{?(\d{1,9})\}?")


def final_expression(text: str) -> str | None:
    """The expression that ``text`` gives, or None: the last box; else the last formula, or all, of
    what stands behind the last "answer is", of a short text, of the last line, unless that is
    prose; else the last number."""
    if (boxed := last_box(text)) is not None:
        return boxed or None
    stated, last_line = after_answer(text), text.strip().rpartition("\n")[2]
    short = text if len(text) <= SHORT else ""
    for part in (first_sentence(stated) if stated else "", short, last_line):
        formulas = [match for match in _MATHS.finditer(part) if not _is_prose(match[0])]
        if formulas:
            return next(filter(None, formulas[-1].groups()))
        part = part.lstrip(" \t\n*:").rstrip(" \t\n*.:")
        if 0 < len(part) <= SHORT and not _is_prose(part):
            return part
    number = final_number(text)
    return number.text if number else None


def _is_prose(text: str) -> bool:
    """Whether words follow each other outside of ``\\text{}``."""
    return _PROSE.search(_WORDED.sub("", text)) is not None


def tidy(expression: str) -> str:
    r"""An expression without what does not count: spacing, ``\left``, signs for degrees, percent
    and money, units behind a number, ``\text{}`` around all of it, commas between thousands."""
    for pattern, plain in _SAME:
        expression = pattern.sub(plain, expression)
    expression = expression.strip().rstrip(".").strip()
    shorter = _UNIT.sub("", expression).strip()
    expression = _TEXT.sub(r"\1", shorter or expression).strip()
    if match := _WORDS.fullmatch(expression):
        expression = match[1]
    if re.fullmatch(r"\([A-Za-z]\)", expression):
        expression = expression[1]
    expression = re.sub(r"(?<=\d) +(?=\d{3}(?!\d))", "", expression)
    if _THOUSANDS.fullmatch(expression):
        expression = expression.replace(",", "")
    if mixed := _MIXED.fullmatch(expression):
        sign, whole, above, below = mixed.groups()
        expression = rf"{sign}\frac{{{int(whole) * int(below) + int(above)}}}{{{below}}}"
    return " ".join(expression.split())


def _squeezed(expression: str) -> str:
    """What two expressions have in common that are the same text; a word has no case."""
    text = re.sub(r"(?<!\d) | (?!\d)", "", expression)
    return text.casefold() if re.fullmatch(r"[A-Za-z]{2,}", text) else text


def _base(expression: str) -> str | None:
    """The base that stands behind a number, or None."""
    based = _BASE.fullmatch(expression.replace(" ", ""))
    return based[1] if based else None


def _depth(expression: str) -> int:
    """How many brackets stand in each other, of any kind."""
    steps = ((mark in "([{") - (mark in ")]}") for mark in expression)
    return max(itertools.accumulate(steps), default=0)


@dataclass(frozen=True)
class Comparison:
    """Right answers and an expression, both tidy, for a child to compare."""

    golds: tuple[str, ...]
    answer: str


def compare(item: Item, answer: str) -> Score | Comparison:
    """The score of ``answer``, or what a child has to compare for it."""
    expression = final_expression(answer)
    if expression is None:
        return no_answer()
    if len(expression) > LONGEST_EXPRESSION or _depth(expression) > DEEPEST:
        detail = f"{len(expression)} characters, brackets {_depth(expression)} deep"
        return Score(False, {}, None, Ending.TOO_LONG, detail)
    mine = tidy(expression)
    golds = tuple(tidy(last_box(gold) or gold) for gold in item.answers)
    if not mine:
        return no_answer()
    if _squeezed(mine) in map(_squeezed, golds):
        return verdict(True, expression)
    if base := _base(mine):
        golds = tuple(gold for gold in golds if _base(gold) == base)
        if not golds:
            return verdict(False, expression)
    if all(_NAMED.fullmatch(gold.strip()) for gold in item.answers):
        return verdict(False, expression)  # math-verify would multiply the letters of a word
    return Comparison(golds, mine)


class Comparer:
    """A process that has math-verify loaded and survives the expressions that it is given.
    Raises Broken: it cannot be started."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        environment = {"PYTHONPATH": root, "PYTHONHASHSEED": "0"}
        self.worker = Worker([sys.executable, "-P", "-m", "study.truth.equations"], environment)
        self.dirty = False

    def call(self, comparison: Comparison) -> Result:
        """``returned`` with whether the two are equal, or why that is unknown.
        Raises Broken: it was killed from outside, or failed."""
        request = {"golds": comparison.golds, "answer": comparison.answer, "cpu_s": LIMITS.cpu_s}
        reply = self.worker.ask(request, LIMITS)
        if reply["end"] == "compared":
            return Result(Outcome.RETURNED, bool(reply["equal"]))
        if reply["end"] == "memory":
            return Result(Outcome.MEMORY)
        code = reply["code"]
        if code == -signal.SIGPROF:
            return Result(Outcome.TIMEOUT, None, f"{LIMITS.cpu_s} s of CPU time")
        if code > 0 or code == -signal.SIGKILL:
            raise Broken(f"math-verify ended with code {code}")
        return Result(Outcome.KILLED, None, f"signal {-code}")

    def close(self) -> None:
        """End it, and the child in it."""
        self.worker.close()


def score(item: Item, answer: str, result: Result) -> Score:
    """The score behind what came of a comparison."""
    expression = final_expression(answer)
    if result.outcome is Outcome.RETURNED:
        return verdict(bool(result.value), expression)
    return Score(False, {}, expression, Ending(result.outcome), result.detail)
