"""Reads and writes files safely: atomic, synced to disk, and checked when they are read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shlex
import stat
import sys
import tempfile
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import xxhash
import yaml
from yaml.constructor import SafeConstructor
from yaml.cyaml import CParser
from yaml.resolver import Resolver

from study.errors import UserError
from study.system import locks

LARGEST = 64 << 20
"""Bytes of a small file; one that is larger is not what its name says."""
LARGEST_YAML = 8 << 20
DEEPEST = 200
"""How deep a YAML or JSON file may be nested."""
MOST_VALUES, MOST_IN_JSON = 100_000, 5_000_000
"""How many keys and values a YAML file may hold; how many commas and brackets a JSON file may. The
JSON file of a large tokenizer has 2,000,000."""
LONGEST_NUMBERS = {"int": 20, "float": 40}
"""Characters of a number in YAML. One that is longer is text, as is one to base 60, such as 1:30.
Many longer integers may have one hash, and a mapping with them as keys is slow."""
LONGEST_IN_JSON = 40
"""Digits of an integer in JSON."""
_TAG = "tag:yaml.org,2002:"
_TEXTS = ("str", "merge", "value")
_SCALARS = frozenset("null bool int float binary timestamp".split())
_NOT_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError)
"""What PyYAML raises for a text that is none, or for a value that is not of its tag."""
_DIGEST = "file_digest"
_JSON_DIGEST, _YAML_DIGEST = (f',\n "{_DIGEST}": "', '"\n}'), (f"# {_DIGEST}: ", "")
"""What stands before and behind the digest at the end of a signed file."""
LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}")
"""What a file is called until it is whole."""
PRINTED_LINES: set[str] = set()
"""What `say` has said in this process."""
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)
"""How a file system answers that has no fsync for what it is asked to sync."""


class Damaged(UserError):
    """A file that is there and is not what it should be: ``path``, ``why``, and ``at`` which steps
    where the others are sound."""

    def __init__(self, path: Path, why: str, remedy: str = "", at: str = "") -> None:
        self.path, self.why, self.at = path, why, f" at {at}" if at else ""
        away = f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.damaged')}"
        remedy = remedy or f"Move it away and rerun the command: {away}"
        super().__init__(f"{path} is damaged{self.at}: it {why}. {remedy}")


def write_bytes(path: Path, data: Any, durable: bool = True) -> None:
    """Replace ``path`` by ``data`` in one rename; it outlives a power cut if ``durable``, else from
    the caller's `sync_files` on. Raises Damaged: a folder stands in its place."""
    with writing(path, durable) as file:
        file.write(data)


@contextlib.contextmanager
def writing(
    path: Path, durable: bool = True, check: Callable[[Path], None] | None = None
) -> Generator[IO[bytes]]:
    """An open file that replaces ``path`` in one rename when the block ends, or else goes away; see
    `write_bytes`. ``check`` is given its temporary name before; what it raises keeps ``path`` as it
    is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = _temporary(path)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                sync(file.fileno())
            if check is not None:
                check(Path(name))
            os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, IsADirectoryError):
            raise Damaged(path, "is a folder and should be a file") from error
        raise
    if durable:
        sync_files([path.parent])


def _temporary(path: Path) -> tuple[int, str]:
    """An open file beside ``path`` and its name; `clear_leftovers` spares it while it is open."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.exists(name):
            return handle, name
        os.close(handle)  # taken away before it was locked


def clear_leftovers(folder: Path) -> None:
    """Remove what writers that were killed left half-written in a folder of ours; what somebody
    writes at the moment stays."""
    for path in folder.glob(".*"):
        if LEFTOVER.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with contextlib.suppress(OSError):  # somebody else's, or a file system without locks
                unused = locks.take(path)
                if unused is not None:
                    with unused:
                        path.unlink()


def sync_files(paths: Iterable[Path]) -> None:
    """Files and folders as they are now outlive a power cut."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            sync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Replace ``path`` by ``text`` as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"), durable)


def write_json(path: Path, data: Any, durable: bool = True, signed: bool = False) -> None:
    """Replace ``path`` by ``data`` as indented JSON; a number that is missing is null. If
    ``signed``, an object ends with a digest of its text, which `read_json` checks."""
    text = json.dumps(plain(data), indent=1, allow_nan=False)
    if signed:
        text = _signed(text.removesuffix("\n}"), _JSON_DIGEST)
    write_text(path, text + "\n", durable)


def write_yaml(path: Path, data: Any) -> None:
    """Replace ``path`` by ``data`` as YAML, and a comment with a digest of its text, which
    `read_yaml` checks."""
    text = _signed(yaml.safe_dump(data, sort_keys=False), _YAML_DIGEST)
    write_text(path, text + "\n")


def _signed(text: str, ends: tuple[str, str]) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8")).join((text + ends[0], ends[1]))


def _check_digest(path: Path, text: str, ends: tuple[str, str], remedy: str) -> None:
    """Raises Damaged: the text of a signed file is not that of which its digest is."""
    if _signed(text.rpartition(ends[0])[0], ends) != text.removesuffix("\n"):
        own = f"If you changed it yourself, remove the {_DIGEST} at its end"
        raise Damaged(
            path, "was altered since it was written", f"{remedy}. {own}" if remedy else own
        )


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: NaN and infinities become null, NumPy numbers plain ones."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def append_line(path: Path, text: str) -> None:
    """Add one line; one that does not fit leaves nothing of itself. See `sync_files`."""
    with path.open("ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        line = memoryview(text.encode("utf-8") + b"\n")
        try:
            while line:
                line = line[file.write(line) or 0 :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), size)
            raise


def sync(handle: int) -> None:
    """Everything written to an open file or folder is on the disk."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def read_text(path: Path, remedy: str = "", largest: int = LARGEST) -> str:
    """The text of a small file. Raises FileNotFoundError: there is none.
    Raises Damaged: no regular file, one that cannot be read, a huge one, or no UTF-8."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise Damaged(path, "is a folder and should be a file", remedy)
        if not stat.S_ISREG(status.st_mode):
            raise Damaged(path, "is not a regular file", remedy)
        if status.st_size > largest:
            raise Damaged(
                path, f"has {status.st_size} bytes, too many for this kind of file", remedy
            )
        data = path.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise Damaged(path, f"cannot be read ({error.strerror or error})", remedy) from error
    if not data.strip():
        raise Damaged(path, "is empty", remedy)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Damaged(path, f"is not UTF-8 text from byte {error.start} on", remedy) from error


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """The object in ``path``, or an empty one where there is no file.
    Raises Damaged: there is something else, it is nested deeper than `DEEPEST`, or holds more than
    `MOST_IN_JSON`."""
    try:
        text = read_text(path, remedy)
    except FileNotFoundError:
        return {}
    if sum(map(text.count, ",[{")) > MOST_IN_JSON:
        raise Damaged(path, f"holds more than {MOST_IN_JSON:,} values", remedy)
    try:
        content = json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"is not whole JSON ({first_line(error)})", remedy) from error
    if _is_deep(content):
        raise Damaged(path, f"is nested more than {DEEPEST:,} deep", remedy)
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise Damaged(path, f"holds a JSON {kind} where an object should be", remedy)
    if _DIGEST in content:
        _check_digest(path, text, _JSON_DIGEST, remedy)
        del content[_DIGEST]
    return content


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_IN_JSON:
        raise ValueError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _is_deep(content: Any) -> bool:
    """Whether what was read of a JSON file is nested deeper than `DEEPEST`."""
    level = [content]
    for _ in range(DEEPEST):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
    return bool(level)


def read_left(
    path: Path, instead: str, read: Callable[[Path], dict[str, Any]] = read_json
) -> dict[str, Any]:
    """`read_json`, or ``read``, of a file that a run can do without: a damaged one counts as
    absent, and is said with ``instead``, what is done without it."""
    try:
        return read(path)
    except Damaged as error:
        say(f"{path} is damaged: it {error.why}; {instead}.")
        return {}


def read_yaml(path: Path, remedy: str = "") -> dict[str, Any]:
    """The mapping in ``path``. Raises FileNotFoundError: there is none.
    Raises Damaged: there is something else, it ends in the middle of a line, is nested deeper than
    `DEEPEST`, or holds more than `MOST_VALUES` or characters than `LARGEST_YAML`, each counted as
    often as an alias repeats it."""
    text = read_text(path, remedy, LARGEST_YAML)
    if not text.endswith("\n"):
        raise Damaged(path, "ends in the middle of a line", remedy)
    if f"\n{_YAML_DIGEST[0]}" in text:
        _check_digest(path, text, _YAML_DIGEST, remedy)
    try:
        content = _YamlReader(text).read()
    except _YamlLimitError as error:
        raise Damaged(path, str(error), remedy) from error
    except _NOT_YAML as error:
        raise Damaged(path, f"is not YAML ({first_line(error)})", remedy) from error
    if _is_deep([content]):  # by an alias within another
        raise Damaged(path, f"is nested more than {DEEPEST:,} deep", remedy)
    if not isinstance(content, dict):
        raise Damaged(path, "holds no keys and values", remedy)
    return {str(key): value for key, value in content.items()}


class _YamlLimitError(Exception):
    """A YAML text is nested too deep or holds too much."""


class _YamlReader(CParser, SafeConstructor, Resolver):
    """Makes values of a YAML text as `yaml.CSafeLoader` does, and counts before it makes them."""

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._values, self._characters = 0.0, 0
        self._repeated: dict[str, tuple[Any, float, int]] = {}
        """Anchor -> its value, and how many keys, values and characters an alias repeats."""

    def read(self) -> Any:
        """The value of the only document; None where there is none."""
        self.get_event()
        if isinstance(self.get_event(), yaml.StreamEndEvent):
            return None
        value = self._value(self.get_event(), 0)
        self.get_event()
        if not isinstance(self.get_event(), yaml.StreamEndEvent):
            raise yaml.YAMLError("it holds two documents")
        return value

    def _value(self, event: Any, depth: int) -> Any:
        before, anchor, value = (self._values, self._characters), event.anchor, None
        if isinstance(event, yaml.AliasEvent):
            if anchor not in self._repeated:
                raise yaml.YAMLError(f"found undefined alias {anchor:.40}")
            value, *repeated = self._repeated[anchor]
            self._count(depth, *repeated)
            return value
        self._count(depth, 1, len(getattr(event, "value", "")))
        if anchor in self._repeated:
            raise yaml.YAMLError(f"found duplicate anchor {anchor:.40}")
        if anchor:
            self._repeated[anchor] = (None, math.inf, 0)  # until it ends, an alias is within itself
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        elif event.tag not in (None, "!", f"{_TAG}seq", f"{_TAG}map"):
            raise yaml.YAMLError(f"found a list or mapping of the tag {event.tag:.40}")
        elif isinstance(event, yaml.SequenceStartEvent):
            value = []
            while not isinstance(item := self.get_event(), yaml.SequenceEndEvent):
                value.append(self._value(item, depth + 1))
        else:
            value = self._mapping(depth)
        if anchor:
            values, characters = self._values - before[0], self._characters - before[1]
            self._repeated[anchor] = (value, values, characters)
        return value

    def _count(self, depth: int, values: float, characters: int) -> None:
        self._values += values
        self._characters += characters
        if self._characters > LARGEST_YAML:
            raise _YamlLimitError(f"holds more than {LARGEST_YAML:,} characters")
        if self._values > MOST_VALUES:
            raise _YamlLimitError(f"holds more than {MOST_VALUES:,} values")
        if depth >= DEEPEST:
            raise _YamlLimitError(f"is nested more than {DEEPEST:,} deep")

    def _mapping(self, depth: int) -> dict[Any, Any]:
        own, merged = {}, {}
        while not isinstance(event := self.get_event(), yaml.MappingEndEvent):
            key = self._value(event, depth + 1)
            value = self._value(self.get_event(), depth + 1)
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                for mapping in reversed(value) if isinstance(value, list) else [value]:
                    if not isinstance(mapping, dict):
                        raise yaml.YAMLError("expected a mapping behind <<")
                    merged.update(mapping)
            elif isinstance(key, Hashable):
                own[key] = value
            else:
                raise yaml.YAMLError("found a list or mapping as a key")
        return merged | own

    def _scalar(self, event: Any) -> Any:
        text, tag = event.value, event.tag
        if tag in (None, "!"):
            tag = self.resolve(yaml.ScalarNode, text, event.implicit)
        kind = tag.removeprefix(_TAG)
        longest = LONGEST_NUMBERS.get(kind, 0)
        if kind in _TEXTS or (longest and (":" in text or len(text) > longest)):
            return text
        if kind not in _SCALARS:
            raise yaml.YAMLError(f"found a value of the tag {tag:.40}")
        node = yaml.ScalarNode(tag, text, event.start_mark, event.end_mark)
        return self.yaml_constructors[tag](self, node)


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_line(error: BaseException) -> str:
    """An error in one short line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def say(text: str) -> None:
    """Log a message, once per process."""
    if text not in PRINTED_LINES:
        PRINTED_LINES.add(text)
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)
