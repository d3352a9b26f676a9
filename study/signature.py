"""What a file of records says of itself: whose it is, which steps it has, and its digests.

The footer of each Parquet file names the cell and the kind of its rows, as they follow from the
path that it was written to. A file that lies elsewhere is that of another cell. Who wants to
deceive can sign anything: this finds what was confused, not what was forged. Files that were
written before are unsigned, and read.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import xxhash

KEY = "judgedrift.signature"
"""Key of a Parquet file's footer."""
CHUNK = 1 << 20
MOST_KNOWN = 1 << 16
"""So many row groups are known to be as they were written."""


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


def cell_id(cell: Path) -> str:
    """The digits of a cell's config that its folder's name ends with; the name if it has none."""
    digits = re.search(r"-([0-9a-f]{10})$", cell.name)
    return digits[1] if digits else cell.name


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

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def ends_group(self) -> None:
        """A row group was written."""
        self._groups.append((self.tell(), self._digest.hexdigest()))
        self._digest.reset()

    def signed(
        self, path: Path, steps: tuple[int, int], rows: int, whole: bool = True
    ) -> dict[str, str]:
        """The footer's entry for the row groups that were written."""
        signature = Signature(
            place=place_of(path),
            steps=steps,
            rows=rows,
            groups=tuple(self._groups),
            whole=whole,
        )
        return {KEY: json.dumps(asdict(signature), separators=(",", ":"))}


def read_signature(entries: Mapping[bytes, bytes] | None) -> Signature | None:
    """The signature among the entries of a footer; None where there is none.
    Raises ValueError: it is none that this version writes."""
    text = (entries or {}).get(KEY.encode())
    if text is None:
        return None
    try:
        fields = json.loads(text)
        first, last = map(int, fields["steps"])
        return Signature(
            place=str(fields["place"]),
            steps=(first, last),
            rows=int(fields["rows"]),
            groups=tuple((int(end), str(digest)) for end, digest in fields["groups"]),
            whole=fields["whole"] is True,
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"its signature cannot be read ({type(error).__name__})") from error


def contradiction(path: Path, signature: Signature, steps: tuple[int, int], rows: int) -> str:
    """Why a file that has these ``rows``, and by its name these ``steps``, is not what stands in
    its footer; empty where it is."""
    place = place_of(path)
    if signature.place != place:
        return f"was written as {signature.place} and lies at the place of {place}"
    if signature.steps != steps:
        return "was written as steps {} to {} under another name".format(*signature.steps)
    if signature.rows != rows:
        return f"was written with {signature.rows} rows and has {rows}"
    return ""


def altered(path: Path, footer: Any, groups: Sequence[int]) -> str:
    """Why row groups are not what was written, by their digests in the footer; empty where they
    are, or the file is unsigned. A group is hashed once for each inode, size and time of its file.
    """
    signature = read_signature(footer.metadata)
    if signature is None:
        return ""
    if len(signature.groups) != footer.num_row_groups:
        return f"was written as {len(signature.groups)} row groups"
    stat = os.stat(path)
    begins = (0, *(end for end, _ in signature.groups))
    for group in groups:
        end, digest = signature.groups[group]
        stands = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if _digest(path, stands, begins[group], end) != digest:
            return "is not what was written: its digest is another"
    return ""


@functools.lru_cache(MOST_KNOWN)
def _digest(path: Path, stands: tuple[int, int, int], begin: int, end: int) -> str:
    """Of some bytes of a file as it ``stands``: inode, size and time."""
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        left = end - begin
        while left > 0 and (data := file.read(min(CHUNK, left))):
            digest.update(data)
            left -= len(data)
    return digest.hexdigest()


def forget() -> None:
    """From now on every file is hashed again."""
    _digest.cache_clear()
