"""The words of the built-in task: what prompts and the teacher's answers are made of."""

from __future__ import annotations

from study.system.tables import table

_WORDS = table(__file__)
CATEGORIES = {name: words.split() for name, words in _WORDS["categories"].items()}
CATEGORY_OF = {word: name for name, words in CATEGORIES.items() for word in words}
NUMBERS = {2: "two", 3: "three", 4: "four"}
ASKS, PURPOSES, FORBIDS = _WORDS["asks"], _WORDS["purposes"], _WORDS["forbids"]
ORDERS, FORMATS = _WORDS["orders"], _WORDS["formats"]
FORMAT_CRITERIA = _WORDS["format_criteria"]
TEACHER = _WORDS["teacher"]
"""What `study.tasks.teacher` says around the items."""
