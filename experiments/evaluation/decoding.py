"""How an evaluation's answers are decoded, and how a model is run on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
"""One response: its prompt, the response or None, and how it ended."""
Keep = Callable[[Row], None]
"""Takes a row as soon as it is there."""
Turns = Mapping[str, Sequence[dict[str, str]]]
"""Text of a prompt -> its chat turns."""


@dataclass(frozen=True)
class Decoding:
    """How answers are decoded; part of what a file of responses is compared with."""

    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    max_tokens: int = 1280
    seed: int = 0
    thinking: bool | None = None
    """Whether the chat template asks for thinking; null leaves it to the template."""


@dataclass(frozen=True)
class Local:
    """How a model is run on this machine."""

    batch: int = 8
    dtype: str | None = None
    """None takes the run's, else bfloat16 on a GPU and float32 without one."""
    chat_template: str | None = None
    """Jinja text in place of the one that the model or its adapter brings."""


def failed(prompt: str, error: str) -> Row:
    """A missing response, which is not the same as an empty one."""
    return {"prompt": prompt, "response": None, "error": error}
