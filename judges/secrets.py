"""Keys stay out of files: refuse what looks like one in a config, and blot them out of texts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from experiments.errors import UserError

_WORD = r"(?<![A-Za-z0-9])"
PATTERNS: dict[str, re.Pattern[str]] = {
    "an sk-... API key": re.compile(_WORD + r"sk-[A-Za-z0-9_-]{16,}"),
    "a Hugging Face token": re.compile(_WORD + r"hf_[A-Za-z0-9]{16,}"),
    "a GitHub token": re.compile(_WORD + r"(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}"),
    "an AWS access key": re.compile(_WORD + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    "a Google API key": re.compile(_WORD + r"AIza[A-Za-z0-9_-]{30,}"),
    "a Slack token": re.compile(_WORD + r"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    "a bearer token": re.compile(r"(?i)\bbearer\s+[A-Za-z0-9._~+/-]{16,}=*"),
    "a private key": re.compile(
        # to its last line, or as far as it goes where that is missing
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
        r"(?:(?:[^-]++|-(?!----))*+-----END [A-Z ]{0,40}PRIVATE KEY-----"
        r"|(?:(?:\\[nr]|\s)*+[A-Za-z0-9+/=]{32,}+)*+)"
    ),
    "a URL with a password": re.compile(
        r"(?<=://)[^\s/?#@:]*:[^\s/?#@]+(?=@)"  # only the user:password part
    ),
}
"""What a text looks like when it holds a key -> how to find it. Each match is the secret."""

BLOT = "***"
SHORTEST_KNOWN = 4
"""A known value shorter than this is no secret, and blotting it out would riddle every text."""


def refuse_secrets(texts: Iterable[tuple[str, str]]) -> None:
    """Check (where, text) pairs before any of them is written anywhere.

    Raises:
        UserError: a text looks like it holds a key; says where, never what.
    """
    for where, text in texts:
        for kind, pattern in PATTERNS.items():
            if pattern.search(text):
                raise UserError(
                    f"{where} looks like it holds {kind}, and configs are written to files that "
                    "others read. Put the value in an environment variable, for example `export "
                    "JUDGE_API_KEY=...`, and give only its name: "
                    "judge.endpoint.api_key_env=JUDGE_API_KEY."
                )


def redact(text: str, known: Iterable[str] = ()) -> str:
    """``text`` with the known values and everything that looks like a key replaced by ``***``."""
    # Longest first, so that a value inside another leaves no rest of the longer one.
    for value in sorted(known, key=len, reverse=True):
        if len(value) >= SHORTEST_KNOWN:
            text = text.replace(value, BLOT)
    for pattern in PATTERNS.values():
        text = pattern.sub(BLOT, text)
    return text
