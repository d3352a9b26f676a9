"""Keeps API keys out of files: refuses a config that holds one, and blots them out of texts.

Three readers look for them. A *text* is searched for what keys look like. In an *argument* or a
command line a name such as ``api_key`` gives its value away, and so it does in a *config*, where
the name is a key of a table (`study.system.secret_names`). What comes from the environment is
refused by where it comes from (`refuse_variable`). Every pattern is linear in the text.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from study.errors import UserError
from study.system.known_keys import BLOT as BLOT
from study.system.known_keys import blot_key
from study.system.secret_names import (
    FIELDS,
    FROM_ENVIRONMENT,
    LONGEST_NAME,
    decoded,
    has_key_in_path,
    has_user,
    is_scheme_with_key,
    is_secret_name,
    is_secret_value,
    is_secret_variable,
    is_variable_name,
    looks_drawn,
    may_hold_key,
    secret_in_command,
    secret_parameter,
    unfit_argument,
)
from study.system.tables import table

_TABLES = table(__file__)
PATTERNS = {kind: re.compile(pattern) for kind, pattern in _TABLES["patterns"].items()}
"""What a text looks like when it holds a key -> how to find it. Each match is the secret."""
MARKS: dict[str, list[str]] = _TABLES["marks"]
"""Kind of key -> what a text must hold before its pattern is tried, which costs more. The other
kinds of `PATTERNS` belong in configs; a reply may well talk about an address with a password."""
SHORTEST_KNOWN = 4
"""A known value shorter than this is not a secret, and blotting it out would riddle every text."""
REMEDY = (
    "Put the value in an environment variable, for example `export JUDGE_API_KEY=...`, and give "
    "only its name: judge.endpoint.api_key_env=JUDGE_API_KEY."
)
NOTIFY_REMEDY = (
    "sweep.notify takes a program, then plain words and local paths. Put the command into an"
    " executable file and type sweep.notify=./tell-me.sh, or into a variable: `export"
    " NOTIFY='...'` and sweep.notify_env=NOTIFY."
)
COMMAND_REMEDY = (
    "Let the shell insert the value: `export JUDGE_API_KEY=...` and $JUDGE_API_KEY in the command,"
    " or put the command into a script and give its path."
)
ADDRESS_REMEDY = (
    "Leave it out of the address. For a model, `export JUDGE_API_KEY=...` and type "
    "judge.endpoint.api_key_env=JUDGE_API_KEY; for MLflow, type MLFLOW_TRACKING_TOKEN=... before "
    "the command; for s3, export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... If a server takes"
    " its key only in its path, put your own proxy before it and give the proxy's address."
)

_VALUE = (
    r"""["'\[]?(?!\$|(?:bearer|basic)\s{1,9}\$|null\b|none\b|\*\*\*|\.\.\.|true\b|false\b|--)"""
    r"""[^\s"',;}\])&]+"""
)
_ASSIGNED = re.compile(
    r"(?i)(?:api[-_. ]?key|(?:access|auth|api|hf|bearer|refresh|session|security)[-_.]?token"
    r"|passw(?:or)?d|passphrase|authorization|secret(?:[-_.]?key)?"
    r"|(?:access|private|subscription)[-_.]?key|cookie|credential)"
    r"s?(?:[-_]?v?[0-9]{1,9})?[\"']?\s{0,9}[:=]\s{0,9}"
    + _VALUE
    + r"|(?i:--[a-z-]{0,40}?(?:api-?key|token|password|secret)[\s,=\"']{1,9})"
    + _VALUE
)
"""A secret name with a value behind it, in an argument or a command line."""
_FROM_ENVIRONMENT = re.compile(r"\boc\s*\.\s*(?:env\s*:\s*([^,}]*)|(?!env\b)[a-z]|\$\{)")
"""What looks a variable up, and its name; empty where that is put together by OmegaConf."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def refuse_secrets(texts: Iterable[tuple[str, str]]) -> None:
    """Check (where, text) pairs before any of them is written anywhere.
    Raises UserError: a text looks like it holds a key; says where, never what."""
    for where, text in texts:
        _refuse_text(where, text)


def _refuse_text(where: str, text: str, name: str = "") -> None:
    if kind := _secret_in(text):
        _refuse(where, kind, name)


@functools.lru_cache(4096)  # the cells of a sweep have nearly all of their texts in common
def _secret_in(text: str) -> str:
    """What kind of key ``text`` looks like it holds; empty where it does not."""
    for form in decoded(text):
        for kind, pattern in _tried(form):
            if pattern.search(form):
                return kind
    parameter = secret_parameter(text)
    return f"an address with a secret ({parameter}=)" if parameter else ""


def _tried(text: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Kinds of key and their patterns, without those of which ``text`` has no mark. Beyond ASCII
    a letter may have another capital than the pattern's, so there all are tried."""
    lowered, beyond_ascii = text.lower(), not text.isascii()
    for kind, pattern in PATTERNS.items():
        if beyond_ascii or any(mark in lowered for mark in MARKS.get(kind, ("",))):
            yield kind, pattern


def refuse_arguments(arguments: Sequence[str]) -> None:
    """Check a command line before anything reads it.
    Raises UserError: an argument looks like it holds a key; says which, never what."""
    before = ""
    for number, text in enumerate(arguments, 1):
        where = f"argument {number}"
        key, equals, value = text.partition("=")
        name = key.rpartition(".")[2].lstrip("+~")
        _refuse_text(where, text, name if equals else "")
        if equals and name in FIELDS["variables"]:
            for variable in value.strip("[]\"' ").split(","):
                _check_variable(f"{where} ({key.lstrip('+~')})", variable.strip("\"' "))
        elif _ASSIGNED.search(text) or is_secret_value(
            name, value.strip("\"' "), sent="extra_body" in key
        ):
            _refuse(where, "a secret behind its name", name)
        flag, _, behind = text.partition(" ")
        if flag.startswith("-") and behind.strip() and is_secret_name(flag, sent=True):
            _refuse(where, "a secret behind its name")
        if equals and (name == "env_copy" or "${" in value):
            _refuse_variables(key.strip().lstrip("+~"), value)
        if equals:
            _refuse_place(where, name, value.strip("\"' "))
        elif before.endswith("=") and text[:1] != "-" and may_hold_key(before[:-1]):
            raise UserError(
                f"{where} stands behind {before[:LONGEST_NAME]} with a space between, so it is not"
                " read as its value (it is not shown, for it may be a secret). Type"
                f" {before[:LONGEST_NAME]}VALUE without the space."
            )
        elif before.startswith("-") and is_secret_name(before, sent=True):
            _refuse(where, "a secret behind its name")
        before = text


def refuse_config(data: Any, at: str = "") -> None:
    """Check a whole config, as plain nested data, before any of it is written.
    Raises UserError: with the key under which a secret stands; the value is not shown."""
    _walk(data, at, False, "")


def refuse_variable(where: str, variable: str) -> None:
    """Refuse ``${oc.env:VARIABLE}`` at the full key ``where``, whose value would be written into
    config.yaml, unless the field is made for values that a machine gives it.
    Raises UserError: with the fields that are."""
    field = re.sub(r"\[[0-9]+\]|\.[0-9]+(?=\.|$)", "", where)
    plain = _VARIABLE.fullmatch(variable) is not None and not is_secret_variable(variable)
    if field in FROM_ENVIRONMENT and plain:
        return
    at = "A choice of presets" if where in ("", "_dummy_") else where
    raise UserError(
        f"{at} takes a value from the environment, which may be a key and would be written into"
        f" files that others read. ${{oc.env:NAME}} is legal only in"
        f" {', '.join(FROM_ENVIRONMENT)}, with one name that is not a key's. Type the value"
        " itself, or for a key the name of its variable: judge.endpoint.api_key_env=NAME."
    )


def _walk(value: Any, where: str, sent: bool, name: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            below = f"{where}.{key}" if where else str(key)
            refuse_secrets([(f"a key of {where or 'the config'}", str(key))])
            _walk(item, below, sent or key in FIELDS["sent"], str(key))
        # such as {name: X-Api-Key, value: ...}
        called = [str(value[key]) for key in ("name", "key", "header", "field") if key in value]
        for key in ("value", "content"):
            if value.get(key) and any(is_secret_name(name, sent=True) for name in called):
                _refuse(f"{where}.{key}", "a secret behind its name")
    elif isinstance(value, list | tuple):
        before = ""
        for place, item in enumerate(value):
            _walk(item, f"{where}.{place}", sent, name)
            flag = str(item).partition("=")[0] if isinstance(item, str) else ""
            if flag.startswith("-") and is_secret_name(flag):
                _refuse(f"{where}.{place}", "a secret on a command line")
            if sent and is_secret_name(before, sent=True) and not _is_reference(str(item)):
                _refuse(f"{where}.{place}", "a secret behind its name")
            before = item if isinstance(item, str) else ""
        texts = [str(item) for item in value]
        if name == "extra" and (kind := secret_in_command(shlex.join(texts))):
            _refuse(where, kind, name)
    elif value is not None and not isinstance(value, bool):
        text = str(value)
        _refuse_text(where, text, name)
        if name in FIELDS["variables"]:
            _check_variable(where, text)
        elif text.strip() and is_secret_value(name, text, sent) and not _is_reference(text):
            _refuse(where, "a secret under this name")
        elif sent and (is_scheme_with_key(text) or _is_drawn_header(where, text)):
            _refuse(where, "a secret of a header")
        elif isinstance(value, str):
            _refuse_place(where, "setup" if ".slurm.more." in f".{where}" else name, text)
            if (sent or ".serve.extra" in where) and _ASSIGNED.search(text):
                _refuse(where, "a secret behind its name")
        if ".env_set." in f".{where}" and is_secret_variable(name, text):
            _refuse(where, "a secret under this name")
        _refuse_variables(where, text)


def _is_drawn_header(where: str, text: str) -> bool:
    """Whether the text of a header, whatever its name is, looks like a key."""
    return "headers." in where and looks_drawn(text) and "://" not in text


def _refuse_variables(where: str, text: str) -> None:
    if "env_copy" in where:
        refuse_variable(where, text)
    looked_up = "${" in text and re.search(r"\boc\s*\.\s*(?:env|decode|\$)", text)
    for variable in _FROM_ENVIRONMENT.findall(text) if looked_up else ():
        refuse_variable(where, variable.strip().strip("\"'"))


def _refuse_place(where: str, name: str, text: str) -> None:
    """Refuse what a command line or an address holds, where the field ``name`` is one."""
    commands, addresses = FIELDS["commands"], (*FIELDS["addresses"], "endpoint")
    if name == "notify" and (place := unfit_argument(text)):
        which = "its program" if place < 0 else f"its argument {place}"
        _refuse(where, f"a secret in a command ({which})", name)
    if name in (*commands, *addresses) and _ASSIGNED.search(text):
        _refuse(where, "a secret behind its name", name)
    if name in commands and (kind := secret_in_command(text)):
        _refuse(where, kind, name)
    if name in addresses and has_user(text, name in FIELDS["web"] or "databricks" in text):
        _refuse(where, "a user or a password before its host", name)
    if name in FIELDS["places"] and has_user(text, alone=False):
        _refuse(where, "a user and a password before its host", "runs_dir")
    if name in addresses and "/" not in text and looks_drawn(text):
        _refuse(where, "a key in place of an address", name)
    if name in addresses and has_key_in_path(text):
        _refuse(where, "an address with a key in its path", name)


def _is_reference(text: str) -> bool:
    """Whether a value only says where the value is."""
    return re.fullmatch(r"null|None|\*\*\*|\$\w+", text.strip()) is not None


def holds_credentials(address: str) -> bool:
    """Whether an address has a password, a token, a secret parameter or a key in its path."""
    forms = decoded(address)
    if any(pattern.search(form) for form in forms for _, pattern in _tried(form)):
        return True
    secret = secret_parameter(address) or has_key_in_path(address)
    return bool(secret) or has_user(address, alone=False)


def _check_variable(where: str, value: str) -> None:
    """What names an environment variable is its name, not the key that the variable holds.
    Raises UserError: without the value."""
    if value in ("", "null", "None") or value in os.environ:
        return
    if not is_variable_name(value):
        raise UserError(
            f"{where} is not the name of an environment variable (letters, digits and _) but looks "
            f"like a key, which is not shown; configs are written to files that others read. "
            f"{REMEDY}"
        )


def _refuse(where: str, kind: str, name: str = "") -> None:
    remedy = REMEDY
    if name == "notify":
        remedy = NOTIFY_REMEDY
    elif name in (*FIELDS["commands"], "extra"):
        remedy = COMMAND_REMEDY
    elif name in (*FIELDS["addresses"], "endpoint", "runs_dir"):
        remedy = ADDRESS_REMEDY
    raise UserError(
        f"{where} looks like it holds {kind}, and configs are written to files that others read. "
        f"{remedy}"
    )


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` with these secrets, however they are written there, and everything that looks like
    a key replaced by ``***``."""
    # Longest first, so that a value inside another leaves no rest of the longer one.
    for value in sorted(secrets, key=len, reverse=True):
        if len(value) >= SHORTEST_KNOWN:
            text = blot_key(text, value)
    for _, pattern in _tried(text):
        text = pattern.sub(BLOT, text)
    return text
