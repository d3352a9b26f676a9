"""Writes what a run would draw, row by row, for whoever needs a file of training rows.

The rows come from the sampler that a run has, so a row that a run draws four times stands here four
times, at the steps at which the run draws it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TypedDict

from study.config.schema import Task
from study.errors import UserError
from study.system.files import sha256, write_json, writing
from study.tasks.datasets.table import MANIFEST
from study.tasks.mixed import Order
from study.truth.item import Item, short_answer

INFO = "info.json"
"""Name of the file beside the rows that counts them."""


class DrawnSet(TypedDict):
    """What is drawn of a set; see `_counted`."""

    domain: str
    weight: float
    drawn: int
    rows: int
    distinct: int
    most_repeats: int
    effective: float
    used_up_at: int | None


class DrawnDomain(TypedDict):
    """What is drawn of a domain: the share that it is meant to have, and the share that it has."""

    weight: float
    target: float
    drawn: int
    share: float


class Counted(TypedDict):
    """What is drawn of each domain and set."""

    domains: dict[str, DrawnDomain]
    datasets: dict[str, DrawnSet]


class Info(Counted):
    """What stands in `INFO`."""

    rows: int
    steps: int
    prompts_per_step: int
    seed: int
    data: str
    manifest_sha256: str
    sha256: str
    options: dict[str, object]


def draw(task: Task, steps: int, prompts_per_step: int, seed: int, out: Path) -> Info:
    """Write {step, id, dataset, domain, problem, answer, type} of each row that a run of ``task``
    under ``seed`` draws, and `INFO` beside it, which is returned.

    Steps count from 1, as in the records. ``problem`` is the prompt as a policy is given it.
    ``answer`` is the first right one, the reference program where tests decide, and empty where
    "no answer" is right.
    Raises UserError: no prepared folder, weights that do not fit it, or too few rows.
    """
    if out.name == INFO:
        raise UserError(f"out={out} is the name of the file of counts. Give another name.")
    order = Order(task, seed)
    length = steps * prompts_per_step
    order.check(length)
    counts: Counter[tuple[str, int]] = Counter()
    with writing(out) as file:
        for position in range(length):
            place = order.mixture.at(position)
            counts[place[:2]] += 1
            line = {"step": position // prompts_per_step + 1, **_line(order.item(place))}
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    info: Info = {
        "rows": length,
        "steps": steps,
        "prompts_per_step": prompts_per_step,
        "seed": seed,
        "data": str(order.table.folder),
        "manifest_sha256": sha256(order.table.folder / MANIFEST),
        "sha256": sha256(out),
        "options": dict(task.options),
        **_counted(order, counts, length),
    }
    write_json(out.with_name(INFO), info)
    return info


def _line(item: Item) -> dict[str, str]:
    return {
        "id": item.id,
        "dataset": item.dataset,
        "domain": item.domain,
        "problem": item.prompt,
        "answer": short_answer(item.domain, item.reference, item.answers),
        "type": item.domain,
    }


def _counted(order: Order, counts: Counter[tuple[str, int]], length: int) -> Counted:
    """Of each domain and set: its weight and share, rows drawn, how many different ones, how often
    the one drawn most, and the effective number: (sum of counts)^2 / sum of their squares, which is
    the number of rows where all are drawn alike (Kish, "Survey Sampling", 1965)."""
    mixture = order.mixture
    ends = mixture.used_up(length)
    sets: dict[str, DrawnSet] = {}
    for name, pool in mixture.pools.items():
        counts_of_rows = [count for (dataset, _), count in counts.items() if dataset == name]
        sets[name] = {
            "domain": pool.domain,
            "weight": mixture.sets[name],
            "drawn": sum(counts_of_rows),
            "rows": pool.rows,
            "distinct": len(counts_of_rows),
            "most_repeats": max(counts_of_rows, default=0),
            "effective": sum(counts_of_rows) ** 2 / sum(n * n for n in counts_of_rows)
            if counts_of_rows
            else 0.0,
            "used_up_at": ends.get(name),
        }
    domains: dict[str, DrawnDomain] = {}
    for domain, weight in mixture.domains.items():
        drawn = sum(entry["drawn"] for entry in sets.values() if entry["domain"] == domain)
        domains[domain] = {
            "weight": weight,
            "target": weight / sum(mixture.domains.values()),
            "drawn": drawn,
            "share": drawn / length,
        }
    return {"domains": domains, "datasets": sets}
