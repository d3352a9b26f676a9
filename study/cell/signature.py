"""What a file of records says of itself: whose it is, which steps it has, and its digests.

The footer of each Parquet file names the cell and the kind of its rows, as they follow from the
path that it was written to. A file that lies elsewhere is that of another cell. Who wants to
deceive can sign anything: this finds what was confused, not what was forged. Files that were
written before are unsigned, and read.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import xxhash

from study.system.files import LARGEST, Damaged, read_json

KEY = "judgedrift.signature"
"""Key of a Parquet file's footer."""
UNKNOWN = "?" * 32
METRICS = "metrics.jsonl"
SIGNED = b', "digest": "'
"""What stands before the digest at the end of a line of metrics."""
LONGEST_LINE = 1 << 20
"""Bytes of the first line of metrics."""
MOST_FILES = 1 << 16
"""So many files are known to be as they were written."""
ANOTHER = "another training of this cell"
UNSIGNED = (
    "some record files are unsigned, as older versions wrote them, so a later change to them"
    " cannot be detected; to count them, type: judgedrift records verify"
)
"""The message about such files, once."""


@dataclass(frozen=True)
class Signature:
    """What a footer says."""

    place: str
    """Cell and kind, such as ``0a1b2c3d4e/rollouts``: `place_of` the path."""
    steps: tuple[int, int]
    """First and last step."""
    rows: int
    groups: tuple[tuple[int, str], ...]
    """Where each row group ends in the file, and XXH3 of 128 bits over its bytes."""
    whole: bool = True
    """Whether all that it was merged of was signed."""
    footer: str = ""
    """The same over the footer, with `UNKNOWN` in the place of this; empty in older files."""
    training: str = ""
    """`training_of` the cell; empty in older files."""


def cell_id(cell: Path) -> str:
    """The digits of a cell's config that its folder's name ends with; the name if it has none."""
    digits = re.search(r"-([0-9a-f]{10})$", cell.name)
    return digits[1] if digits else cell.name


def training_of(cell: Path) -> str:
    """What tells one training of a cell from another, of the same config in another place or at
    another time: drawn when its status is first written. The lines of metrics have it, each under
    its digest; before there are any, the status alone. Empty in a cell of an older version.
    """
    return logged_training(cell) or _read_training(cell / "status.json")


def logged_training(cell: Path) -> str:
    """The training that the first line of a cell's metrics is of; empty where it names none."""
    return _read_training(cell / METRICS)


def _read_training(path: Path) -> str:
    """The training that stands in a status, or in the first line of metrics."""
    try:
        status = os.stat(path)
        stamp = status.st_ino, status.st_size, status.st_mtime_ns
        before, training = _trainings.get(path, (None, ""))
        if before != stamp:
            training = (_first_line if path.name == METRICS else read_json)(path).get("training")
            training = training if isinstance(training, str) else ""
            if len(_trainings) >= MOST_FILES:
                _trainings.clear()
            _trainings[path] = stamp, training
    except (OSError, Damaged, ValueError, AttributeError, RecursionError):
        return ""
    return training


def _first_line(path: Path) -> Mapping[str, object]:
    """The object in the first line of metrics; an empty one where it is altered, or the file is no
    regular one."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        line = file.readline(LONGEST_LINE).rstrip(b"\n")
    return {} if is_altered(line) else json.loads(line)


def is_altered(line: bytes) -> bool:
    """Whether a line of ``metrics.jsonl`` has another digest than its text; one of an older version
    has none."""
    text, signed, digest = line.rstrip(b"\r").rpartition(SIGNED)
    if not signed:
        return b'"digest"' in line
    return digest != xxhash.xxh3_64_hexdigest(text + b"}").encode() + b'"}'


def other_origin(cell: Path, line: Mapping[str, Any]) -> str:
    """Of which other cell, or other training of this one, a line or status is; empty where it is of
    this one, or says nothing of it."""
    own = cell_id(cell)
    if own != cell.name and line.get("cell", own) != own:  # a name without digits takes anything
        return f"the cell {line['cell']}"
    return ANOTHER if _differ(line.get("training"), training_of(cell)) else ""


def _differ(*trainings: object) -> bool:
    return all(trainings) and len({*trainings}) > 1


def cell_of(path: Path) -> Path:
    """The folder of the cell whose records lie at ``path``."""
    folder = path.parent.parent
    return folder.parent if folder.name in ("evaluations", "missing") else folder


def place_of(path: Path) -> str:
    """Whose and which records lie at ``path``: ID/rollouts, ID/evaluations/verdicts, or
    replays/JUDGE/ID/rollouts."""
    *above, cell, kind = path.parts[-6:-1]
    inner = kind
    if cell in ("evaluations", "missing") and above:
        *above, cell = above
        inner = f"{path.parts[-3]}/{kind}"
    replay = f"replays/{above[-1]}/" if len(above) > 1 and above[-2] == "replays" else ""
    return f"{replay}{cell_id(Path(cell))}/{inner}"


class Hashed(io.RawIOBase):
    """A Parquet file that is written through this, and hashed meanwhile."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest = file, xxhash.xxh3_128()
        self._groups: list[tuple[int, str]] = []
        self._footer: bytearray | None = None

    def writable(self) -> bool:
        """True: a file that Parquet is written to."""
        return True

    def write(self, data: Any) -> int:
        """Write and digest bytes, or keep those of the footer; returns their number."""
        if self._footer is not None:
            self._footer += data
            return len(data)
        self._digest.update(data)
        return self._file.write(data)

    def tell(self) -> int:
        """Bytes so far, those of the kept footer included."""
        return self._file.tell() + len(self._footer or b"")

    def ends_group(self) -> None:
        """A row group was written."""
        self._groups.append((self.tell(), self._digest.hexdigest()))
        self._digest.reset()

    def signed(
        self, path: Path, steps: tuple[int, int], rows: int, whole: bool = True
    ) -> dict[str, str]:
        """The footer's entry for the row groups that were written; what is written from now on is
        the footer, and waits for `finish`."""
        self._footer = bytearray()
        signature = Signature(
            place=place_of(path),
            steps=steps,
            rows=rows,
            groups=tuple(self._groups),
            whole=whole,
            footer=UNKNOWN,
            training=training_of(cell_of(path)),
        )
        return {KEY: json.dumps(asdict(signature), separators=(",", ":"))}

    def finish(self) -> None:
        """Write the footer of a closed writer, with its digest in it."""
        before, unknown, after = bytes(self._footer or b"").rpartition(UNKNOWN.encode())
        digest = _digest(before + unknown + after).encode()
        self._file.write(before + (digest if unknown else b"") + after)


def read_signature(entries: Mapping[bytes, bytes] | None) -> Signature | None:
    """The signature among the entries of a footer; None where there is none.
    Raises ValueError: it is none that this version writes."""
    text = (entries or {}).get(KEY.encode())
    return None if text is None else _parsed(text)


@lru_cache(maxsize=64)
def _parsed(text: bytes) -> Signature:
    """One file's is asked for several times while it is read."""
    try:
        fields = json.loads(text)
        first, last = map(int, fields["steps"])
        return Signature(
            place=str(fields["place"]),
            steps=(first, last),
            rows=int(fields["rows"]),
            groups=tuple((int(end), str(digest)) for end, digest in fields["groups"]),
            whole=fields["whole"] is True,
            footer=str(fields.get("footer", "")),
            training=str(fields.get("training", "")),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"its signature cannot be read ({type(error).__name__})") from error


def contradiction(path: Path, signature: Signature, steps: tuple[int, int], rows: int) -> str:
    """Why a file that has these ``rows``, and by its name these ``steps``, is not what stands in
    its footer; empty where it is."""
    place = place_of(path)
    if signature.place != place:
        return f"was written as {signature.place} but is saved as {place}"
    cell = cell_of(path)
    if _differ(signature.training, training_of(cell)):
        return f"is of {ANOTHER}"
    if not signature.training and logged_training(cell):
        return "was written by an older version than its run"
    if signature.steps != steps:
        return "was written as steps {} to {} under another name".format(*signature.steps)
    if signature.rows != rows:
        return f"was written with {signature.rows} rows and has {rows}"
    return ""


@dataclass(frozen=True)
class Contents:
    """A file as it stands: the digests that are known of it, by the places where they begin."""

    path: Path
    digests: dict[int, str]

    @classmethod
    def of(cls, path: Path) -> Contents:
        """What is known of ``path`` for its inode, size and time."""
        stat = os.stat(path)
        stands = stat.st_ino, stat.st_size, stat.st_mtime_ns
        before, digests = _digests_of.get(path, (None, {}))
        if before != stands:
            if len(_digests_of) >= MOST_FILES:
                _digests_of.clear()
            _digests_of[path] = stands, (digests := {})
        return cls(path, digests)

    def unread(self) -> bytes | None:
        """The bytes of a file that is not large and whose rows nothing is known of, to be read and
        hashed in one."""
        return (
            None
            if 0 in self.digests or os.stat(self.path).st_size > LARGEST
            else self.path.read_bytes()
        )

    def altered(self, footer: Any, groups: Sequence[int], data: bytes | None = None) -> str:
        """Why the footer or row groups are not what was written, by their digests in the footer;
        empty where they are, or the file is unsigned. ``data`` is what was `unread`."""
        signature = read_signature(footer.metadata)
        if signature is None:
            self.digests[0] = ""
            return ""
        if len(signature.groups) != footer.num_row_groups:
            return f"was written as {len(signature.groups)} row groups"
        ends = [end for end, _ in signature.groups]
        begins = [0, *ends]
        wanted = [(begins[group], *signature.groups[group]) for group in groups]
        if signature.footer:
            wanted.append((begins[-1], sys.maxsize, signature.footer))
        new = [begin for begin, _, _ in wanted if begin not in self.digests]
        with self.path.open("rb") if new and data is None else io.BytesIO(data or b"") as file:
            size = file.seek(0, os.SEEK_END)
            for begin, end, digest in wanted:
                if begin in new:
                    file.seek(begin)
                    written = file.read(max(0, min(end, size) - begin))
                    last = begin == begins[-1]
                    self.digests[begin] = (
                        _footer_digest(written, digest) if last else _digest(written)
                    )
                if self.digests[begin] != digest:
                    return "was altered: its digest differs"
        return ""


def is_unsigned(path: Path) -> bool:
    """Whether a file of records that this process has read says nothing of itself."""
    return Contents.of(path).digests.get(0) == ""


_trainings: dict[Path, tuple[tuple[int, int, int], str]] = {}
"""Status or metrics -> inode, size and time, and the training that stands in it."""
_digests_of: dict[Path, tuple[tuple[int, int, int], dict[int, str]]] = {}
"""File -> inode, size and time, and the digests of its bytes from each place on."""


def _digest(written: bytes) -> str:
    return xxhash.xxh3_128(written).hexdigest()


def _footer_digest(footer: bytes, digest: str) -> str:
    """The digest of a footer in which it stands itself; only the schema comes behind it."""
    before, _, after = footer.rpartition(digest.encode())
    return _digest(UNKNOWN.encode().join((before, after)))


def forget() -> None:
    """From now on every file is hashed again."""
    _digests_of.clear()
    _parsed.cache_clear()
