"""The special tokens of a judge's own tokenizer, where the folder of the served model is at hand.

Of a judge that is served elsewhere nothing is known, and its prompts are those of any such judge.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from study.config.schema import Model
from study.system.files import read_json, read_text

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tekken.json",
)
"""Where tokenizers keep their special tokens."""
TEMPLATES = "chat_template.json", "chat_template.jinja", "additional_chat_templates/*.jinja"
"""Where a chat template is kept, if not in ``tokenizer_config.json``."""
_LISTS = "additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"
_TEXT_KEYS = "content", "token_str"
"""Where an object has the text of a token, in Hugging Face's files and in Mistral's."""
_REMEDY = (
    "It lists the special tokens to escape in a judge's prompt. Download the model again, or type"
    " judge.serve.model=FOLDER for a complete one."
)


def folders(model: Model) -> list[Path]:
    """The folders of this machine that hold the tokenizer of the served model, and its adapter's;
    none where the model is computed or its folder is not here."""
    serve = model.serve
    tokenizer = serve.model
    for word, following in itertools.pairwise([*serve.extra, ""]):
        flag, equals, value = word.partition("=")
        if flag == "--tokenizer":
            tokenizer = value if equals else following
    adapter = serve.lora.get(model.endpoint.model, "")
    places = [] if model.computed else [tokenizer, adapter]
    return [Path(place) for place in places if place and Path(place).is_dir()]


def special_tokens(model: Model) -> tuple[str, ...]:
    """What the tokenizer of a served model takes for one token wherever it stands in a text: its
    special tokens, and those among its added ones that its chat template writes.

    Sorted; none where nothing is known. Raises Damaged: a file of the tokenizer is.
    """
    each = [_tokens(folder, _stamps(folder)) for folder in folders(model)]
    return tuple(sorted({token for tokens in each for token in tokens}))


def _paths(folder: Path) -> Iterator[Path]:
    for name in (*FILES, *TEMPLATES):
        yield from sorted(folder.glob(name))


def _stamps(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """What changes when a file of the tokenizer is replaced."""
    states = [(path, path.stat()) for path in _paths(folder)]
    return tuple((str(path), state.st_mtime_ns, state.st_size) for path, state in states)


@lru_cache(maxsize=64)
def _tokens(folder: Path, stamps: tuple[tuple[str, int, int], ...]) -> frozenset[str]:
    """The special tokens of a folder, read once for each state of its files."""
    whole, config, roles, added, tekken = (read_json(folder / name, _REMEDY) for name in FILES)
    by_role = [value for key, value in config.items() if key in _LISTS or key.endswith("_token")]
    special = {*_texts(roles), *_texts(by_role), *_texts(tekken.get("special_tokens"))}
    others = set()
    for entries in (whole.get("added_tokens"), config.get("added_tokens_decoder")):
        for entry in _values(entries):
            flagged = isinstance(entry, dict) and entry.get("special")
            (special if flagged else others).update(_texts(entry))
    special |= {token for token in added if token not in others}
    templates = [*_strings(config.get("chat_template"))]
    templates += _strings(read_json(folder / TEMPLATES[0], _REMEDY))
    for pattern in TEMPLATES[1:]:
        templates += [read_text(path, _REMEDY) for path in sorted(folder.glob(pattern))]
    special |= {token for token in others if any(token in text for text in templates)}
    return frozenset(filter(str.strip, special))


def _values(content: Any) -> list[Any]:
    """What a list or an object holds; nothing of anything else."""
    if isinstance(content, dict):
        return list(content.values())
    return content if isinstance(content, list) else []


def _strings(content: Any) -> Iterator[str]:
    """Every text in what was read from JSON, except for the keys."""
    if isinstance(content, str):
        yield content
    for value in _values(content):
        yield from _strings(value)


def _texts(content: Any) -> Iterator[str]:
    """The tokens in a list or an object of them, each a text or an object with the text in it."""
    if isinstance(content, dict) and not content.keys().isdisjoint(_TEXT_KEYS):
        content = [content.get(key) for key in _TEXT_KEYS]
    if isinstance(content, str):
        yield content
    for value in _values(content):
        yield from _texts(value)
