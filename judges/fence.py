"""Puts texts written by others into a judge's prompt as data, and finds them there again.

A fenced text stands between two lines that carry a hash of it, so a text cannot hold its own
fence, and the same text always gives the same prompt, which keeps store keys stable. Fence lines
and chat-template tokens inside the text get a backslash, which is exactly undone on the way back.
"""

from __future__ import annotations

import hashlib
import re

# "<<<word" could open or close a fence; "<|word" could end the judge's turn and forge another.
# DeepSeek writes its template tokens with a full-width bar.
_FORGED = re.compile(r"(<<<(?=\\*\s*/?\s*\w)|<[|｜](?=\\*\w))(\\*)")  # noqa: RUF001
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


def _nonce(kind: str, text: str) -> str:
    content = f"{kind}\0{text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=8, person=b"judge-fence").hexdigest()


def _neutralised(text: str) -> str:
    return _FORGED.sub(r"\1\2\\", text)


def _restored(text: str) -> str:
    return _FORGED.sub(lambda found: found[1] + found[2][1:], text)


def fence(kind: str, text: str) -> str:
    """The text between two lines that name its kind and its hash.

    Raises:
        ValueError: the kind is not a lower-case word.
    """
    if not re.fullmatch("[a-z]+", kind):
        raise ValueError(f"a fence's kind is a lower-case word, not {kind!r}")
    nonce = _nonce(kind, text)
    return f"<<<{kind} {nonce}>>>\n{_neutralised(text)}\n<<</{kind} {nonce}>>>"


def fenced(kind: str, message: str) -> str | None:
    """The first text of this kind that was fenced in a message; None where there is none.

    A fence counts only if the hash fits what it holds.
    """
    for opening in re.finditer(rf"<<<{kind} ([0-9a-f]{{16}})>>>\n", message):
        end = message.find(f"\n<<</{kind} {opening[1]}>>>", opening.end())
        if end >= 0:
            text = _restored(message[opening.end() : end])
            if _nonce(kind, text) == opening[1]:
                return text
    return None


def fill(template: str, **values: str) -> str:
    """Put the values in place of ``{name}``, in one pass: braces in a value mean nothing.

    Raises:
        KeyError: a placeholder that got no value.
    """
    return _PLACEHOLDER.sub(lambda found: values[found[1]], template)
