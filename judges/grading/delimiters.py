"""Puts texts written by others into a judge's prompt as data, and finds them there again.

A delimited text stands between two lines that carry a hash of it, so a text cannot hold its own
delimiters, and the same text always gives the same prompt, which keeps store keys stable. Marks
that count in a judge's turn get a backslash in the text, so that a judge who quotes it says no
verdict, thinks no thought and ends no turn; on the way back this is exactly undone. Where the
judge's own tokenizer is known, its special tokens count as marks too. A text without marks is shown
letter by letter.

    undelimit("answer", f"Grade this:\\n{delimit('answer', text)}") == text
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial

from judges.grading.marks import FAMILY_MARKS
from judges.grading.spelling import HEADING, MARKS, SPACE

_SAID = r"(?:(?:not[\s_-]*+)?+(?:met|present)|true|false|yes|no)"
"""Words of any rubric vocabulary."""
_BESIDE = r"\s\\" + re.sub("[\"']", "", MARKS)
_AROUND = rf"[{_BESIDE}\"']"
"""What may stand around such a word, without and with quotation marks."""
_ENDED = rf"[{MARKS}]*+(?:\s|\Z)"
"""Behind such a word: what ends its line, or could where a quote is wrapped in another way."""
_KINDS = "answer|prompt|rubric|reference"
_BRACKETED = (
    r"(?:\s*+(?:-?[0-9]{1,3}(?:\.[0-9]{1,15})?|[a-z]{1,2}(?:\s*+>\s*+[a-z]{1,2})*+|tie)\s*+\])"
)
"""The rest of a verdict in brackets: a number, the names of answers, or a tie."""
_LISTED = rf"[{_BESIDE}']*+{_SAID}[{_BESIDE}']*+"
"""A word in a list by place, without its quotation marks."""
_MARKS = (
    # Every branch begins with a plain character, which lets the engine pass over all others.
    # What could be a delimiter line.
    rf"<<<(?=\\*+\s*+/?+\s*+(?:(?:{_KINDS})|[a-z]++\s++[0-9a-f]{{16}}))"
    rf"|{FAMILY_MARKS}"
    # A verdict in double brackets, or in brackets to which those around a quote are the others.
    rf"|\[(?=\\*+\[{_BRACKETED}(?:\]|[\r\n]|\Z))"
    rf"|\[(?<![^\r\n].)(?=\\*+{_BRACKETED}(?:\]|[\r\n]|\Z))"
    # One by place.
    rf"|\[(?=\\*+[^\[\]]*?(?:\"{_LISTED}\"|\b(?:true|false))\s*+[,\]])"
    # A line of such words, to which those around a quote may be the brackets.
    rf"|\b(?:(?:true|false)|{_SAID}[{_BESIDE}']*+\")\s*+,"
    rf"(?=\\*+\s*+(?:(?:\"{_LISTED}\"|true|false){SPACE}*+(?:[],\r\n]|\Z)|\"{_LISTED}\Z))",
    # A verdict by criterion: in JSON, in a wreck of it, and on a line.
    rf"[0-9](?:(?<!\w.)|(?<={HEADING}.))[0-9]{{0,2}}+[\s\"'*]*+"
    rf"(?=\\*+(?::\s*+[\"']{_AROUND}*+{_SAID}[{_BESIDE}]*+[\"']"
    rf"|:{_AROUND}*+{_SAID}(?:[{MARKS}]*?[,}}\]]|{_ENDED})"
    rf"|[=.)](?:\s|[{MARKS}])*+{_SAID}{_ENDED}))",
    # Any other score in JSON.
    r"[\"'][\w -]{0,24}?(?:score|verdict|grade|rating|reward|winner|ranking|judge?ment)s?[\"']\s*+"
    r"(?=\\*+:)",
)
_FORGED = [re.compile(rf"({mark})(\\*)", re.IGNORECASE | re.DOTALL) for mark in _MARKS]
"""What is neutralised, kind after kind; undone in the opposite order, each is undone exactly."""
_WITH_BACKSLASH = r"\1\2\\"
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_OPENING = re.compile(r"<<<([a-z]+) ([0-9a-f]{16})>>>\n")
_CLOSING = re.compile(r"\n<<</([a-z]+) ([0-9a-f]{16})>>>")
_TRIES = 16
"""Delimiters with a wrong hash that are looked into before a message counts as having none."""
LONGEST = 64
"""Characters of a special token that are compared; what begins as a longer one counts as it."""


def _nonce(kind: str, text: str) -> str:
    content = f"{kind}\0{text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=8, person=b"judge-fence").hexdigest()


def can_escape(token: str) -> bool:
    """Whether a backslash takes a special token apart: it has two characters, and not all of them
    are blank. One that holds a backslash itself could be made by another."""
    return len(token) > 1 and "\\" not in token and not token.isspace()


@lru_cache(maxsize=64)
def _own(tokens: tuple[str, ...]) -> re.Pattern[str] | None:
    """The pattern of the special tokens that the marks of model families leave whole."""
    whole = [
        token
        for token in sorted(set(filter(can_escape, tokens)))
        if any(token in _FORGED[0].sub(_WITH_BACKSLASH, text) for text in (token, f"a{token}a"))
    ]
    by_first: defaultdict[str, set[str]] = defaultdict(set)
    for token in whole:
        by_first[token[0]].add(token[1:LONGEST])
    marks = [re.escape(first) + f"(?={_any_of(rests)})" for first, rests in by_first.items()]
    return re.compile(f"({'|'.join(marks)})(\\\\*)") if marks else None


def _any_of(rests: Iterable[str]) -> str:
    """Pattern of texts with any number of backslashes before each character; as a tree, so that it
    tries each character once, however many texts there are."""
    by_first: defaultdict[str, set[str]] = defaultdict(set)
    for rest in rests:
        if not rest:
            return ""
        by_first[rest[0]].add(rest[1:])
    branches = [re.escape(first) + _any_of(more) for first, more in sorted(by_first.items())]
    return rf"\\*+(?:{'|'.join(branches)})"


def delimit(kind: str, text: str) -> str:
    """The text between two lines that name its kind and its hash.
    Raises ValueError: the kind is not a lower-case word."""
    if not re.fullmatch("[a-z]+", kind):
        raise ValueError(f"the kind of delimiters is a lower-case word, not {kind!r}")
    nonce = _nonce(kind, text)
    for forged in _FORGED:
        text = forged.sub(_WITH_BACKSLASH, text)
    return f"<<<{kind} {nonce}>>>\n{text}\n<<</{kind} {nonce}>>>"


def escape_tokens(message: str, tokens: tuple[str, ...]) -> str:
    """A message with a backslash in each of ``tokens``, the special tokens of the judge's own
    tokenizer, that stands between delimiters."""
    own = _own(tokens)
    return message if own is None else inside(message, partial(own.sub, _WITH_BACKSLASH))


def inside(message: str, change: Callable[[str], str]) -> str:
    """A message with each text that stands between delimiters changed; what stands outside is ours
    and stays."""
    parts, position = [], 0
    for opening, closing in _outermost(message):
        text = message[opening.end() : closing.start()]
        parts += [message[position : opening.end()], change(text)]
        position = closing.start()
    return "".join([*parts, message[position:]])


def _spans(message: str) -> list[tuple[re.Match[str], re.Match[str]]]:
    """(opening, closing) of each pair of delimiter lines that belong together, whatever their hash;
    a pair inside of another is listed too."""
    closings: defaultdict[tuple[str, str], list[re.Match[str]]] = defaultdict(list)
    for closing in _CLOSING.finditer(message):
        closings[closing[1], closing[2]].append(closing)
    pairs = []
    for opening in _OPENING.finditer(message):
        fitting = closings[opening[1], opening[2]]
        place = bisect_left(fitting, opening.end(), key=re.Match.start)
        if place < len(fitting):
            pairs.append((opening, fitting[place]))
    return pairs


def undelimit(kind: str, message: str, tokens: tuple[str, ...] = ()) -> str | None:
    """The first delimited text of this kind in a message, in which ``tokens`` have been escaped;
    None where there is none.

    Delimiters count only if their hash fits what they hold.
    """
    pairs = [pair for pair in _spans(message) if pair[0][1] == kind]
    own = _own(tokens)
    for opening, closing in pairs[:_TRIES]:
        text = message[opening.end() : closing.start()]
        for forged in reversed([*_FORGED, *([own] if own else [])]):
            text = forged.sub(lambda mark: mark[1] + mark[2][1:], text)
        if _nonce(kind, text) == opening[2]:
            return text
    return None


def _outermost(message: str) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """Those pairs of delimiter lines that stand inside of no other."""
    position = 0
    for opening, closing in _spans(message):
        if opening.start() >= position:
            position = closing.end()
            yield opening, closing


def without_delimited(message: str) -> str:
    """A message without its delimiters and what stands between them."""
    parts, position = [], 0
    for opening, closing in _outermost(message):
        parts.append(message[position : opening.start()])
        position = closing.end()
    return "".join([*parts, message[position:]])


def fill(template: str, **values: str) -> str:
    """Put the values in place of ``{name}``, in one pass: braces in a value mean nothing.
    Raises KeyError: a placeholder that got no value."""
    return _PLACEHOLDER.sub(lambda name: values[name[1]], template)


def placeholders(template: str) -> list[str]:
    """The names in braces that `fill` would fill, in their order."""
    return _PLACEHOLDER.findall(template)
