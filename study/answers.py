"""Separates a model's answer from its thinking: neither answers nor grades are read in thoughts.

    >>> answer_of("<think>two and two</think> 4")
    '4'
    >>> answer_of("<think>two and") is None  # cut off while it thought: no answer
    True

Models mark their thinking in many ways; ``OPENERS`` has an example of each kind. A block ends with
the closing mark of its own kind, so that a thought which quotes another mark stays a thought.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

OPENERS = {
    "<think>": "</think>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|channel|>analysis<|message|>": "<|end|>",
}
"""How each kind of thinking begins and ends. Any case counts; a tag may have blanks, attributes and
a prefix such as ``seed:``, and be spelled ``thinking`` or ``thoughts``."""

NAMES = r"thoughts?|think(?:ing)?|reasoning"
_BAR = "[|｜]"  # noqa: RUF001 - DeepSeek writes its tokens with a full-width bar
# Every branch begins with a plain character, which lets the engine pass over all others at once.
_MARK = re.compile(
    rf"<\s*+(?P<tag_close>/?+)\s*+(?:[a-z0-9_]{{1,32}}+:)?+(?P<tag>{NAMES})"
    r"(?:\s[^<>]{0,400})?+(?<!/)>"
    r"|\[\s*+(?P<square_close>/?+)\s*+(?P<square>think)\s*+\](?!\()"  # a link is none
    r"|◁\s*+(?P<wedge_close>/?+)\s*+(?P<wedge>think)\s*+▷"
    rf"|<{_BAR}\s*+(?:begin|start|(?P<token_close>end))_of_(?P<token>{NAMES})\s*+{_BAR}>"
    rf"|<(?P<beside>{_BAR}\s*+(?:begin|end)_of_solution\s*+{_BAR}>)"
    r"|<(?:\|start\|>[^<|]{0,64}<)?+\|channel\|>\s*+(?:(?P<known>analysis|commentary|final)\b"
    r"(?:[^<]{0,200}(?:<\|constrain\|>[^<]{0,64})?<\|message\|>)?"
    r"|(?P<named>[\w.-]{1,64}+)[^<]{0,200}(?:<\|constrain\|>[^<]{0,64})?<\|message\|>)"
    r"|<(?P<turn>\|start\|>[^<|]{0,64}<\|message\|>)"
    r"|<(?P<end>\|(?:end|return|call)\|>)",
    re.IGNORECASE,
)
_KINDS = ("tag", "square", "wedge", "token")
_BARE = "analysis", "assistantfinal"
"""What is left of Harmony's marks where special tokens were left out in decoding."""


@dataclass
class Split:
    """Where in a text the answer stands, as half-open (start, end) spans."""

    answers: list[tuple[int, int]] = field(default_factory=list)
    """Outside of any thinking."""
    last: list[tuple[int, int]] = field(default_factory=list)
    """Those of them behind the last thinking."""
    closed: bool = True
    """Whether the last block of thinking was closed; also True where there is none."""


def split(text: str) -> Split:
    """Tell answer and thinking apart.

    Everything before a closing mark that nothing opened is thinking: some chat templates open it
    in the prompt. Of Harmony's channels only ``final`` is an answer, and where there is one,
    nothing outside of it is.
    """
    parts = Split()
    start = _bare_final(text)
    block, final, inside = "", False, True  # the kind of thinking that is open; Harmony's state

    def answer_to(end: int) -> None:
        if inside and start < end:
            parts.answers.append((start, end))
            parts.last.append((start, end))

    for mark in _MARK.finditer(text, start):
        kind = next((name for name in _KINDS if mark[name]), "")
        channel = (mark["known"] or mark["named"] or "").lower()
        if kind:
            block_kind = f"{kind} {mark[kind][:4].lower()}"
            if not mark[f"{kind}_close"]:
                if not block:
                    answer_to(mark.start())
                    parts.last.clear()
                    block = block_kind
            elif block in ("", block_kind):
                if not block:
                    parts.answers.clear()
                parts.last.clear()
                block, start = "", mark.end()
        elif block and block != "channel":
            continue
        elif channel or mark["turn"]:
            if not block:
                answer_to(mark.start())
            if channel == "final" and not final:
                parts.answers.clear()
                parts.last.clear()
                final = True
            if channel and channel != "final":
                parts.last.clear()
            block = "channel" if channel and channel != "final" else ""
            inside = channel == "final" or not final
            start = mark.end()
        else:  # the end of a turn, or what wraps an answer
            if not block:
                answer_to(mark.start())
            if mark["end"]:
                block, inside = "", not final
            start = mark.end()
    if not block:
        answer_to(len(text))
    parts.closed = not block
    return parts


def _bare_final(text: str) -> int:
    """Where the final answer begins after Harmony without its marks, ``analysis...assistantfinal``;
    0 in any other text. Thinking that was cut off looks like ordinary text there."""
    opening, final = _BARE
    if not text.lstrip().startswith(opening):
        return 0
    place = text.rfind(final)
    return place + len(final) if place >= 0 else 0


def answer_of(completion: str) -> str | None:
    """What a policy answered: the text after the last closed thinking block. None where thinking
    was opened and never closed: a truncated thinker has not answered."""
    parts = split(completion)
    if not parts.closed:
        return None
    return "".join(completion[start:end] for start, end in parts.last).strip()


def strip_thinking(text: str) -> tuple[str, str, bool]:
    """Split a reply: the answer (stripped), the thinking without its marks (stripped), and False
    where thinking was opened and never closed; what follows that opening is thinking."""
    parts = split(text)
    answer = "".join(text[start:end] for start, end in parts.answers)
    starts, ends = [start for start, _ in parts.answers], [end for _, end in parts.answers]
    gaps = zip([0, *ends], [*starts, len(text)], strict=True)
    thoughts = (_MARK.sub("", text[start:end]).strip() for start, end in gaps)
    return answer.strip(), "\n".join(filter(None, thoughts)), parts.closed


def opened(text: str) -> str:
    """The mark at the end of a prompt that opens the thinking of the reply, if there is one."""
    text = text.rstrip()
    if split(text).closed:
        return ""
    marks = [mark for mark in _MARK.finditer(text) if mark.end() == len(text)]
    return marks[-1][0] if marks else ""
