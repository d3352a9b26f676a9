"""VerIF-style labels: checkers in words, tagged [llm] or [rule], and functions that check rules.

A row's ``reward_model.ground_truth`` is JSON text ``{checkers, functions}`` of equal length; the
plain short form has both lists in the row itself. [llm] checkers become criteria for a judge,
[rule] checkers become rules. A checker without a tag is refused: dropping it would change the task
in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from study.errors import UserError
from study.rows import Criterion, Rule

TAG = re.compile(r"\s*\[(\w+)\]\s*(.*)", re.DOTALL)
FUNCTION = "check_following"
WORD_COUNT = """def check_following(instruction, response):
    return {least} <= len(response.split()) <= {most}
"""
"""The one function of rubric rows that name a rule by its tags."""


def checkers(
    record: Mapping[str, Any], where: str, number: int
) -> tuple[tuple[Criterion, ...], tuple[Rule, ...]]:
    """Criteria of one point each, and rules, of the row at place ``number`` of its file; ``where``
    is for messages.
    Raises UserError: no labels, labels that are not JSON, lists that do not fit, or an unknown tag.
    """
    criteria, rules = [], []
    for place, (tag, text, source) in enumerate(labels(record, where)):
        if tag == "llm":
            criteria.append(Criterion(text))
        elif tag == "rule":
            rules.append(rule(number, place, text, source))
        else:
            _refuse(where, f"the checker {text[:60]!r} without the tag [llm] or [rule]")
    return tuple(criteria), tuple(rules)


def rule(number: int, place: int, text: str, source: str) -> Rule:
    """The rule at ``place`` of row ``number``; its category is what stands before the colon."""
    return Rule(f"{number}:{place}", text.partition(":")[0].strip(), text, source)


def plain(value: Any) -> Any:
    """Lists as lists: pandas hands Parquet's over as numpy arrays."""
    return value.tolist() if hasattr(value, "tolist") else value


def labels(record: Mapping[str, Any], where: str) -> list[tuple[str, str, str]]:
    """(tag, text, source) of every checker; the tag is empty where there is none.
    Raises UserError: no labels, labels that are not JSON, or lists that do not fit."""
    texts, functions = lists(record, where)
    labelled = zip(map(TAG.fullmatch, texts), texts, functions, strict=True)
    return [
        (tagged[1], tagged[2].strip(), source) if tagged else ("", text.strip(), source)
        for tagged, text, source in labelled
    ]


def lists(record: Mapping[str, Any], where: str) -> tuple[list[str], list[str]]:
    """Checkers and functions as they stand in a row. Raises UserError: see `labels`."""
    truth: Any = record
    if record.get("checkers") is None:
        model = record.get("reward_model")
        truth = model.get("ground_truth") if isinstance(model, Mapping) else None
        if isinstance(truth, str):
            try:
                truth = json.loads(truth)
            except json.JSONDecodeError as error:
                _refuse(where, f"labels that are not JSON ({error})")
        if not isinstance(truth, Mapping):
            _refuse(where, "no labels")
    both = []
    for key in ("checkers", "functions"):
        value = plain(truth.get(key))
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            _refuse(where, f"{key} that are not a list of text")
        both.append(value)
    if len(both[0]) != len(both[1]):
        _refuse(where, f"{len(both[0])} checkers and {len(both[1])} functions")
    return both[0], both[1]


def tagged_rule(name: str, text: str, points: float, tags: Mapping[str, Any], where: str) -> Rule:
    """The rule of a rubric item whose tags say ``verifier: rule``.
    Raises UserError: another function than word_count_range, or parameters that are not a range."""
    if tags.get("function") != "word_count_range":
        _refuse(where, f"a rubric item for the rule {tags.get('function')!r}", "word_count_range")
    parameters = tags.get("parameters")
    settings = parameters if isinstance(parameters, Mapping) else {}
    least, most = settings.get("min_count", 0), settings.get("max_count")
    most = 10**9 if most is None else most
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in (least, most))
    if not whole or not 0 <= least <= most:
        _refuse(where, f"the word counts {dict(settings)}", "whole min_count <= max_count")
    source = WORD_COUNT.format(least=least, most=most)
    return Rule(name, "word_count_range", text, source, points)


def plain_rules(records: Any, where: str, number: int) -> tuple[Rule, ...]:
    """The rules of the plain short form, ``rules: [{text, source, category?, points?}]``.
    Raises UserError: anything else."""
    rules = []
    for place, item in enumerate(plain(records) or ()):
        texts = item if isinstance(item, Mapping) else {}
        if not all(isinstance(texts.get(key), str) for key in ("text", "source")):
            _refuse(where, f"the rule {str(item)[:60]!r}", "{text, source}, both of them text")
        points = float(texts.get("points") or 1.0)
        category = str(texts.get("category") or "")
        rules.append(Rule(f"{number}:{place}", category, texts["text"], texts["source"], points))
    return tuple(rules)


def _refuse(where: str, problem: str, legal: str = "") -> NoReturn:
    legal = legal or (
        "JSON text in reward_model.ground_truth: {checkers, functions}, two lists of text of equal"
        " length, each checker beginning with [llm] or [rule]"
    )
    raise UserError(f"{where}: found {problem}. Legal is {legal}. Correct or remove the row.")
