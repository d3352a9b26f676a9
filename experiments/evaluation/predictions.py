"""Answers that somebody else made to the rows of verifiable sets: JSONL, matched by ids.

A prediction of null is missing, which a wrong one is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.evaluation.chosen import Part
from experiments.evaluation.collect import Collected, Response, complete, model_of
from study.errors import UserError
from study.system.files import sha256
from study.tasks.datasets.sets import SETS
from study.tasks.files import records, refuse, short
from study.truth.item import Item

SHAPE = (
    'a line is {"dataset": NAME, "id": ID, "prediction": TEXT or null}, and "sample": NUMBER where'
    " a row is answered several times"
)
Line = tuple[str, str, str, Response]
"""Where it stands, its set, its id as it is written, and the answer."""


def read_predictions(path: Path) -> list[Line]:
    """The lines of a file of predictions. Raises UserError: a file that cannot be read, or the
    first line that is none, with its number."""
    lines = []
    for number, record in records(path, key="predictions"):
        where = f"{path}, {number}"
        dataset, name = record.get("dataset"), record.get("id")
        if "prediction" not in record:
            refuse(where, "no prediction", SHAPE)
        if not isinstance(dataset, str) or dataset not in SETS:
            refuse(where, f"the dataset {short(dataset)}", f"the sets are {', '.join(SETS)}")
        if not isinstance(name, str | int) or isinstance(name, bool):
            refuse(where, f"an id that is {short(name)}", SHAPE)
        text = record["prediction"]
        if not isinstance(text, str | None):
            refuse(where, f"a prediction that is {short(text)}", SHAPE)
        sample = record.get("sample", 0)
        if type(sample) is not int or sample < 0:
            refuse(where, f"a sample that is {short(sample)}", "it is a whole number from 0 on")
        if text is not None:
            # a lone half of a pair, which JSON can write and UTF-8 cannot
            text = text.encode("utf-8", "replace").decode("utf-8")
        place = int(number.rpartition(" ")[2])
        lines.append((where, dataset, str(name), Response("", text, place, record, sample)))
    if not lines:
        raise UserError(f"predictions={path} holds no prediction; {SHAPE}.")
    return lines


def matched(
    lines: Sequence[Line], sets: Mapping[str, Sequence[Item]]
) -> list[tuple[str, Item, Response]]:
    """(where, row, answer) of every line whose set is among ``sets``. Raises UserError: an id of no
    row, or a row that is answered twice as the same sample."""
    names = {name: _names(items) for name, items in sets.items()}
    before: dict[tuple[str, int], str] = {}
    pairs = []
    for where, dataset, name, response in lines:
        if dataset not in names:
            continue
        item = names[dataset].get(name)
        if item is None:
            last = sets[dataset][-1].id.rpartition(":")[2]
            legal = f"the ids of {dataset} are {sets[dataset][0].id} and so on, to row {last}"
            refuse(where, f"the unknown id {short(name)}", legal)
        earlier = before.setdefault((item.id, response.sample), where)
        if earlier != where:
            refuse(
                where,
                f"{short(item.id)} answered again, after {earlier.rpartition(', ')[2]}",
                'several answers to a row each have a "sample" of their own, from 0 on',
            )
        pairs.append((where, item, response))
    return pairs


def collect_predictions(
    lines: Sequence[Line],
    pairs: Sequence[tuple[str, Item, Response]],
    parts: Sequence[Part],
    path: Path,
    allow_missing: bool,
) -> Collected:
    """The answers to the rows of ``parts``, by id. Raises UserError: rows without an answer that
    are not allowed, or lines of several models."""
    ids = {item.id for part in parts for item in part.rows}
    answers: dict[Any, list[Response]] = defaultdict(list)
    for _, item, response in pairs:
        if item.id in ids:
            answers[item.id].append(response)
    for responses in answers.values():
        responses.sort(key=lambda response: response.sample)
    files = [{"path": str(path.resolve()), "sha256": sha256(path)}]
    model = model_of((response for *_, response in lines), path)
    beside = len(lines) - sum(map(len, answers.values()))
    collected = Collected(dict(answers), model, files, beside, 0, None)
    complete(collected, len(ids), path, allow_missing)
    return collected


def _names(items: Sequence[Item]) -> dict[str, Item]:
    """Every way to name a row -> the row: its id, its index alone, and its set's own id."""
    names: dict[str, Item] = {}
    for item in items:
        names[item.id.rpartition(":")[2]] = item
        if item.alias:
            names[item.alias] = item
    return names | {item.id: item for item in items}
