"""Counts the tokens of a prompt: by a tokenizer where one is given, else by a rule.

The rule needs no model: up to six ASCII letters or underscores in a row are a token, every other
character that is no space is one, and so is every run of line breaks. Of English it finds more
tokens than the tokenizers of today's models do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from study.errors import UserError
from study.system.files import first_line

RULE = "up to 6 letters, 1 other character, or a run of line breaks"
_TOKEN = re.compile(r"[A-Za-z_]{1,6}|[\r\n]+|[^\sA-Za-z_]")


def by_rule(text: str) -> int:
    """The number of tokens of a text by the rule above."""
    return len(_TOKEN.findall(text))


def by_policy(tokenizer: Any) -> Callable[[str], int]:
    """A counter by the tokenizer of a policy; no special tokens."""
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def by_tokenizer(path: Path) -> Callable[[str], int]:
    """A counter by a ``tokenizer.json``, or by that of a model's folder; no special tokens.
    Raises UserError: there is none, or it cannot be read."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"tokenizer={path} has no tokenizer.json. Give a model's folder, or a tokenizer.json."
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(
            f"tokenizer={path} cannot be read as a tokenizer: {first_line(error)}. Give the"
            " tokenizer.json of another model."
        ) from error

    def count(text: str) -> int:
        sound = text.encode("utf-8", "replace").decode("utf-8")
        return len(tokenizer.encode(sound, add_special_tokens=False).ids)

    return count
