"""Fetches the official files from the Hugging Face hub, in their official form and under their
official names. A hub that does not answer is said in one line, and the data folder is used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypedDict

import httpx
from huggingface_hub import HfApi, constants, set_client_factory

from study.cli import writes
from study.errors import UserError
from study.system.files import first_line, say, sha256, write_json, writing
from study.tasks.datasets import sets
from study.tasks.datasets.preset import DOWNLOADED, SOURCE, Data

HUB_SECONDS = 5
"""How long the hub may take to begin an answer."""
NOT_GIVEN = (OSError, ValueError, RuntimeError, httpx.HTTPError)
"""What is raised where the hub does not answer, or does not give what it is asked for."""


class Client(httpx.Client):
    """Gives a request up that is not answered in time. huggingface_hub would wait longer and ask
    again, for minutes."""

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Raises ConnectionError: no answer in time."""
        limits = dict.fromkeys(("connect", "read", "write", "pool"), HUB_SECONDS)
        request.extensions = {**request.extensions, "timeout": limits}
        try:
            return super().send(request, **options)
        except httpx.TimeoutException as error:
            raise ConnectionError(f"no answer in {HUB_SECONDS} s") from error


class Given(TypedDict):
    """Where a file is, and its hash."""

    path: str
    sha256: str


class Fetched(TypedDict):
    """The files of a set by official split; no revision where they are of the data folder."""

    hub_revision: str | None
    files: dict[str, Given]


HubRow = Mapping[str, Any]
"""A row as `datasets` gives it: texts, numbers, and lists and tables of those."""


def download(data: Data, out: Path) -> dict[str, Fetched]:
    """Lay the files of each set below ``out``; set -> where each file is, with its sha256.

    A set that the hub does not give is looked for in the data folder.
    Raises UserError: neither has it.
    """
    files_of: dict[str, Fetched] = {}
    closed = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else ""
    for name in data.datasets:
        try:
            if closed:
                raise ConnectionError(closed)
            revision = _revision(sets.source(name).hub["repository"])
            paths = _fetch(name, revision, out)
        except NOT_GIVEN as error:
            root = data.folder(name)
            if isinstance(error, ConnectionError | httpx.TransportError):
                closed = closed or first_line(error)
                say(f"The hub does not answer ({closed}): sets are taken from data.root={root}.")
            else:
                why = first_line(error)
                say(f"The hub did not give {name} ({why}): it is taken from data.root={root}.")
            paths, revision = sets.located(name, root), ""
        files = {split: Given(path=str(path), sha256=sha256(path)) for split, path in paths.items()}
        files_of[name] = {"hub_revision": revision or None, "files": files}
    return files_of


def completed(name: str, data: Data) -> Data:
    """The settings under which a set's files are there: ``data``, or with the files that the hub
    has given below `DOWNLOADED`. It is asked where the data folder has none of them.
    Raises UserError: neither has them."""
    root = data.folder(name)
    try:
        sets.located(name, root)
        return data
    except UserError as lacking:
        repository = sets.source(name).hub["repository"]
        try:
            if constants.HF_HUB_OFFLINE:
                raise ConnectionError("HF_HUB_OFFLINE is set")
            revision = _revision(repository)
            say(f"{root} holds no file of {name}: the hub gives {repository}, into {DOWNLOADED}.")
            _fetch(name, revision, DOWNLOADED)
        except NOT_GIVEN as error:
            why = first_line(error)
            raise UserError(f"{lacking} The hub did not give it either ({why}).") from error
    return replace(data, root=None)


def _revision(repository: str) -> str:
    """The newest commit of a repository. Raises OSError or httpx.HTTPError: no answer."""
    set_client_factory(lambda: Client(follow_redirects=True, timeout=None))
    commit = HfApi().dataset_info(repository, timeout=HUB_SECONDS).sha
    if not commit:
        raise OSError(f"{repository} has no commit")
    return commit


def _fetch(name: str, revision: str, out: Path) -> dict[str, Path]:
    """Write each official file of a set, and what it was made from."""
    from datasets import load_dataset

    source = sets.source(name)
    paths = {split: out / source.files[split][0] for split in source.hub["splits"]}
    note = next(iter(paths.values())).with_name(f"{name}{SOURCE}")
    with writes("out", out):
        note.unlink(missing_ok=True)
    for split, there in source.hub["splits"].items():
        parts = [
            load_dataset(source.hub["repository"], config, split=there, revision=revision)
            for config in source.hub["configs"]
        ]
        rows = (dict(row) for part in parts for row in part)
        with writes("out", out), writing(paths[split]) as file:
            file.writelines(piece.encode() for piece in FORMS.get(name, _lines)(rows))
    with writes("out", out):
        write_json(note, {"repository": source.hub["repository"], "revision": revision})
    return paths


def _lines(rows: Iterable[HubRow]) -> Iterator[str]:
    return (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _mbpp(rows: Iterable[HubRow]) -> Iterator[str]:
    return _lines(sorted(rows, key=lambda row: row["task_id"]))


def _squad2(rows: Iterable[HubRow]) -> Iterator[str]:
    """Questions put back into paragraphs of articles."""
    articles = []
    for title, questions in groupby(rows, key=lambda row: row["title"]):
        paragraphs = []
        for context, some in groupby(questions, key=lambda row: row["context"]):
            paragraphs.append({"context": context, "qas": [_question(row) for row in some]})
        articles.append({"title": title, "paragraphs": paragraphs})
    yield json.dumps({"version": "v2.0", "data": articles}, ensure_ascii=False)


def _question(row: HubRow) -> dict[str, object]:
    texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
    pairs = zip(texts, starts, strict=True)
    answers = [{"text": text, "answer_start": start} for text, start in pairs]
    question = {"question": row["question"], "id": row["id"], "answers": answers}
    return {**question, "is_impossible": not answers}


def _hotpotqa(rows: Iterable[HubRow]) -> Iterator[str]:
    """One JSON list, a row at a time."""
    before = "["
    for row in rows:
        facts, context = row["supporting_facts"], row["context"]
        official = {
            "_id": row["id"],
            **{key: row[key] for key in ("question", "answer", "type", "level")},
            "supporting_facts": list(zip(facts["title"], facts["sent_id"], strict=True)),
            "context": list(zip(context["title"], context["sentences"], strict=True)),
        }
        yield before + json.dumps(official, ensure_ascii=False)
        before = ",\n"
    yield "]\n" if before != "[" else "[]\n"


FORMS: dict[str, Callable[[Iterable[HubRow]], Iterator[str]]] = {
    "mbpp": _mbpp,
    "squad2": _squad2,
    "hotpotqa": _hotpotqa,
}
"""Sets whose official form is not one JSON object a line."""
