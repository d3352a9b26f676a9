"""What a cell's run holds beside its metrics: its data, samples, a picture, its policy, and why.

All of it is made from the cell's folder, so that a live run and a rebuild send the same. Texts of
policies and judges are cut, keys are taken out, and they go as data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.policies.load import label_of
from experiments.tracking import projection, summary
from experiments.tracking.evaluations import logged_model
from experiments.tracking.store import CHARTS
from study.cell.cells import Cell
from study.cell.folder import CellFolder
from study.cell.parts import Part, left_out, read_part
from study.screen import visible
from study.system.files import Damaged, plain, read_json, say
from study.system.secrets import redact

SAMPLES = "samples.json"
PICTURE = "judge-and-truth.svg"
PER_STEP = 8
"""Samples of the first, the middle and the last step each: half of them those that the judge
overrates most, half of them as they come."""
TRIES = 3
LONGEST = 1500
"""Characters of a text."""
_SHOWN = ("step", "judge_score", "truth", "prompt", "answer")
_VERDICT = ("outcome", "labels", "reason")
_LAST = ("reward", "advantage", "prompt_id", "rollout_id")
"""The columns of the table: what it is looked at for stands where a narrow page shows it."""
_COLUMNS = ("rollout_id", "step", "prompt_id", "prompt", "answer", "completion", "judge_score")
_COLUMNS += ("truth", "reward", "advantage")
_REASONS = ("rollout_id", "role", "outcome", "labels", "reason")


class Contents(NamedTuple):
    """What `of_cell` makes of a cell's folder."""

    description: str
    data: dict[str, str]
    """Name, digest, source and profile of the task's rows."""
    table: dict[str, list[Any]]
    """``columns`` and ``data`` of the samples, as MLflow keeps a table; empty where there is none.
    """
    picture: str
    """SVG; empty where nothing can be drawn."""


def of_cell(cell: Cell) -> Contents:
    """Description, data, samples and picture of a cell, from its records."""
    lines = cell.folder.lines()
    series = {name: _series(lines, name) for name in CHARTS}
    return Contents(_description(cell, series), _data(cell), _samples(cell), _picture(series))


def send_contents(client: Any, ids: Mapping[str, str], run_id: str, cell: Cell) -> None:
    """Put the contents of a cell on its run; sent again, they take the place of the former ones."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    contents = of_cell(cell)
    client.set_tag(run_id, summary.DESCRIPTION, contents.description)
    context = [InputTag("mlflow.data.context", "training")]
    _log_data(client, run_id, DatasetInput(Dataset(**contents.data), context))
    if contents.table:
        client.log_text(run_id, json.dumps(contents.table), SAMPLES)
        listed = json.dumps([{"path": SAMPLES, "type": "table"}])
        client.set_tag(run_id, "mlflow.loggedArtifacts", listed)
    if contents.picture:
        client.log_text(run_id, contents.picture, f"figures/{PICTURE}")
    policy = cell.folder / "policy"
    steps = [part.step for part in cell.folder.parts("rollouts")]
    if policy.is_dir() and steps:
        run = {**ids, "run_id": run_id}
        logged_model(client, run, cell.name, max(steps), policy_label(policy))


def _log_data(client: Any, run_id: str, data: Any) -> None:
    """Log a run's data. MLflow looks whether it knows them and then adds them, so of two cells that
    end at one moment the later one is refused; asked again, it finds them."""
    from mlflow.exceptions import MlflowException

    for attempt in range(1, TRIES + 1):
        try:
            return client.log_inputs(run_id, [data])
        except MlflowException:
            if attempt == TRIES:
                raise


def policy_label(policy: Path) -> str:
    """The label of a cell's policy, as evaluations of the run name it."""
    adapted = read_json(policy / "adapter_config.json")
    base = adapted.get("base_model_name_or_path")
    return label_of(str(base), policy) if base else label_of(str(policy), None)


def bounded(text: Any, keys: Iterable[str] = (), most: int = LONGEST) -> str:
    """A text of others: keys out, then cut, so that no part of a key is left at its end, and what
    cannot be seen spelled out. ``keys`` are those that are known."""
    whole = redact("" if text is None else str(text), keys)
    cut = f" ... ({len(whole) - most:,} more characters)" if len(whole) > most else ""
    return visible(whole[:most]) + cut


def short(value: Any, keys: Iterable[str] = (), most: int = LONGEST) -> Any:
    """A value as a page shows it: numbers with three places, texts as `bounded` has them."""
    if isinstance(value, float):
        return round(value, 3)
    return bounded(value, keys, most) if isinstance(value, str) else value


# --- words


def _series(lines: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """Step and value of a metric, from step 1 on."""
    points = ((line["step"], line["metrics"].get(name)) for line in lines if line["step"])
    return [(step, float(value)) for step, value in points if value is not None]


def _description(cell: Cell, series: Mapping[str, list[tuple[int, float]]]) -> str:
    config = cell.config
    who = {
        "judge": config.judge.name,
        "policy": config.policy.name,
        "task": config.task.name,
        "reward": config.reward.name,
        "seed": config.seed,
    }
    settings = ", ".join(f"{key} **{summary.escaped(value)}**" for key, value in who.items())
    rows = [
        {
            "": title,
            "first": _at(values[0]),
            "last": _at(values[-1]),
        }
        for name, title in CHARTS.items()
        if (values := series[name])
    ]
    table = summary.markdown_table(rows) if rows else "No step is on record yet."
    where = summary.escaped(f"{config.study}/{cell.name}")
    return (
        f"{settings}\n\n{table}\n\nAnswers with their verdicts: `{SAMPLES}` under *Artifacts*, and"
        f" the *Traces* of this run. The records are the folder {where} of the runs."
    )


def _at(point: tuple[int, float]) -> str:
    """A value and its step: measures need not have the same first and last step."""
    step, value = point
    return f"{value:.3g} at step {step}"


# --- data


def _data(cell: Cell) -> dict[str, str]:
    """The task's rows. The digest is of the settings that choose them; a file that is changed under
    the same name is another matter."""
    task = cell.config.task
    settings = {
        key: value
        for key, value in projection.params(cell).items()
        if key == "task" or key.startswith("task.")
    }
    canonical = json.dumps(settings, sort_keys=True)
    return {
        "name": projection.params(cell)["task"][:200],
        "digest": hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest(),
        "source_type": "local",
        "source": json.dumps({"uri": settings.get("task.path", f"task={task.name}")}),
        "profile": json.dumps({"num_rows": task.train_rows, **settings})[:4000],
    }


# --- samples


def _samples(cell: Cell) -> dict[str, list[Any]]:
    folder, keys = cell.folder, projection.keys_of(cell)
    step_parts = folder.parts("rollouts")
    if not step_parts:
        return {}
    places = dict.fromkeys((0, len(step_parts) // 2, len(step_parts) - 1))
    rows: list[list[Any]] = []
    for place in places:
        part = step_parts[place]
        rows_of_step = step_rows(folder, "verdicts", part.step, _REASONS)
        verdicts = [row for row in rows_of_step if row["role"] == "acting"]
        reasons = {row["rollout_id"]: row for row in reversed(verdicts)}  # of several, the first
        for row in _of_step(sound_rows(part, _COLUMNS)):
            verdict = reasons.get(row["rollout_id"], {})
            if row["answer"] is None:
                row["answer"] = row["completion"]
            first, last = ([short(row[name], keys) for name in names] for names in (_SHOWN, _LAST))
            labels = ", ".join(map(str, verdict.get("labels") or []))
            verdict_texts = [verdict.get("outcome"), labels, verdict.get("reason")]
            rows.append([*first, *(bounded(each, keys) for each in verdict_texts), *last])
    columns = [*_SHOWN, *_VERDICT, *_LAST]
    return {"columns": columns, "data": plain(rows)} if rows else {}


def _of_step(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`PER_STEP` rows of a step."""
    overrated = sorted(rows, key=lambda row: -gap(row))[: PER_STEP // 2]
    ids = {id(row) for row in overrated}
    return overrated + [row for row in rows if id(row) not in ids][: PER_STEP - len(overrated)]


def gap(row: Mapping[str, Any]) -> float:
    """Judge minus truth of a rollout; least of all where one of them is not known."""
    score, truth = row.get("judge_score"), row.get("truth")
    return float("-inf") if score is None or truth is None else score - truth


def step_rows(
    folder: CellFolder, kind: str, step: int, names: Sequence[str]
) -> list[dict[str, Any]]:
    """`sound_rows` of a step; none where it has none."""
    parts = [part for part in folder.parts(kind) if part.step == step]
    return [row for part in parts for row in sound_rows(part, names)]


def sound_rows(part: Part, names: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a part, None for what it has no column of; none, and a line that says so, where it is
    damaged."""
    try:
        rows = read_part(part, names).to_pylist()
    except Damaged as damage:
        say(left_out(damage))
        return []
    return [dict.fromkeys(names) | row for row in rows]


# --- picture

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 300, 50, 40
_COLOURS = {"judge/mean": "#b4560f", "truth/mean": "#1a6b8a"}


def _picture(series: Mapping[str, list[tuple[int, float]]]) -> str:
    """Judge and truth over the steps, on one scale."""
    curves = {name: series[name] for name in _COLOURS if len(series[name]) > 1}
    if not curves:
        return ""
    steps = [step for values in curves.values() for step, _ in values]
    scale = [0.0, 1.0, *(value for values in curves.values() for _, value in values)]
    first, last, low, high = min(steps), max(steps), min(scale), max(scale)
    across, up = _WIDTH - _LEFT - 150, _HEIGHT - _BOTTOM - 20

    def x(step: int) -> float:
        return _LEFT + across * (step - first) / max(1, last - first)

    def y(value: float) -> float:
        return 20 + up * (high - value) / (high - low)

    shapes = [
        f'<line x1="{_LEFT}" x2="{_LEFT + across}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
        f'stroke="#ddd"/><text x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">'
        f"{tick:.3g}</text>"
        for tick in dict.fromkeys((low, (low + high) / 2, high))
    ]
    shapes += [
        f'<text x="{x(step):.1f}" y="{_HEIGHT - 20}" text-anchor="middle">{step}</text>'
        for step in dict.fromkeys((first, last))
    ]
    labels = _apart([y(values[-1][1]) for values in curves.values()])
    for (name, values), label in zip(curves.items(), labels, strict=True):
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in values)
        colour = _COLOURS[name]
        shapes.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{_LEFT + across + 6}" y="{label + 4:.1f}" fill="{colour}">'
            f"{name.partition('/')[0]}</text>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="13">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>{"".join(shapes)}'
        f'<text x="{_LEFT + across / 2}" y="{_HEIGHT - 4}" text-anchor="middle">step</text></svg>\n'
    )


def _apart(heights: Iterable[float]) -> list[float]:
    """Heights of labels that do not cover each other."""
    placed: list[float] = []
    for height in heights:
        near = [other for other in placed if abs(other - height) < 16]
        placed.append(near[0] + (16 if height >= near[0] else -16) if near else height)
    return placed
