"""Which names, words, addresses and command lines give a secret away, by their form.

A name such as ``api_key`` says that its value is a secret, whatever that looks like. So do the
places where addresses and command lines have them: the user of an address, its parameters, a part
of its path that looks drawn, the flags ``-u`` and ``-H``. All of it is linear in the text.
"""

from __future__ import annotations

import functools
import re
import shlex
import unicodedata
from collections.abc import Iterator
from urllib.parse import SplitResult, parse_qsl, unquote_plus, urlsplit

from study.system.tables import table

_TABLES = table(__file__)
FIELDS: dict[str, list[str]] = _TABLES["fields"]
"""Kind of field -> the last words of the keys of a study that are such fields."""
FROM_ENVIRONMENT: list[str] = _TABLES["environment"]["fields"]
"""Full keys of the fields whose value ``${oc.env:NAME}`` may give."""
_FLAGS = _TABLES["flags"]
_MAY_HOLD_KEYS = frozenset(
    name for kind, names in FIELDS.items() if kind != "places" for name in names
)
LONGEST_NAME = 64
SHORTEST = 8
"""Characters of a value below which it is no secret, unless its name is a strong one."""
DEEPEST = 3
"""How many command lines are looked at inside each other, as ``sh -c '...'`` has them."""
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^\s\"'<>]*")
_USER = re.compile(
    r"(?:[a-z][a-z0-9+.-]{0,30}:(?=[/\\])[/\\]+|[/\\]{2,})?(?P<name>[^/\\?#\s@:\[]*)"
    r"(?P<password>:(?![0-9]{1,5}(?:[/?#]|$))[^@]+)?@",
    re.IGNORECASE,
)
"""What stands before the host of an address, with or without a whole scheme."""
_BOT_TOKEN = re.compile(r"[0-9]{5,20}:\w{8}")
_PAIR = re.compile(r"[^\s:/@]+:[^\s/@]+@[\w.-]+")
"""``user:secret@host`` without a scheme."""
_LOCAL_PATH = re.compile(r"(?:~|\.{1,2})?/(?:[^\s:@?#=\"'\\]| )*|[\w-]+(?:/[\w-][\w.-]*)+")
_PLACE = re.compile(
    r"[a-z0-9+]{1,30}:/{1,4}[\w./:-]{0,200}|(?:file|sqlite):[\w./:-]{0,200}|[a-z]{0,8}"
    r"|[\w.-]{1,60}:[0-9]{1,5}(?:/[\w./-]{0,200})?|[.~]{0,2}/[\w./-]{0,200}|[\w-]{1,60}/[\w./-]{0,200}"
)
_PLAIN_WORD = re.compile(r"-{0,2}[A-Za-z0-9][\w.,@+-]{0,63}")
_VALUE_FLAG = re.compile(r"-[A-Za-z]")
_WORDS = re.compile(r"(?:[A-Z][a-z]{3,11}){2,8}[0-9]{0,2}")
"""A name in camel case."""
_IN_JSON = re.compile(r"\"([\w.-]{1,64})\"\s{0,9}:\s{0,9}\"([^\"]{1,4096})\"")
"""A name and its text in an object of JSON."""
_USER_OF_CURL = re.compile(r"-[A-Za-z]{1,6}u")
"""``-u`` behind other flags of one letter."""
_OPERATOR = re.compile(r"[;&|]$")
_HARMLESS_FLAGS = frozenset("-c -i -m -n -s".split())


@functools.lru_cache(4096)  # the cells of a sweep have the same keys
def is_secret_name(name: str, sent: bool = False) -> bool:
    """Whether what stands under ``name`` is a secret: a key of a table, a header, a parameter of an
    address, or a ``--flag``. ``sent`` where it stands in an address or in what an endpoint is sent.
    """
    bare = _bare(name)
    names = _TABLES["names"]
    strong = tuple(names["strong"])
    if bare.endswith(strong) or bare.removesuffix("s").endswith(strong):
        return True
    if sent and name[:2].lower() in ("x-", "x_") and bare.endswith(tuple(names["weak"])):
        return True
    return sent and (bare in names["weak"] or any(word in bare for word in strong))


def _bare(name: str) -> str:
    """A name without its marks, its upper case and a number behind it."""
    return re.sub(r"v?[0-9]{1,9}$", "", re.sub(r"[^a-z0-9]", "", name[-200:].lower()))


def is_secret_value(name: str, value: str, sent: bool = False) -> bool:
    """Whether ``value`` is a secret because it stands under ``name``. A weak name such as ``token``
    needs a value that is long enough to be one, and a name that only ends like it, as
    ``openai_key`` does, one of letters and digits."""
    bare, names = _bare(name), _TABLES["names"]
    if is_secret_name(name):
        return True
    if bare in names["weak"]:
        is_random = looks_drawn(value) and (sent or bare != "code")  # also a domain of tasks
        return is_random or (sent and len(value) >= SHORTEST)
    if is_secret_name(name, sent):
        return True
    ends = bare.removesuffix("header").endswith(tuple(names["endings"]))
    return sent and ends and bare not in names["harmless"] and looks_mixed(value)


def is_secret_variable(name: str, value: str = "*" * 8) -> bool:
    """Whether a variable of this name holds a secret: ``WANDB_API_KEY``, ``MY_TOKEN``."""
    return is_secret_name(name) or is_secret_value(name.rpartition("_")[2], value, sent=True)


def is_variable_name(text: str) -> bool:
    """Whether a word may be the name of an environment variable, and is no key by its form."""
    has_word = text.isupper() and any(word in text for word in _TABLES["names"]["variables"])
    is_random = looks_drawn(text) or re.fullmatch(r"(?=(?:[a-f]*[0-9]){3})[0-9a-f]{10,}", text)
    legal = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) and len(text) <= LONGEST_NAME
    return bool(legal) and (has_word or not is_random)


def may_hold_key(key: str) -> bool:
    """Whether the field of this full key may hold a secret, so that what is typed there, and could
    not be read, is not repeated."""
    words = [word for word in re.split(r"[.\[\]@/]", key.strip().lstrip("+~-")) if word]
    if key == "replicas":  # of `judges.serve`: how many
        return False
    below = frozenset(FIELDS["tables"])
    names_key = any(word in _MAY_HOLD_KEYS - below or is_secret_name(word, True) for word in words)
    return names_key or words[:1] == ["hydra"] or (bool(words) and words[-1] in below)


def may_be_shown(program: str) -> bool:
    """Whether the first word of a command is plainly a program, and no key."""
    path = _LOCAL_PATH.fullmatch(program) or _PLAIN_WORD.fullmatch(program)
    return path is not None and (program.startswith(("/", ".", "~")) or not looks_drawn(program))


def is_plain_place(text: str) -> bool:
    """Whether an address or a path that could not be used is plainly one, without a key in it."""
    return _PLACE.fullmatch(text) is not None and not looks_drawn(text)


def shown_place(text: str) -> str:
    """Such a place as an error repeats it: behind ``=``, or that it is not shown."""
    return f"={text}" if is_plain_place(text) else " (not shown, for it may hold a key)"


def looks_drawn(word: str) -> bool:
    """Whether a word looks like drawn letters and digits, as a key does and a name does not."""
    return any(
        len(piece) >= 24
        or (len(piece) >= 13 and any(map(str.isdigit, piece)))
        or (len(piece) >= 13 and len(re.findall(r"[a-z][A-Z]", piece)) >= 4)
        for piece in re.findall(r"[A-Za-z0-9]+", word)
        if not piece.isdigit() and not _WORDS.fullmatch(piece)
    )


def looks_mixed(word: str) -> bool:
    """Whether a word has letters and digits and the length of a key: it may be drawn."""
    whole = re.fullmatch(r"[A-Za-z0-9_.~+/=-]{8,}", word) is not None
    return whole and any(map(str.isdigit, word)) and any(map(str.isalpha, word))


def is_scheme_with_key(text: str) -> bool:
    """Whether a text is what an Authorization header has: ``Basic`` or ``token`` with a key."""
    scheme, _, value = text.strip().partition(" ")
    return scheme.lower() in _TABLES["names"]["schemes"] and looks_mixed(value.strip())


def decoded(text: str) -> list[str]:
    """``text`` and what it is without percent signs, up to three times over; full-width marks are
    what they stand for in a host."""
    forms = [text if text.isascii() else unicodedata.normalize("NFKC", text)]
    for _ in range(3):
        plain = unquote_plus(forms[-1])
        if plain == forms[-1]:
            break
        forms.append(plain)
    return forms


def secret_parameter(text: str) -> str:
    """The name of a secret parameter of an address in ``text``, or of an object of JSON there;
    empty where there is none."""
    for name, value in _IN_JSON.findall(decoded(text)[-1]):
        weak = looks_mixed(value) and is_secret_value(name, value, sent=True)
        if weak or is_secret_value(name, value):
            return name
    for parts in _addresses(text):
        for query in (parts.query, parts.fragment.partition("?")[2] or parts.fragment):
            for name, value in parse_qsl(query.replace(";", "&")):
                if value and not value.startswith("$") and is_secret_value(name, value, sent=True):
                    return name[:LONGEST_NAME]
                if re.search(r"(?i)\b(?:pwd|password)\s{0,9}=[^;\s]", value):  # of odbc_connect=
                    return name[:LONGEST_NAME]
    return ""


def has_user(address: str, alone: bool) -> bool:
    """Whether an address has a user with a password before its host; ``alone`` counts one without,
    as an address of a web server has a token there."""
    pieces = [address, *re.split(r"[\s,\[\]\"']+", address)]
    users = [_USER.match(form) for piece in pieces for form in decoded(piece)]
    return any(user and (user["password"] or (alone and user["name"])) for user in users)


def has_key_in_path(text: str) -> bool:
    """Whether a web address in ``text`` has a key in its path: a part that looks drawn, one
    behind ``/key/``, or one such as ``token=...``; or behind its path, or in place of its port.
    """
    for parts in _addresses(text):
        if parts.scheme.lower() not in ("http", "https", "ws", "wss"):
            continue
        path, before = decoded(parts.path)[-1], ""
        behind_path = re.split("[&;=]", decoded(f"{parts.query}&{parts.fragment}")[-1])
        if any(map(looks_drawn, behind_path)) or looks_drawn(_port(parts)):
            return True
        for start in _TABLES["ids"]["paths"]:  # an account or a model has its number there
            if (parts.netloc + path).startswith(start):
                path = path[len(start) - len(parts.netloc) :].partition("/")[2]
        for part in re.split(r"[/;]", path):
            name, equals, value = part.partition("=")
            behind = before.lower() in _TABLES["names"]["path"] or is_secret_name(before)
            behind = behind and len(part) >= SHORTEST
            assigned = equals and value and is_secret_value(name, value, sent=True)
            is_random = looks_drawn(part) or _BOT_TOKEN.search(part) is not None
            if part and not part.startswith("$") and (is_random or behind or assigned):
                return True
            before = part
    return False


def _port(parts: SplitResult) -> str:
    """What stands in the place of a port."""
    return parts.netloc.rpartition("@")[2].rpartition(":")[2]


def _addresses(text: str) -> Iterator[SplitResult]:
    for word in _ADDRESS.findall(decoded(text)[0]):
        try:
            yield urlsplit(word)
        except ValueError:
            continue


@functools.lru_cache(1024)
def secret_in_command(text: str, depth: int = 0) -> str:
    """What of a secret a command line holds, in a few words; empty where it holds none. A variable
    that a shell looks up, ``$NAME``, is none."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    program = before = ""
    is_set = False
    for word in words:
        if kind := _secret_in_word(word, before, program):
            return kind
        if is_set and is_secret_variable(before) and _may_be_value(word):
            return "a secret behind its name"
        is_set = word in _FLAGS["sets"] or (is_set and not _OPERATOR.search(word))
        if depth < DEEPEST and re.search(r"\s", word):
            inner = secret_in_command(word, depth + 1)
            if inner:
                return inner
        name = word.rpartition("/")[2]
        if program not in _FLAGS["logins"] and name in (*_FLAGS["passwords"], *_FLAGS["logins"]):
            program = name
        if _OPERATOR.search(word):
            program = ""
        before = word
    return ""


def _secret_in_word(word: str, before: str, program: str) -> str:
    """What of a secret ``word`` is, behind the word ``before`` of a command line of ``program``."""
    name, equals, value = word.partition("=")
    flag, glued = word[:2], "" if word.startswith("--") else word[2:]
    if equals and not _is_reference(value) and is_secret_variable(name.lstrip("-"), value):
        return "a secret behind its name"
    if before.startswith("-") and is_secret_name(before) and not _is_reference(word):
        return "a secret on a command line"
    long = before.startswith("-") and len(before) > 2
    if long and _may_be_value(word) and is_secret_value(before, word, sent=True):
        return "a secret on a command line"
    if before in _FLAGS["behind_login"] and program in _FLAGS["logins"] and _may_be_value(word):
        return f"a secret behind {before}"
    if before.startswith(("add-", "set-")) and is_secret_name(before) and not _is_reference(word):
        return "a secret behind its name"
    if _USER_OF_CURL.fullmatch(before) and _is_user(word):
        return "a secret behind -u"
    if _IN_JSON.search(word) and (name := secret_parameter(word)):
        return f"a secret in JSON ({name})"
    if re.match(r"pass:[^$]", word):
        return "a password behind pass:"
    password = _FLAGS["passwords"].get(program)
    if password and before == password and not _is_reference(word):
        return f"a password behind {password}"
    if password and flag == password and not _is_reference(glued):
        return f"a password behind {password}"
    checks = (("users", _is_user), ("headers", _is_secret_header), ("cookies", _is_cookie))
    for options, is_secret in checks:
        flags = _FLAGS[options]
        argument = word if before in flags and word[:1] != "-" else value if name in flags else ""
        if is_secret(argument or (glued if flag in flags else "")):
            return f"a secret behind {before if before in flags else flag}"
    if _PAIR.fullmatch(word) and "$" not in word:
        return "a password before an @"
    return "an address with a key in its path" if has_key_in_path(word) else ""


def _is_reference(value: str) -> bool:
    return not value or value.startswith("$")


def _may_be_value(word: str) -> bool:
    """Whether a word behind a flag may be a secret: no reference, flag, path, file or operator."""
    path = word.startswith(("/", "./", "../", "~")) or re.search(r"\.[a-z]{2,4}$", word)
    return word[:1] not in ("", "$", "-", "<", ">", "&", "|", ";") and not path


def _is_cookie(value: str) -> bool:
    _, equals, held = value.partition("=")
    return bool(equals) and not _is_reference(held)


def _is_user(value: str) -> bool:
    """Whether what ``-u`` takes is a user with a password, and not two numbers as docker's."""
    name, colon, secret = value.partition(":")
    if re.fullmatch(r"[\w.\\-]+%[^%\s$]+", value):  # smbclient's
        return True
    return bool(colon and secret) and not _is_reference(secret) and not (name + secret).isdigit()


def _is_secret_header(value: str) -> bool:
    name, colon, held = value.partition(":")
    harmless = name.strip().lower() in _FLAGS["harmless"]
    return bool(colon and held.strip()) and not harmless and "$" not in held


def unfit_argument(command: str) -> int:
    """The place, from 1 on, of the first argument of ``sweep.notify`` that may be a secret: it is
    neither a plain word nor a local path, or stands behind a flag that takes one. 0 is none, also
    where it is no command line; -1 is the program itself."""
    try:
        words = shlex.split(command)
    except ValueError:
        return 0
    before = ""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        local = _LOCAL_PATH.fullmatch(word) is not None
        plain = _PLAIN_WORD.fullmatch(name if equals and place else word) is not None
        plain = plain and (not equals or (bool(place) and _PLAIN_WORD.fullmatch(value) is not None))
        glued = re.match(r"-[A-Za-z]", word) is not None and len(word) > 2
        behind = _VALUE_FLAG.fullmatch(before) is not None and before not in _HARMLESS_FLAGS
        is_random = looks_drawn(word) and (not local or not word.startswith(("/", ".", "~")))
        bare = name.lstrip("-")
        secret = is_secret_name(bare, sent=word.startswith("-"))
        secret = secret or (bool(equals) and is_secret_variable(bare))
        after = before.startswith("--") and is_secret_name(before, sent=True)
        if not (local or plain) or is_random or (place and (secret or after or glued)):
            return place or -1
        if place and behind and not local and not word.startswith("-"):
            return place
        before = word
    return 0
