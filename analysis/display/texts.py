"""The texts of pages, from ``texts.yaml``, and the meaning of words that a reader points at."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from markupsafe import Markup

from study.system.files import read_yaml

TEXTS: dict[str, Any] = read_yaml(Path(__file__).with_name("texts.yaml"))
"""Titles, captions and sentences of the report, with ``{names}`` to be filled in."""
GLOSSARY: dict[str, str] = {word.lower(): meaning for word, meaning in TEXTS["glossary"].items()}
"""Word of the field -> its meaning, which a reader sees who points at it."""
_BLOCK = re.compile(r"<(p|li|figcaption)>(.*?)</\1>", re.DOTALL)
_TAG = re.compile(r"(<[^>]*>)")
_WORDS = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, GLOSSARY))})s?(?![\w=-])", re.IGNORECASE)


def render_text(part: str, name: str, /, **values: Any) -> str:
    """The sentence ``name`` of a part of `TEXTS`, its ``{names}`` filled in."""
    return TEXTS[part][name].format(**values)


def hint(text: str, meaning: str) -> Markup:
    """A text with what is shown to a reader who points at it; the text alone without that."""
    shown = Markup('<abbr title="{}">{}</abbr>').format(meaning, text)
    return shown if meaning else Markup.escape(text)


def explained(html: str) -> Markup:
    """HTML with the meaning of each word of the glossary where it stands first in its paragraphs,
    lists and captions; texts of others stand in none of these without being escaped."""
    seen: set[str] = set()

    def explain(found: re.Match[str]) -> str:
        word = found[1].lower()
        if word in seen:
            return found[0]
        seen.add(word)
        return hint(found[0], GLOSSARY[word])

    def of_block(block: re.Match[str]) -> str:
        parts = _TAG.split(block[2])
        parts[::2] = [_WORDS.sub(explain, text) for text in parts[::2]]
        return f"<{block[1]}>{''.join(parts)}</{block[1]}>"

    return Markup(_BLOCK.sub(of_block, html))
