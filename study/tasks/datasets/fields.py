"""Takes the fields of a record, and refuses a row that lacks one or has it of another kind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from study.tasks.files import refuse, short

FORMS = {
    "gsm8k": "{question, answer}, an answer that ends in #### and a number",
    "math": "{problem, level, type, solution}, a solution with its answer in \\boxed{}",
    "math500": "{problem, solution, answer, subject, level, unique_id}",
    "squad2": "{id, question, answers, is_impossible} in paragraphs of data, or one row a question",
    "hotpotqa": "{_id, question, answer, type, level, supporting_facts, context}",
    "humaneval": "{task_id, prompt, entry_point, canonical_solution, test}",
    "mbpp": "{text, code, task_id, test_setup_code, test_list, challenge_test_list}",
    "mmlu": "{question, subject, choices or A to D, answer}",
    "commonsenseqa": "{id, question, choices, answer or answerKey}",
    "registered": "{problem, answer, type}, type one of math, code, qa",
}
"""What a row of each set looks like."""


def field(
    record: Any,
    key: str,
    kind: type,
    name: str,
    where: str,
    empty: bool = False,
    default: Any = ...,
) -> Any:
    """The value of ``key`` of a row of the set ``name``; ``where`` is file and row. ``default`` is
    that of a field that is missing or null; without one, the field must be there.
    Raises UserError: the row is no object, the field is missing, of another type, or empty where
        ``empty`` does not allow it."""
    form = f"a row of {name} is {FORMS.get(name, FORMS['registered'])}"
    if not isinstance(record, Mapping):
        refuse(where, short(record), form)
    value = record.get(key)
    value = default if value is None else value
    if value is ...:
        columns = ", ".join(map(str, record))
        refuse(where, f"no field {key!r} (it has {short_list(columns)})", form)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        refuse(where, f"{key} that is {short(value)}", form)
    if not empty and kind in (str, list) and not (value.strip() if kind is str else value):
        refuse(where, f"{key} that is empty", form)
    return value


def short_list(columns: str) -> str:
    """Names of columns, cut where they are many."""
    return (columns if len(columns) <= 120 else f"{columns[:117]}...") or "none"


def address(text: str) -> str:
    """16 hex digits of a text without regard to case and spaces."""
    words = " ".join(text.lower().split())
    return hashlib.blake2b(words.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
