"""A synthetic study, written with pyarrow exactly as the recorder writes one, with planted drift.

Everything in it is arithmetic, so that the tests' expectations can be worked out by hand:
an answer of run (judge, seed) at step t has ``6 + seed + rate * (t - 1)`` words, where ``rate`` is
the judge's slope plus the seed, or 0 for a judge without slope; the truth is ``0.4 + 0.01 * seed``
and the judge's score is ``truth + 0.01 * (words - 6)``.
"""

import dataclasses
import json
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import statsmodels.api as sm
import yaml

from analysis.display import svg
from analysis.propagation.estimate import paths, pushed
from analysis.records.runs import Records, Run, read_study, shift
from analysis.report.evidence import Evidence, gather, of_records
from study.cell import records, study_file
from study.cell.records import arrow_type
from study.config.compose import load_judge
from study.config.identity import digest
from study.system import locks
from tests.rewritten import unsigned
from tests.study.tasks.datasets import roots

SLOPES = {"sim-fair": 0, "sim-verbose": 8, "sim-flaky": 1}
"""Words per step that training under each judge adds for seed 0."""
THIN = (
    *({"seeds": 1}, {"judges": ["sim-fair"]}, {"truth": False, "seeds": 2}),
    *({"scored": False, "seeds": 2}, {"constant": 0.5, "seeds": 2}, {"steps": 1, "seeds": 2}),
)
"""Options of `write_study` under which there is little to say."""
HOSTILE = '<script src="https://example.org/x.js"></script><img src=http://example.org/y.png>'


def write_study(
    folder: Path,
    judges: Sequence[str] = ("sim-fair", "sim-verbose", "sim-flaky"),
    seeds: int = 3,
    judge_config: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Write a study and return its folder; ``options`` are those of `write_cell`."""
    folder.mkdir(parents=True)
    study_file.write_study(folder, {"study": folder.name, "factors": ["judge", "seed"]})
    for judge in judges:
        for seed in range(seeds):
            preset = {
                "name": judge,
                "family": "simulated",
                "size": "",
                "endpoint": {"model": judge},
                "grading": {"name": "likert"},
                "simulated": {"keyword": "alpha"},
                "on_failure": "unscored",
                **(judge_config or {}),
            }
            config = run_config(folder, seed, preset, "instruct-mini")
            config["policy"] = {"name": "tiny", "family": "llama", "size": "0.9M"}
            write_cell(folder / judge, config | {"reward": {"name": "judge"}}, **options)
    return folder


def run_config(
    study: Path, seed: int, judge: dict[str, Any], task: str, **more: Any
) -> dict[str, Any]:
    """The config of a run, as far as the analysis reads it."""
    head = {"study": study.name, "seed": seed, "judge": judge, "policy": {"name": "tiny"}}
    return head | {"task": {"name": task}, "scaffold": {"name": "none"}} | more


def write_cell(
    place: Path,
    config: dict[str, Any],
    steps: int = 6,
    groups: int = 4,
    members: int = 4,
    truth: bool = True,
    scored: bool = True,
    constant: float | None = None,
    state: str = "done",
) -> None:
    """Write the records of a run; sim-flaky fails on every fourth member."""
    cell = write_head(place, config | {"trainer": {"steps": steps}}, steps, state)
    git = {"commit": "0123456789abcdef", "dirty": False}
    (cell / "environment.json").write_text(json.dumps({"git": git}))
    judge, seed = config["judge"]["name"], config["seed"]
    lines = []
    for step in range(1, steps + 1):
        rollouts, verdicts = [], []
        slope = SLOPES.get(judge, 0)
        words = 6 + seed + (slope + seed if slope else 0) * (step - 1)
        value = 0.4 + 0.01 * seed
        for row in range(groups * members):
            group, member = divmod(row, members)
            fails = not scored or (judge == "sim-flaky" and member == 3)
            score = value + 0.01 * (words - 6) if constant is None else constant
            name = f"{step:06d}-{row:04d}"
            text = " ".join(["alpha"] + [f"word{k}" for k in range(words - 1)])
            if judge == "sim-verbose" and row == 0 and step == steps:
                text = f"{HOSTILE} {text}"
            reward = None if fails else score
            rollouts.append(
                rollout_row(step, group, member, f"{step}-{group}", text)
                | {"rollout_id": name, "prompt": f"Say something, prompt {group} of step {step}"}
                | {"tokens": words, "logprob_sum": -1.0 * words, "reward": reward}
                | {"advantage": None if fails else 0.0, "judge_score": reward}
                | {"truth": value if truth else None}
            )
            verdict = {"rollout_id": name, "step": step, "judge": judge, "role": "acting"}
            verdict |= {"outcome": "unparsed" if fails else "scored", "labels": [], "attempts": 1}
            verdicts.append(verdict | {"score": reward})
        write_part(cell / "rollouts", step, rollouts, ROLLOUT)
        write_part(cell / "verdicts", step, verdicts, VERDICT)
        lines.append(
            {"step": step, "time_ms": step, "metrics": {"truth/mean": value} if truth else {}}
        )
    roots.lines(cell / "metrics.jsonl", lines)


def rollout_row(step: int, group: int, member: int, prompt_id: str, text: str) -> dict[str, Any]:
    """What the records hold of any rollout."""
    place = {"rollout_id": f"{step}-{group}-{member}", "step": step, "group": group}
    shown = {"prompt_id": prompt_id, "prompt": "?", "completion": text, "answer": text}
    return place | {"member": member} | shown | {"tokens": 1, "stop": "stop", "logprob_sum": -1.0}


def write_head(place: Path, config: dict[str, Any], steps: int, state: str = "done") -> Path:
    """Write what a cell has before its records: folders, config, and how far it came. Its name is
    that of the ``place``, the seed and the digits of its config. Returns its folder."""
    cell = place.with_name(f"{place.name}-s{config['seed']}-{digest(config)}")
    for kind in ("rollouts", "verdicts"):
        (cell / kind).mkdir(parents=True)
    (cell / "config.yaml").write_text(yaml.safe_dump(config))
    status = {"state": state, "step": steps, "steps": steps, "seconds": 12.5, "error": ""}
    (cell / "status.json").write_text(json.dumps(status))
    if state == "done":
        (cell / "DONE").write_text("")
    return cell


@contextmanager
def config_of(cell: Path) -> Iterator[dict[str, Any]]:
    """The config of a cell, which is written back with what was changed in it."""
    path = cell / "config.yaml"
    config = yaml.safe_load(path.read_text())
    yield config
    path.write_text(yaml.safe_dump(config))


def damage(study: Path, pattern: str) -> None:
    """Let the study's only file of this pattern be one that cannot be read."""
    (path,) = study.glob(pattern)
    path.write_bytes(b"PAR1 and nothing else PAR1")


def write_held_out(cell: Path) -> None:
    """Evaluate the cell: its first step's answers are those to held-out rows as well."""
    for kind in ("rollouts", "verdicts"):
        folder = cell / "evaluations" / kind
        folder.mkdir(parents=True)
        first = cell / kind / records.part_name(1)
        records.write_rows(folder / first.name, pq.read_table(first).replace_schema_metadata(None))


def write_kl(study: Path, steps: int) -> Path:
    """Log a KL of .01 per token and step over 20 tokens in a study's only cell; return the cell."""
    (cell,) = (path.parent for path in study.glob("*/config.yaml"))
    lines = [
        {"step": step, "metrics": {"policy/kl": 0.01 * step, "policy/length_tokens": 20.0}}
        for step in range(1, steps + 1)
    ]
    roots.lines(cell / "metrics.jsonl", lines)
    return cell


def schema(columns: dict[str, str], names: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, arrow_type(columns[name])) for name in names])


ROLLOUT = schema(records.ROLLOUT, list(records.ROLLOUT))
VERDICT = schema(  # as of verdicts that others gave
    records.VERDICT, "rollout_id step judge role outcome labels score attempts".split()
)


def write_part(folder: Path, step: int, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    records.write_rows(folder / records.part_name(step), pa.Table.from_pylist(rows, schema))


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., Path]:
    """``make_study(**options)`` writes a fresh study; see `write_study`."""

    def make(name: str = "planted", **options: Any) -> Path:
        return write_study(tmp_path / "runs" / name, **options)

    return make


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three judges x three seeds x six steps x 16 rollouts, all finished. Not to be changed."""
    return write_study(tmp_path_factory.mktemp("runs") / "planted")


def kept(folder: Path, make: Callable[[], Evidence]) -> Evidence:
    """The evidence that the first worker made and left in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with locks.held(folder / "lock"):
        if not (folder / "whole").exists():
            (folder / "evidence").write_bytes(pickle.dumps(make()))
            (folder / "whole").touch()
    return pickle.loads((folder / "evidence").read_bytes())


@pytest.fixture(scope="session")
def gathered(together: Path) -> Callable[..., Evidence]:
    """``gathered(**options)`` is the evidence of the study that `write_study` writes, made once for
    all workers. Neither is to be changed."""

    @cache
    def of(words: str) -> Evidence:
        folder = together / "gathered" / f"{crc32(words.encode()):08x}"
        return kept(folder, lambda: gather(write_study(folder / "planted", **json.loads(words))))

    return lambda **options: of(json.dumps(options, sort_keys=True))


@pytest.fixture(scope="session")
def evidence(gathered: Callable[..., Evidence]) -> Evidence:
    """The evidence of a study that is like `planted`."""
    return gathered()


def arms_of_presets(study: Path, small_study: Path, names: Sequence[str], seeds: int = 2) -> None:
    """Write a study in which copies of the small study's fair runs are those of these judges."""
    for name in names:
        for place, source in enumerate(sorted(small_study.glob("sim-fair*"))[:seeds]):
            cell = study / f"{name}-{place}"
            shutil.copytree(source, cell)
            with config_of(cell) as config:
                config["judge"] = json.loads(json.dumps(dataclasses.asdict(load_judge(name))))
            unsigned(cell, judge=name)


@pytest.fixture
def printed(capsys) -> Callable[..., str]:
    """``printed(main, study, *words)`` is what a command prints of a study."""

    def ask(main: Callable[[list[str]], int], study: Path, *words: str) -> str:
        assert main([f"study={study.name}", f"runs_dir={study.parent}", *words]) == 0
        return capsys.readouterr().out

    return ask


@pytest.fixture
def answered(tmp_path: Path, printed: Callable[..., str]) -> Callable[..., tuple[Any, str]]:
    """``answered(main, study, *words)`` is what a command writes to its ``out``, and prints."""
    out = tmp_path / "answered.json"

    def ask(*asked: Any) -> tuple[Any, str]:
        said = printed(*asked, f"out={out}")
        return json.loads(out.read_text()), said

    return ask


@pytest.fixture
def copied(small_study: Path, tmp_path: Path) -> Callable[[str], Path]:
    """``copied(name)`` is a copy of the study that was trained for real, which a test may change;
    it lies in ``tmp_path``."""
    return lambda name: shutil.copytree(small_study, tmp_path / name, symlinks=True)


def made_run(judge: Any, truth: Any = None, **changes: Any) -> Run:
    """A run of one step that was rewarded with its judge's scores, (P, G). Truth and one behaviour
    are not known where they are not given."""
    judge = np.array(judge, dtype=float)
    nothing = np.full(judge.shape, np.nan)
    truth = nothing if truth is None else np.array(truth, dtype=float)
    steps = np.ones(len(judge), dtype=int)
    run = Run("c", "a", 0, True, steps, judge, judge, truth, judge, nothing[..., None], ("length",))
    return dataclasses.replace(run, rollouts=judge.size, **changes)


def clustered(values: np.ndarray, groups: np.ndarray) -> Any:
    """The mean of values with the standard error over groups, as statsmodels fits it."""
    fit = sm.OLS(values, np.ones(len(values)))
    return fit.fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)


def resting_on_all(records: Records) -> Evidence:
    """The evidence of a study, of all of its cells."""
    return of_records(records, list(records.table["cell"]))


def changed(before: Evidence, change: Callable[[Sequence[Run]], Sequence[Run]]) -> Evidence:
    """The evidence of a study that was gathered, with its runs changed, resting on all of them."""
    runs = list(change(before.records.runs))
    return resting_on_all(dataclasses.replace(before.records, runs=runs))


@pytest.fixture
def unrendered(monkeypatch) -> None:
    """Figures are made and not rendered: for the words of a section, which take little time."""
    monkeypatch.setattr(svg, "panels", lambda figure, label: [])


def following(runs: Sequence[Run], factor: float) -> list[Run]:
    """The runs with every behaviour moved, in the last step, by ``factor`` times its push: first
    order, with one step size. Below 0 they move against what was rewarded."""
    changed = {run.cell: run.features.copy() for run in runs}
    of_cell = {run.cell: run for run in runs}
    for path in paths(runs):
        run = of_cell[path.cell]
        last = run.step_P == run.step_P.max()
        missing = factor * pushed(path, path.push, "adam") - shift(path.level)
        changed[path.cell][last, :, run.names.index(path.feature)] += missing
    return [dataclasses.replace(run, features=changed[run.cell]) for run in runs]


@pytest.fixture(scope="session")
def real_evidence(small_study: Path, together: Path) -> Evidence:
    """The evidence of the study that was trained for real, resting on all of its cells."""
    return kept(
        together / "gathered" / "small_study", lambda: resting_on_all(read_study(small_study))
    )
