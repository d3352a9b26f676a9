"""A study's folder as data frames: runs, steps, rollouts and verdicts.

Everything is read straight from ``runs/<study>/<cell>/``, so a study that is still running, or that
a crash has cut, is read as far as it goes. What could not be read is never fatal: each frame names
it in ``frame.attrs["problems"]``, a list of sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from analysis.records.arms import NAMELESS, arm_names
from study.cell.exchange import folder_of
from study.cell.folder import CellFolder, study_cells
from study.cell.parts import left_out, read_all, read_part
from study.cell.records import (
    COMPONENT,
    EVALUATIONS,
    FEATURE,
    OPTIONAL,
    ROLLOUT,
    VERDICT,
    frame_types,
    where,
)
from study.cell.study_file import read_study
from study.cell.verify import foreign_parts, lost_steps, read_form, strangers
from study.cli import StudyOptions
from study.config.identity import flatten
from study.features import BEHAVIOURS
from study.programs.rewards import SHARES
from study.system.files import Damaged, read_yaml

NUMBERS = (COMPONENT, FEATURE)
"""Prefixes of columns that the contract does not name, and that are numbers."""
OPERATOR = f"{FEATURE}op/"
"""Prefix of those that count the executed calls of one operator in a program."""
ROLLOUT_COLUMNS = frame_types(
    {
        **ROLLOUT,
        **{name: kind for name, kind in OPTIONAL.items() if name != "scaffold_items"},
    }
)
"""What a rollout has, and the dtype it is given; columns of `NUMBERS` are float64.
``rules`` is what each rule said, missing where none was run; ``dataset``, ``domain`` and ``item``
are missing where the task has no data sets, ``truth_missing`` where no truth was lost."""

VERDICT_COLUMNS = frame_types(VERDICT)

_FROM_CONFIG = {
    "judge_family": "judge.family",
    "judge_size": "judge.size",
    "judge_model": "judge.endpoint.model",
    "judge_revision": "judge.revision",
    "keyword": "judge.simulated.keyword",
    "grading": "judge.grading.name",
    "on_failure": "judge.on_failure",
    "policy": "policy.name",
    "policy_family": "policy.family",
    "policy_size": "policy.size",
    "task": "task.name",
    "reward": "reward.name",
    "scaffold": "scaffold.name",
}
"""Run columns that are a text of the config, and its key there."""
_NOT_TEXTS = {
    **dict.fromkeys(("done", "simulated", "undosed"), "bool"),
    **dict.fromkeys(("step", "steps", "seed"), "int64"),
    "seconds": "float64",
    "git_dirty": "object",
}
RUN_COLUMNS: dict[str, str] = {
    name: _NOT_TEXTS.get(name, "str")
    for name in (
        "study cell config_hash state done step steps seconds error arm judge judge_family "
        "judge_size judge_model judge_revision simulated undosed keyword grading on_failure policy "
        "policy_family policy_size task reward scaffold seed git_commit git_dirty"
    ).split()
}
"""One row per cell. ``undosed`` is a simulated judge without a planted bias; ``arm`` is the judge,
what differs between judges of its name, and every other declared factor but the seed."""

AXES = ("arm", "judge", "judge_family", "judge_size", "policy", "reward", "seed", "state")
"""Run columns that every step, rollout and verdict carries; see `_with_axes` for two new names."""
_PLAIN = {"judge", "seed", "policy", "reward", "task", "scaffold"}


def runs_frame(study_dir: Path | str) -> pd.DataFrame:
    """One row per cell of the study, in any state, with its axes.

    Factors of the study that are not columns already are added under their own dotted name.
    ``config_hash`` is the identity that the cell's folder name ends with. ``attrs["looks"]`` are
    those that the study declared.

    Raises:
        UserError: no such folder.
    """
    study_dir = folder_of(study_dir)
    if not study_dir.is_dir():
        StudyOptions(study_dir.name, study_dir.parent).check()
    problems: list[str] = []
    described = read_study(study_dir, problems)
    factors = described.get("factors", [])
    problems += [sentence.rstrip(".") for sentence in strangers(study_dir)]
    configs: list[dict[str, Any]] = []
    rows = [
        _run(study_dir.name, cell, factors, problems, configs) for cell in study_cells(study_dir)
    ]
    for row, arm in zip(rows, arm_names(configs, factors), strict=True):
        row["arm"] = arm
    extra = [name for name in factors if name not in _PLAIN]
    runs = _typed(pd.DataFrame(rows, columns=[*RUN_COLUMNS, *extra]), RUN_COLUMNS)
    runs.attrs["problems"], runs.attrs["looks"] = problems, described.get("looks", [])
    return runs


def steps_frame(study_dir: Path | str, runs: pd.DataFrame | None = None) -> pd.DataFrame:
    """The logged metrics, long: cell, step, time_ms, metric, value, and the run axes."""
    study_dir, problems = folder_of(study_dir), []
    runs = runs_frame(study_dir) if runs is None else runs
    rows: list[tuple[str, int, float | None, str, float]] = []
    for cell in runs["cell"]:
        for line in CellFolder(study_dir / cell).lines(problems):
            for metric, value in line["metrics"].items():
                number = float("nan") if value is None else float(value)
                rows.append((cell, line["step"], line["time_ms"], metric, number))
    columns = {"cell": "str", "step": "int64", "time_ms": "float64", "metric": "object"}
    columns["value"] = "float64"
    return _with_axes(_typed(pd.DataFrame(rows, columns=list(columns)), columns), runs, problems)


def rollouts_frame(
    study_dir: Path | str,
    columns: Sequence[str] | None = None,
    runs: pd.DataFrame | None = None,
    steps: Collection[int] | None = None,
    frozen: bool = False,
) -> pd.DataFrame:
    """Every recorded rollout with its run axes; ``columns`` and ``steps`` limit what is read.

    ``frozen`` reads the answers to held-out rows instead (`study.cell.records.EVALUATIONS`).

    A prefix such as those of `NUMBERS` among the columns, which ends with a slash, stands for all
    columns that begin with it. A component or feature that no rollout has is NaN throughout; the
    behaviours of `study.features` are measured from the answer, not recorded.
    Raises KeyError: a column that no rollout file has and the contract does not know.
    """
    kind = f"{EVALUATIONS}/rollouts" if frozen else "rollouts"
    return _parts_frame(folder_of(study_dir), kind, ROLLOUT_COLUMNS, columns, runs, steps)


def plays(cell: CellFolder) -> bool:
    """Whether the completions of a run are programs: its rollouts have an ``outcome``."""
    return has_column(cell, "outcome")


def has_column(cell: CellFolder, name: str) -> bool:
    """Whether the first sound part of a run's rollouts has a column, with values or without."""
    for part in cell.parts("rollouts"):
        try:
            return name in read_part(part, [name]).column_names
        except Damaged:
            continue
    return False


def verdicts_frame(
    study_dir: Path | str,
    columns: Sequence[str] | None = None,
    runs: pd.DataFrame | None = None,
    frozen: bool = False,
) -> pd.DataFrame:
    """Every recorded verdict with its run axes; ``columns`` limits what is read from disk, and
    ``frozen`` reads those on held-out rows.

    ``judge`` is who gave the verdict (acting or shadow, see ``role``); the judge that the run was
    trained under is ``acting_judge``, and the policy's seed ``seed``. Raises KeyError: a column
    that no verdict file has and the contract does not know.
    """
    kind = f"{EVALUATIONS}/verdicts" if frozen else "verdicts"
    return _parts_frame(folder_of(study_dir), kind, VERDICT_COLUMNS, columns, runs)


def _run(
    study: str,
    cell: CellFolder,
    factors: list[str],
    problems: list[str],
    configs: list[dict[str, Any]],
) -> dict[str, Any]:
    """A row of `runs_frame` without its arm; the cell's config is added to ``configs``."""
    status = cell.status(problems)
    environment = flatten(_read(read_form, cell / "environment.json", problems))
    configs.append(read_config(cell, problems))
    flat = flatten(configs[-1])
    doses = judge_doses(flat)
    start = "judge.simulated.domains."
    of_domains = [dose for k, dose in flat.items() if k.startswith(start) and ".doses." in k]
    digest = re.search(r"-([0-9a-f]{10})$", cell.name)
    state = cell.state()
    if why := cell.other_end(status):
        problems.append(f"{where(cell / 'status.json')} {why}")
    row: dict[str, Any] = {
        "study": study,
        "cell": cell.name,
        "config_hash": digest.group(1) if digest else "",
        "state": state,
        "done": state == "done",
        "step": status.get("step") or 0,
        "steps": status.get("steps") or flat.get("trainer.steps") or 0,
        "seconds": status.get("seconds"),
        "error": status.get("error") or "",
        "judge": str(flat.get("judge.name") or NAMELESS),
        "simulated": doses is not None,
        "undosed": doses is not None and not any([*doses.values(), *of_domains]),
        "seed": _seed(cell, flat, problems),
        "git_commit": environment.get("git.commit") or "",
        "git_dirty": environment.get("git.dirty"),
        **{column: str(flat.get(key) or "") for column, key in _FROM_CONFIG.items()},
    }
    for factor in factors:
        row.setdefault(factor, flat.get(factor, flat.get(f"{factor}.name")))
    return row


def judge_doses(flat: Mapping[str, Any]) -> dict[str, float] | None:
    """Feature -> dose of the simulated judge of a flat config; None for a real judge."""
    start = "judge.simulated."
    simulated = {k.removeprefix(start): value for k, value in flat.items() if k.startswith(start)}
    doses = {k.removeprefix("doses."): v for k, v in simulated.items() if k.startswith("doses.")}
    return doses if simulated else None


def _seed(cell: CellFolder, flat: dict[str, Any], problems: list[str]) -> int:
    seed = flat.get("seed") or 0
    if isinstance(seed, int) and abs(seed) < 1 << 53:
        return seed
    problems.append(f"{where(cell / 'config.yaml')} says seed={seed!r:.40}, which is read as 0")
    return 0


def read_config(cell: CellFolder, problems: list[str]) -> dict[str, Any]:
    """A cell's resolved config; {} where there is none, and a sentence where it is damaged."""
    path = cell / "config.yaml"
    try:
        config = _read(read_yaml, path, problems)
    except FileNotFoundError:
        return {}
    if config and (why := cell.other_config(config)):
        problems.append(f"{where(path)} {why}")
    return config


def _read(read: Callable[[Path], Any], path: Path, problems: list[str]) -> Any:
    """What a file holds; {} and a sentence in ``problems`` where it is damaged."""
    try:
        return read(path)
    except Damaged as error:
        problems.append(f"{where(path)} is left out: it {error.why}")
        return {}


def _parts_frame(
    study_dir: Path,
    kind: str,
    contract: dict[str, str],
    columns: Sequence[str] | None,
    runs: pd.DataFrame | None,
    steps: Collection[int] | None = None,
) -> pd.DataFrame:
    runs = runs_frame(study_dir) if runs is None else runs
    problems: list[str] = []
    tables = []
    for code, cell in enumerate(runs["cell"]):
        folder = study_dir / cell / kind
        problems += [text.rstrip(".") for text in (*foreign_parts(folder), *lost_steps(folder))]
        damaged_parts: list[Damaged] = []
        # step is among them, for a table without columns has no rows
        columns_to_read = None if columns is None else [*columns, "step"]
        for part, table in read_all(folder, columns_to_read, steps, damaged_parts):
            try:
                frame_table = _frame_columns(part.path, table, contract, columns)
            except Damaged as error:
                damaged_parts.append(error)
                continue
            codes = pa.array([code] * frame_table.num_rows, pa.int32())
            tables.append(frame_table.append_column("_run", codes))
        problems += map(left_out, damaged_parts)
    wanted = list(contract) if columns is None else [n for n in columns if n[-1] != "/"]
    frame = pd.DataFrame({"_run": pd.Series([], dtype="int32")})
    if tables:
        frame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
        present = {*contract, *frame}
        unknown = [n for n in wanted if n not in present and not _may_be_recorded(n)]
        if unknown:
            raise KeyError(f"{kind} have no {', '.join(unknown)}; they have {', '.join(contract)}")
    dtypes = {name: contract.get(name, "float64") for name in wanted}
    dtypes |= {name: "float64" for name in frame if str(name).startswith(NUMBERS)}
    cells = pd.Categorical.from_codes(frame.pop("_run").to_numpy(), categories=list(runs["cell"]))
    frame = _typed(frame.reindex(columns=list(dtypes)), dtypes)
    frame.insert(0, "cell", cells)
    return _with_axes(frame, runs, problems)


def _may_be_recorded(name: str) -> bool:
    """Whether a run may have such a number. Behaviours are measured from the answer instead, but
    for those that a reward has a term for."""
    measured = {*BEHAVIOURS} - {*SHARES}
    return name.startswith(NUMBERS) and name.removeprefix(FEATURE) not in measured


def _frame_columns(
    path: Path, table: pa.Table, contract: dict[str, str], columns: Sequence[str] | None
) -> pa.Table:
    """The columns that a frame has. What the contract does not know is left out, or read as numbers
    where it is asked for by its name."""
    names = table.column_names
    others = [name for name in names if name not in contract and not name.startswith(NUMBERS)]
    if columns is None:
        return table.drop_columns(others)
    for name in others:
        try:
            numbers = table[name].cast(pa.float64())
        except pa.ArrowException as error:
            raise Damaged(path, f"holds {name} as {table[name].type}") from error
        table = table.set_column(names.index(name), name, numbers)
    return table


def _with_axes(frame: pd.DataFrame, runs: pd.DataFrame, problems: list[str]) -> pd.DataFrame:
    """Run axes by cell, the reward's name as ``reward_name``, for ``reward`` is a number. ``judge``
    keeps its own meaning in a frame that has it."""
    codes = pd.Categorical(frame["cell"], categories=list(runs["cell"])).codes
    names = {"reward": "reward_name", **({"judge": "acting_judge"} if "judge" in frame else {})}
    for axis in AXES:
        name = names.get(axis, axis)
        values = pd.Categorical(runs[axis], runs[axis].unique())
        frame[name] = (runs[axis].to_numpy() if axis == "seed" else values).take(codes)
    frame.attrs["problems"] = problems
    return frame


def _typed(frame: pd.DataFrame, dtypes: dict[str, str]) -> pd.DataFrame:
    for name, dtype in dtypes.items():
        if name not in frame:
            continue
        if dtype == "float64":
            frame[name] = pd.to_numeric(frame[name]).astype("float64")
        elif dtype == "bool":
            frame[name] = frame[name].eq(True).astype("bool")
        elif dtype == "int64":
            # A missing whole number stays missing, so its column is float then.
            number = pd.to_numeric(frame[name])
            frame[name] = number.astype("float64" if number.isna().any() else "int64")
        elif dtype != "object":
            frame[name] = frame[name].astype(dtype)
    return frame
