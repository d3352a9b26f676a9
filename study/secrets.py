"""Keeps API keys out of files: refuses a config that holds one, and blots them out of texts.

Three readers look for them. A *text* is searched for what keys look like. In an *argument* or a
command line a name such as ``api_key`` gives its value away, and so it does in a *config*, where
the name is a key of a table. Every pattern is linear in the text.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlsplit

from study.errors import UserError
from study.tables import table

_TABLES = table(__file__)
PATTERNS = {kind: re.compile(pattern) for kind, pattern in _TABLES["patterns"].items()}
"""What a text looks like when it holds a key -> how to find it. Each match is the secret."""
MARKS: dict[str, list[str]] = _TABLES["marks"]
"""Kind of key -> what a text must hold before its pattern is tried, which costs more. The other
kinds of `PATTERNS` belong in configs; a reply may well talk about an address with a password."""
BLOT = "***"
SHORTEST_KNOWN = 4
"""A known value shorter than this is not a secret, and blotting it out would riddle every text."""
LONGEST_NAME = 64
REMEDY = (
    "Put the value in an environment variable, for example `export JUDGE_API_KEY=...`, and give "
    "only its name: judge.endpoint.api_key_env=JUDGE_API_KEY."
)

_VALUE = r"""["'\[]?(?!\$|null\b|none\b|\*\*\*|\.\.\.|true\b|false\b|--)[^\s"',;}\])&]+"""
_ASSIGNED = re.compile(
    r"(?i)(?:api[-_. ]?key|(?:access|auth|api|hf|bearer|refresh|session|security)[-_.]?token"
    r"|passw(?:or)?d|passphrase|authorization|secret(?:[-_.]?key)?"
    r"|(?:access|private|subscription)[-_.]?key|cookie|credentials?)[\"']?\s{0,9}[:=]\s{0,9}"
    + _VALUE
    + r"|(?i:--[a-z-]{0,40}?(?:api-?key|token|password|secret)[\s,=\"']{1,9})"
    + _VALUE
)
"""A secret name with a value behind it, in an argument or a command line."""
_FROM_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:\s*([^,}\s]+)")


def is_secret_name(name: str, sent: bool = False) -> bool:
    """Whether what stands under ``name`` is a secret: a key of a table, a header, a parameter of an
    address, or a ``--flag``. ``sent`` where it stands in an address or in what an endpoint is sent.
    """
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    names = _TABLES["names"]
    return bare.endswith(tuple(names["strong"])) or (sent and bare in names["weak"])


def refuse_secrets(texts: Iterable[tuple[str, str]]) -> None:
    """Check (where, text) pairs before any of them is written anywhere.
    Raises UserError: a text looks like it holds a key; says where, never what."""
    for where, text in texts:
        if kind := _secret_in(text):
            _refuse(where, kind)


@functools.lru_cache(4096)  # the cells of a sweep have nearly all of their texts in common
def _secret_in(text: str) -> str:
    """What kind of key ``text`` looks like it holds; empty where it does not."""
    for form in {text, unquote_plus(text)}:
        for kind, pattern in PATTERNS.items():
            if pattern.search(form):
                return kind
    parameter = _secret_parameter(text)
    return f"an address with a secret ({parameter}=)" if parameter else ""


def refuse_arguments(arguments: Sequence[str]) -> None:
    """Check a command line before anything reads it.
    Raises UserError: an argument looks like it holds a key; says which, never what."""
    for number, text in enumerate(arguments, 1):
        where = f"argument {number}"
        refuse_secrets([(where, text)])
        key, equals, value = text.partition("=")
        if equals and key.endswith("api_key_env"):
            for name in value.strip("[]\"' ").split(","):
                _check_variable(f"{where} ({key.lstrip('+~')})", name.strip("\"' "))
        elif _ASSIGNED.search(text) or (
            value and is_secret_name(key.rpartition(".")[2], "extra_body" in key)
        ):
            _refuse(where, "a secret behind its name")


def refuse_config(data: Any, at: str = "") -> None:
    """Check a whole config, as plain nested data, before any of it is written.
    Raises UserError: with the key under which a secret stands; the value is not shown."""
    _walk(data, at, False, "")


def _walk(value: Any, where: str, sent: bool, name: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            below = f"{where}.{key}" if where else str(key)
            refuse_secrets([(f"a key of {where or 'the config'}", str(key))])
            within = sent or key in ("extra_body", "headers", "extra_headers")
            _walk(item, below, within, str(key))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _walk(item, f"{where}.{place}", sent, name)
            flag = str(item).partition("=")[0] if isinstance(item, str) else ""
            if flag.startswith("-") and is_secret_name(flag):
                _refuse(f"{where}.{place}", "a secret on a command line")
    elif value is not None and not isinstance(value, bool):
        text = str(value)
        refuse_secrets([(where, text)])
        if name == "api_key_env":
            _check_variable(where, text)
        elif text.strip() and is_secret_name(name, sent) and not _is_reference(text):
            _refuse(where, "a secret under this name")
        elif isinstance(value, str) and _is_command(where, sent) and _ASSIGNED.search(text):
            _refuse(where, "a secret behind its name")
        if ".env_set." in f".{where}" and _is_secret_variable(name):
            _refuse(where, "a secret under this name")
        for variable in _FROM_ENVIRONMENT.findall(text):
            if _is_secret_variable(variable):
                _refuse(where, f"the value of the variable {variable[:LONGEST_NAME]}")


def _is_secret_variable(name: str) -> bool:
    return is_secret_name(name) or is_secret_name(name.rpartition("_")[2], sent=True)


def _is_reference(text: str) -> bool:
    """Whether a value only says where the value is."""
    return re.fullmatch(r"null|None|\*\*\*|\$\w+", text.strip()) is not None


def _is_command(where: str, sent: bool) -> bool:
    ends = ("start_command", "notify", "url", "uri")
    return sent or where.endswith(ends) or ".serve.extra" in where


def _secret_parameter(text: str) -> str:
    """The name of a secret parameter of an address in ``text``; empty where there is none."""
    for word in re.findall(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s\"'<>]*", text):
        try:
            parts = urlsplit(word)
        except ValueError:
            continue
        for query in (parts.query, parts.fragment.partition("?")[2] or parts.fragment):
            for name, value in parse_qsl(query.replace(";", "&")):
                if value and not value.startswith("$") and is_secret_name(name, sent=True):
                    return name[:LONGEST_NAME]
    return ""


def holds_credentials(address: str) -> bool:
    """Whether an address has a password, a token or a secret parameter in it."""
    matches = (pattern.search(unquote_plus(address)) for pattern in PATTERNS.values())
    return any(matches) or bool(_secret_parameter(address))


def _check_variable(where: str, value: str) -> None:
    """What names an environment variable is its name, not the key that the variable holds.
    Raises UserError: without the value."""
    if value in ("", "null", "None") or value in os.environ:
        return
    legal = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) and len(value) <= LONGEST_NAME
    looks = any(
        len(word) >= 24 or (len(word) >= 13 and re.search(r"\d", word)) for word in value.split("_")
    )
    if not legal or looks:
        raise UserError(
            f"{where} is not the name of an environment variable (letters, digits and _) but looks "
            f"like a key, which is not shown; configs are written to files that others read. "
            f"{REMEDY}"
        )


def _refuse(where: str, kind: str) -> None:
    raise UserError(
        f"{where} looks like it holds {kind}, and configs are written to files that others read. "
        f"{REMEDY}"
    )


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` with these secrets and everything that looks like a key replaced by ``***``."""
    # Longest first, so that a value inside another leaves no rest of the longer one.
    for value in sorted(secrets, key=len, reverse=True):
        if len(value) >= SHORTEST_KNOWN:
            text = text.replace(value, BLOT)
    for pattern in PATTERNS.values():
        text = pattern.sub(BLOT, text)
    return text
