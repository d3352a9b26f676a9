"""Which rows of the verifiable sets an evaluation is about, and how they are asked."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.evaluation.options import Options
from experiments.evaluation.rubric import trained_under
from experiments.evaluation.selection import MOST, choose
from study.cell.folder import CellFolder
from study.errors import UserError
from study.rows import prompt_id
from study.system.files import say
from study.tasks.datasets.preset import Data, load_data
from study.tasks.datasets.sets import SETS, reported
from study.tasks.datasets.table import Table, open_table
from study.truth.item import Item

PROMPTS = Path(__file__).with_name("prompts")
STEPS = ("cot", "sc")
"""Methods that ask for the steps before the answer."""
TWICE = ("math", "math500")
"""All rows of the second are rows of the first."""


@dataclass(frozen=True)
class Part:
    """The rows of one split of a set."""

    dataset: str
    split: str
    rows: tuple[Item, ...]
    """Those that are evaluated."""
    whole: tuple[Item, ...]
    """All of the split."""
    trained_on: int | None
    """Rows left out because the policy was trained on them, or may yet be; None where its training
    is not known, or not all of it."""

    @property
    def domain(self) -> str:
        """The domain of the data set."""
        return SETS[self.dataset].domain

    @property
    def name(self) -> str:
        """``<dataset>-<split>``, for names of files."""
        return f"{self.dataset}-{self.split}"


def load_sets(names: Iterable[str], root: str | None) -> dict[str, list[Item]]:
    """Set -> its reported rows in official order. Raises UserError: a file that is not there or not
    of the form, or two sets with the same rows."""
    data: Data = load_data("official", [f"data.root={json.dumps(root)}"] if root else [])
    datasets = list(dict.fromkeys(names))
    if set(TWICE) <= set(datasets):
        raise UserError(
            "math500 is a part of the 5,000 rows of math, and its result would be no second one."
            " Give one of them: datasets=math, or datasets=math500."
        )
    return {name: reported(name, data.folder(name)) for name in datasets}


def default_sets() -> list[str]:
    """The sets of the preset ``official``."""
    return load_data("official").datasets


def choose_rows(
    sets: Mapping[str, Sequence[Item]], splits: Mapping[str, Sequence[str]], options: Options
) -> list[Part]:
    """The rows to evaluate of each split: none that the policy was trained on, the first ``limit``
    or those that ``select`` chooses. Raises UserError: nothing is left of a split."""
    trained_rows = trained_on(options)
    parts = []
    for name, items in sets.items():
        for split in splits.get(name, SETS[name].test):
            whole = tuple(item for item in items if item.split == split)
            unseen = [
                item for item in whole if trained_rows is None or not trained_rows.holds(item)
            ]
            if not unseen:
                raise UserError(
                    f"{name} has no row in its {split} split that the policy was not trained on."
                    f" Leave it out: type datasets= with the others."
                )
            rows = tuple(_selected(unseen, options))
            trained = (
                len(whole) - len(unseen)
                if trained_rows is not None and trained_rows.whole
                else None
            )
            parts.append(Part(name, split, rows, whole, trained))
    return parts


def _selected(items: list[Item], options: Options) -> list[Item]:
    """The first ``limit`` rows; or ``limit`` of them, at random or spread over what is asked by
    facility location. Where there are more rows than that takes, it chooses among `MOST` at random.
    Raises UserError: facility location is to choose more than `MOST`."""
    limit = options.limit
    if limit is None or limit >= len(items):
        return items
    if options.select is None:
        return items[:limit]
    if options.select == "facility" and len(items) > MOST:
        if limit > MOST:
            raise UserError(
                f"select=facility chooses {MOST} rows at most, and limit={limit}. Type"
                f" limit={MOST} or less, or select=random."
            )
        items = _choose_items(items, MOST, "random", options.seed)
    return _choose_items(items, limit, options.select, options.seed)


def _choose_items(items: list[Item], count: int, method: str, seed: int) -> list[Item]:
    """``count`` of the rows, in their order."""
    places = choose([item.question for item in items], count, method, seed=seed)
    return [items[place] for place in places]


@dataclass(frozen=True)
class TrainedRows:
    """What a policy was trained on. The same problem may be a row of another set, as MATH-500's are
    rows of MATH, so prompts count as well as ids."""

    ids: frozenset[str]
    prompts: frozenset[str]
    table: Table | None
    """The prepared folder whose train rows it drew from."""
    datasets: tuple[str, ...]
    """The sets of the folder that it drew from; none for all."""
    whole: bool = True
    """Whether this is all; else what it may yet draw is not known."""

    def holds(self, item: Item) -> bool:
        """Whether the row, or one with the same prompt, was trained on."""
        if item.id in self.ids or item.prompt in self.prompts:
            return True
        if self.table is None:
            return False
        places = (self.table.place(item.id), self.table.place_of_prompt(prompt_id(item.prompt)))
        drawn_from = self.datasets or tuple(self.table.domains)
        return any(
            self.table.split_of(place) == "train" and self.table.at(place).dataset in drawn_from
            for place in places
            if place is not None
        )


def trained_on(options: Options) -> TrainedRows | None:
    """What the policy that answers was trained on: the rows in its records, and the train rows of
    its prepared folder, which may come yet. None where its training is not known.
    Raises UserError: ``run=`` is no cell, or its records are damaged."""
    trained = trained_under(options)
    if trained is None:
        return None
    cell = CellFolder(Path(trained["place"]))
    ids: set[str] = set()
    prompts: set[str] = set()
    for _, table in cell.records("rollouts", ("item", "prompt")):
        columns = table.to_pydict()
        ids.update(name for name in columns.get("item", ()) if name)
        prompts.update(columns["prompt"])
    table, datasets, whole = None, (), True
    try:
        task = cell.config()["task"]
        if task["name"] == "mixed":
            datasets = tuple((task.get("options") or {}).get("datasets") or ())
            table = open_table(task["path"])
    except FileNotFoundError:
        say(f"What {cell} was trained on is not known: it has no config.yaml.")
        return None
    except UserError as error:
        say(f"The rows that {cell} trained on are known from its records only: {error}")
        whole = False
    return TrainedRows(frozenset(ids), frozenset(prompts), table, datasets, whole)


def prompt_of(item: Item, method: str | None) -> str:
    """The prompt of a row, with the request to write down the steps where the method has one."""
    return f"{item.prompt}\n\n{_request(item.domain)}" if method in STEPS else item.prompt


@functools.cache
def _request(domain: str) -> str:
    name = "cot-code" if domain == "code" else "cot"
    return (PROMPTS / f"{name}.txt").read_text(encoding="utf-8").strip()


def digest(texts: Iterable[str]) -> str:
    """Hex SHA-256 over texts in their order."""
    whole = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        whole.update(f"{len(data)}:".encode() + data)
    return whole.hexdigest()
