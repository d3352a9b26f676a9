"""Sends what a run has on record to the URL that it belongs to, and fetches it from there.

An object store has no rename and no folder. So each file of a cell is an object whose name ends in
a part of its hash and that is never written again, and one manifest, written last, says which of
them are the cell's: who reads it sees the cell as it was at one moment, or as it was before.
A cell's folder notes which manifest it has; where another machine has gone on since, all of the
cell is taken from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict, cast
from urllib.parse import quote

from study.cell import places
from study.cell.places import BUCKETS, LOCK, StorageError, is_url, local, opened, trouble, url_of
from study.system import locks
from study.system.files import read_left, sha256, write_bytes, write_json

MANIFEST = "MANIFEST.json"
LEASE = "LEASE.json"
"""Beside it: who runs the cell now, see `study.cell.lease`."""
FORMAT = 1
NOTE = ".place.json"
"""In a cell's folder: the ``version`` of the manifest that it has, and whether ``whole``."""
HEAVY = ("checkpoints", "kept", "policy")
"""What only training and evaluation read; who reads records does without."""
OF_STUDY = ("report", "replays", "results")
"""Folders of a study that go with what stands beside its cells."""
LOG = "log.txt"
"""Each machine keeps its own."""
SMALL = 8 << 20
"""Bytes up to which a file is moved with others, through memory."""
TRIES = 5
"""How often what is being replaced elsewhere is looked at again."""


class Entry(TypedDict):
    """A file of a manifest."""

    size: int
    sha256: str


Files = dict[str, Entry]


class Manifest(TypedDict):
    """What is sent of a cell, or of a study's folder."""

    format: int
    version: str
    files: Files


class Note(TypedDict, total=False):
    """Which manifest a folder has, and whether with checkpoints and policy."""

    version: str
    whole: bool


FENCES: dict[Path, Callable[[], None]] = {}
"""Folder of a cell -> what `study.cell.lease` calls before the cell is written elsewhere: it raises
a UserError where another machine runs it by now."""
_HASHES: dict[tuple[Path, int, int], str] = {}


def push(folder: Path, ended: bool = False) -> None:
    """Send a cell, or what stands beside the cells in a study's folder, to where it belongs. A
    folder of this machine alone is left as it is.

    Args:
        folder: of the cell or of the study.
        ended: the cell is done: its marker is sent too, and what nothing refers to goes away.

    Raises:
        StorageError: it could not be sent; what was sent before is still read.
    """
    folder = folder.absolute()
    if not (url := url_of(folder)):
        return
    fs, root = opened(url)
    with trouble(url):
        cell = (folder / "config.yaml").exists()
        before = read_manifest(fs, root)
        old: Files = before["files"] if before else {}
        files = _send(fs, root, folder, _members(folder, cell, ended), _keys(old))
        if ended:
            files |= _send_small(fs, root, {"DONE": b""}, _keys(old))
        if not cell:  # other machines put theirs beside them
            files = old | files
        if files == old and before is not None:
            return
        if folder in FENCES:
            FENCES[folder]()
        version = uuid.uuid4().hex
        content: Manifest = {"format": FORMAT, "version": version, "files": files}
        put(fs, f"{root}/{MANIFEST}", json.dumps(content, indent=1).encode())
        write_json(folder / NOTE, {"version": version, "whole": True}, durable=False)
        obsolete = _keys(old)
        if ended:  # and what was sent for no manifest, by who was killed
            obsolete |= {str(path).rpartition(f"{root}/")[2] for path in fs.find(root)}
        if obsolete := sorted(obsolete - _keys(files) - {MANIFEST, LEASE}):
            fs.rm([f"{root}/{key}" for key in obsolete])


def pull(folder: Path, whole: bool = False, manifest: Manifest | None = None) -> bool:
    """Bring a cell's folder to what another machine has sent since; False where nothing is there.

    Args:
        folder: of the cell; the caller holds its lock.
        whole: with checkpoints and policy.
        manifest: of the cell, where it was just read.

    Raises:
        StorageError: it could not be fetched, or is damaged there.
    """
    if not (url := url_of(folder)):
        return False
    fs, root = opened(url)
    with trouble(url):
        for attempt in range(TRIES):
            remote_manifest = manifest if manifest and not attempt else read_manifest(fs, root)
            if remote_manifest is None:
                return False
            note = read_note(folder)
            if note.get("version") == remote_manifest["version"] and (
                note.get("whole") or not whole
            ):
                return True
            wanted = {
                name: entry
                for name, entry in remote_manifest["files"].items()
                if whole or PurePosixPath(name).parts[0] not in HEAVY
            }
            write_json(folder / NOTE, {}, durable=False)  # until all of it is here
            if lacking := _fetch(fs, root, folder, wanted):
                continue  # replaced by its writer since the manifest was read
            for path in _here(folder):
                name = path.relative_to(folder).as_posix()
                if name not in remote_manifest["files"] and name != LOG:
                    path.unlink()
            for path in sorted(folder.rglob("*/"), reverse=True):
                with contextlib.suppress(OSError):
                    path.rmdir()  # only where it is empty
            write_json(
                folder / NOTE,
                {"version": remote_manifest["version"], "whole": whole},
                durable=False,
            )
            return True
        raise StorageError(
            f"{url} is damaged: {', '.join(sorted(lacking)[:3])} is missing, though its manifest"
            " lists it. Move the cell's folder away with the store's own tool and rerun: the cell"
            " is then made again."
        )


def fetch(study_dir: Path, say: Callable[[str], object] = lambda text: None) -> None:
    """Bring the copy of a study to what is elsewhere, without checkpoints and policies; a cell that
    runs on this machine is left to its process. A folder of this machine alone stays as it is.
    Raises StorageError: it cannot be read."""
    if not (url := url_of(study_dir)):
        return
    fs, root = opened(url)
    with trouble(url):
        try:
            names = _folders(fs, root)
        except FileNotFoundError:
            if url.partition("://")[0] in BUCKETS and not fs.exists(root.partition("/")[0]):
                raise
            return
        paths = {f"{root}/{MANIFEST}": study_dir}
        for name in names:
            paths[f"{root}/{name}/{MANIFEST}"] = study_dir / name
        leases = {f"{root}/{folder.name}/{LEASE}": folder for folder in paths.values()}
        texts = _read(fs, [*paths, *leases])
    for path, folder in leases.items():
        if path in texts and folder != study_dir:
            write_bytes(folder / places.LEASE, texts[path], durable=False)
        else:
            (folder / places.LEASE).unlink(missing_ok=True)
    for path, folder in paths.items():
        if path not in texts:
            continue
        manifest = _sound(texts[path], path)
        folder.mkdir(parents=True, exist_ok=True)
        folder_lock = locks.take(folder / LOCK)
        if folder_lock is None:
            say(f"{folder.name} runs here")
            continue
        with folder_lock:
            if folder != study_dir:
                pull(folder, manifest=manifest)
            elif read_note(folder).get("version") != manifest["version"]:
                with trouble(url):
                    lacking = _fetch(fs, root, folder, manifest["files"])
                if not lacking:  # else the next look fetches them
                    write_json(folder / NOTE, {"version": manifest["version"]}, durable=False)


def folder_of(place: Path | str) -> Path:
    """The folder of a study; where that is named by a URL, its copy here, which is fetched."""
    if not is_url(place):
        return Path(place)
    fetch(folder := local(place))
    return folder


def studies(runs_dir: Path) -> list[str]:
    """Names of the studies at the URL of a folder of studies."""
    if not (url := url_of(runs_dir)):
        return []
    fs, root = opened(url)
    with trouble(url):
        try:
            return sorted(_folders(fs, root))
        except FileNotFoundError:
            return []


def _folders(fs: Any, root: str) -> list[str]:
    """Names of the folders in a place, those that can be ours."""
    there = fs.ls(root, detail=True)
    paths = [PurePosixPath(each["name"]) for each in there if each["type"] == "directory"]
    return [path.name for path in paths if re.fullmatch(r"[\w+=@-][\w.+=@-]*", path.name)]


def check(runs_dir: Path) -> None:
    """Write something to the URL of a folder of studies and take it away again.
    Raises StorageError: that cannot be done."""
    if url := url_of(runs_dir):
        fs, root = opened(url)
        name = f"{root}/.write-{uuid.uuid4().hex[:8]}"
        with trouble(url):
            put(fs, name, b"x")
            fs.rm_file(name)


def read_note(folder: Path) -> Note:
    """Which manifest a folder has; empty where nothing was sent or fetched yet."""
    return cast(Note, read_left(folder / NOTE, "what it belongs to is fetched anew"))


def read_manifest(fs: Any, root: str) -> Manifest | None:
    """What is said to be a cell's files; None where nothing was sent yet.
    Raises StorageError: it is not a manifest."""
    try:
        data = fs.cat_file(f"{root}/{MANIFEST}")
    except FileNotFoundError:
        return None
    return _sound(data, root)


def _sound(data: bytes, where: str) -> Manifest:
    try:
        manifest = json.loads(data)
        sound = manifest["format"] == FORMAT and re.fullmatch(r"[0-9a-f]{32}", manifest["version"])
        for name, entry in manifest["files"].items():
            path = PurePosixPath(name)
            inside = path.parts and not path.is_absolute()
            sound = sound and inside and not any(part.startswith(".") for part in path.parts)
            sound = sound and re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]) and entry["size"] >= 0
        if not sound:
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(
            f"The manifest of a cell in {where} is damaged, or was written by another version of"
            " this program. Move it away with the store's own tool and rerun: the cell is then"
            " made again."
        ) from error
    return manifest


def key_of(name: str, digest: str) -> str:
    """Name of the object that holds a file: ``metrics.jsonl`` is ``metrics.<hash>.jsonl``."""
    path = PurePosixPath(name)
    unique_path = path.with_name(f"{path.stem}.{digest[:16]}{path.suffix}")
    return quote(str(unique_path), safe="/=+@, ")  # a * or [ would be taken for a pattern


def _keys(files: Mapping[str, Entry]) -> set[str]:
    return {key_of(name, entry["sha256"]) for name, entry in files.items()}


def _here(folder: Path) -> Iterator[Path]:
    """The files of a cell on this machine; hidden ones are its own business."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.is_file():
            yield path


def _members(folder: Path, cell: bool, ended: bool) -> Iterator[Path]:
    """What is sent of a folder: of a cell all but older checkpoints, of one that has ended all but
    checkpoints; of a study what is not in a cell."""
    newest = max(folder.glob("checkpoints/checkpoint-*/COMPLETE"), key=_number, default=None)
    for path in _here(folder):
        first = path.relative_to(folder).parts[0]
        if not cell and path.parent != folder and first not in OF_STUDY:
            continue
        of_newest = newest is not None and newest.parent in path.parents
        if first != "checkpoints" or (of_newest and not ended):
            yield path


def _number(manifest: Path) -> int:
    number = manifest.parent.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _send(
    fs: Any, root: str, folder: Path, members: Iterator[Path], there: Collection[str]
) -> Files:
    """Send what is not there yet; returns all of it as a manifest has it."""
    files: Files = {}
    batch: dict[str, bytes] = {}
    for path in members:
        name, size = path.relative_to(folder).as_posix(), path.stat().st_size
        if path.parent != folder:
            digest = _hash(path)
            key = key_of(name, digest)
            if key not in there and size > SMALL:
                fs.put_file(str(path), f"{root}/{key}")
            if key in there or size > SMALL:
                files[name] = Entry(size=size, sha256=digest)
                continue
        batch[name] = path.read_bytes()  # at once: it may be written to meanwhile
        if sum(map(len, batch.values())) > SMALL:
            files |= _send_small(fs, root, batch, there)
            batch = {}
    return files | _send_small(fs, root, batch, there)


def _send_small(fs: Any, root: str, batch: dict[str, bytes], there: Collection[str]) -> Files:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in batch.items()}
    keys = {name: key_of(name, digest) for name, digest in digests.items()}
    new = {f"{root}/{keys[name]}": data for name, data in batch.items() if keys[name] not in there}
    if new:
        fs.pipe(new)
    return {name: Entry(size=len(batch[name]), sha256=digests[name]) for name in batch}


def _hash(path: Path) -> str:
    """Hex SHA-256 of a file that changes with its size or its time."""
    status = path.stat()
    key = path, status.st_size, status.st_mtime_ns
    if key not in _HASHES:
        _HASHES[key] = sha256(path)
    return _HASHES[key]


def _fetch(fs: Any, root: str, folder: Path, wanted: Files) -> list[str]:
    """Make these files, those that are not here already; returns the missing ones."""
    lacking: list[str] = []
    batch: dict[str, Entry] = {}

    def take() -> None:
        keys = {f"{root}/{key_of(name, e['sha256'])}": name for name, e in batch.items()}
        texts = _read(fs, keys)
        for key, name in keys.items():
            data = texts.get(key)
            if data is None or hashlib.sha256(data).hexdigest() != batch[name]["sha256"]:
                lacking.append(name)
            else:
                write_bytes(folder / name, data, durable=False)
        batch.clear()

    for name, entry in wanted.items():
        path = folder / name
        sized = path.is_file() and path.stat().st_size == entry["size"]
        if (sized and _hash(path) == entry["sha256"]) or (name == LOG and path.exists()):
            continue
        if entry["size"] > SMALL:
            if not _fetch_large(fs, f"{root}/{key_of(name, entry['sha256'])}", path, entry):
                lacking.append(name)
            continue
        batch[name] = entry
        if sum(each["size"] for each in batch.values()) > SMALL:
            take()
    take()
    return lacking


def _read(fs: Any, paths: Collection[str]) -> dict[str, bytes]:
    """The objects among ``paths`` that are there. Raises what the store does for any other cause
    than that one is not."""
    texts: dict[str, bytes] = {}
    fetched = fs.cat(list(paths), on_error="return") if paths else {}
    contents = {str(path).lstrip("/"): data for path, data in fetched.items()}
    for path in paths:
        data = contents.get(path.lstrip("/"))
        if isinstance(data, bytes):
            texts[path] = data
        elif isinstance(data, BaseException) and not isinstance(data, FileNotFoundError):
            raise data
    return texts


def _fetch_large(fs: Any, key: str, path: Path, entry: Entry) -> bool:
    """Make one file through the disk; False where what is there is not it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        fs.get_file(key, str(fresh))
        if sound := sha256(fresh) == entry["sha256"]:
            fresh.replace(path)
        return sound
    except FileNotFoundError:
        return False
    finally:
        fresh.unlink(missing_ok=True)


def put(fs: Any, path: str, data: bytes) -> None:
    """Replace one object at once: stores do, and a folder of this machine by a rename."""
    if "file" in (fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,)):
        write_bytes(Path(path), data)
    else:
        fs.pipe_file(path, data)
