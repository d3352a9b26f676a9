"""SQuAD 2.0 and HotpotQA by their official scores, exact match and token F1.

SQuAD's scorer is the one in `transformers`. HotpotQA's (``hotpot_evaluate_v1.py``) normalises in
the same way and differs in two points: F1 is 0 where one side is yes, no or noanswer and the other
is not, and where a side has no token.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from study.truth.extract import after_answer, first_sentence, last_box
from study.truth.item import Item
from study.truth.score import Score, verdict

_SPAN_END = re.compile(
    r"(?<!\b[A-Za-z])(?<!\b(?:St|Dr|Mr|Ms|Mt|Ft|Lt))(?<!\b(?:Mrs|Gen|Col|Sgt|Rev|Gov|Sen))"
    r"(?<!\b(?:Prof|Capt))\.(?=\s|$|\*|\$)|[!?](?=\s|$|\*|\$)|\n"
)
"""The end of a sentence that gives a name; the point behind an initial or a title is none."""
UNANSWERABLE = "unanswerable"
"""What a text may say in place of nothing, where a question has no answer."""
CLOSED = ("yes", "no", "noanswer")
_LABELLED = re.compile(r"^[\s*_#]{0,8}(?:final\s)?answer[\s*_]{0,4}:[ \t*_]{0,8}", re.I | re.M)


@functools.cache
def _official() -> ModuleType:
    """The scorer's file by itself: the package that it lies in loads torch and scikit-learn, which
    takes five seconds, and the file needs neither."""
    package = find_spec("transformers")
    assert package is not None and package.origin is not None
    path = Path(package.origin).parent / "data" / "metrics" / "squad_metrics.py"
    spec = spec_from_file_location("transformers.data.metrics.squad_metrics", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def normalised(answer: str) -> str:
    """An answer in the form in which both sets compare it."""
    return _official().normalize_answer(answer)


def span(answer: str) -> str:
    """The span that ``answer`` gives: what a box holds, what stands in the line behind the last
    "Answer:", or in the sentence behind the last "answer is", else all of it. Of several candidates
    with a bar between them the first counts: a list of guesses is no answer."""
    labelled = list(_LABELLED.finditer(answer))[-1:]
    if (boxed := last_box(answer)) is not None:
        answer = boxed
    elif labelled:
        answer = answer[labelled[0].end() :].lstrip("\n").partition("\n")[0]
    elif (stated := after_answer(answer)) is not None:
        answer = first_sentence(stated, _SPAN_END)
    return answer.partition("|")[0].strip()


def _best(golds: list[str], predicted: str, f1: Callable[[str, str], float]) -> tuple[float, float]:
    """Exact match and F1 with the gold that is nearest."""
    exact = max(_official().compute_exact(gold, predicted) for gold in golds)
    return float(exact), float(max(f1(gold, predicted) for gold in golds))


def squad(item: Item, answer: str) -> Score:
    """The official exact match and F1; "" and "unanswerable" are "no answer"."""
    normalised, predicted = _official().normalize_answer, span(answer)
    if normalised(predicted) == UNANSWERABLE:
        predicted = ""
    golds = [gold for gold in item.answers if item.answerable and normalised(gold)] or [""]
    exact, f1 = _best(golds, predicted, _official().compute_f1)
    return verdict(exact == 1.0, predicted, exact=exact, f1=f1)


def _hotpot_f1(gold: str, predicted: str) -> float:
    sides = [_official().normalize_answer(text) for text in (gold, predicted)]
    if sides[0] != sides[1] and any(side in CLOSED for side in sides):
        return 0.0
    return float(_official().compute_f1(gold, predicted)) if all(sides) else 0.0


def hotpot(item: Item, answer: str) -> Score:
    """The official exact match and F1."""
    predicted = span(answer)
    exact, f1 = _best(list(item.answers) or [""], predicted, _hotpot_f1)
    return verdict(exact == 1.0, predicted, exact=exact, f1=f1)
