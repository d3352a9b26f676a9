"""Machines that know nothing of each other share a study's cells."""

import dataclasses
import functools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import launch
from experiments.launch import pool, ready, run
from experiments.plan.needs import check_engine, share_of, shares
from experiments.plan.preflight import check_engine as checked_by_preflight
from study.cell import cells
from study.config.compose import respelled
from study.config.schema import Judge, Study, Sweep, Task, Tracking
from study.errors import UserError
from study.finding import stop_at_problem


@functools.cache
def cell_of(judge: str, seed: int, runs_dir: str = "runs", **sweep: str) -> cells.Cell:
    study = Study(
        study="s",
        runs_dir=runs_dir,
        seed=seed,
        judge=Judge(name=judge),
        sweep=Sweep(**sweep),
        tracking=Tracking(enabled=False),
        task=Task(name="instruct-mini"),
    )
    return cells.make_cell(dataclasses.asdict(study))


def study_of(counts: dict[str, int], **sweep: str) -> list[cells.Cell]:
    """Cells of judges with so many seeds each, none of them laid."""
    arms = [(judge, seed) for judge, count in counts.items() for seed in range(count)]
    return [cell_of(judge, seed, **sweep) for judge, seed in arms]


def judges_of(counts: dict[str, int], number: int) -> list[set[str]]:
    """The judges that each of so many shares has."""
    todo = study_of(counts)
    judge_of = {cell.id: cell.config.judge.name for cell in todo}
    return [{judge_of[id] for id in share} for share in shares(todo, number)]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5), min_size=1),
    st.integers(1, 9),
    st.randoms(),
)
def test_shares_are_a_fair_division_that_order_does_not_change(counts, number, random) -> None:
    todo = study_of(counts)
    made = shares(todo, number)
    assert Counter(id for share in made for id in share) == Counter({cell.id: 1 for cell in todo})
    sizes = [len(share) for share in made]
    assert len(made) == number and max(sizes) - min(sizes) <= 1
    random.shuffle(todo)
    assert shares(todo, number) == made


@pytest.mark.parametrize(
    ("counts", "number"),
    [({"a": 3, "b": 3, "c": 3}, 3), ({"a": 1, "b": 1, "c": 3, "d": 3}, 2), ({"a": 2, "b": 1}, 2)],
)
def test_cells_of_one_judge_are_together_where_that_is_fair(counts, number) -> None:
    owners = judges_of(counts, number)
    assert all(sum(judge in names for names in owners) == 1 for judge in counts)


def test_a_judge_too_many_is_cut_once_and_a_share_is_typed_shortly() -> None:
    first, second = judges_of({"a": 3, "b": 3, "c": 3}, 2)
    assert len(first & second) == 1
    typed = ["judge=a,b", "sweep.shard=1/2", "sweep.engine=shard"]
    assert respelled(["judge=a,b", "shard=1/2"]) == typed
    assert respelled(["sweep.engine=shard", "shard=2/2"])[1:] == ["sweep.shard=2/2"]
    assert respelled(["judge=a"]) == ["judge=a"]


@pytest.mark.parametrize(
    "shard",
    ["0/2", "3/2", "1", "", "1/", "a/b", "-1/2", "1/2/3", "1.5/2", "1/99999", "1/\u0662", "1 /2"],
)
def test_what_is_no_share_is_refused(shard) -> None:
    with pytest.raises(UserError, match="is not a share: it must be I/N"):
        share_of(study_of({"a": 2}, engine="shard", shard=shard))


def test_a_shard_of_another_engine_and_several_engines_are_refused() -> None:
    assert checked_by_preflight is check_engine
    with pytest.raises(UserError, match=r"sweep.engine=local is given. Type shard=1/2"):
        stop_at_problem(check_engine(study_of({"a": 2}, shard="1/2")))
    one = study_of({"a": 1}, engine="shard", shard="1/2")
    with pytest.raises(UserError, match="hydra/launcher=joblib both choose where cells run"):
        stop_at_problem(check_engine(one, ["hydra/launcher=joblib"]))
    with pytest.raises(UserError, match="one value for all cells"):
        stop_at_problem(check_engine([*one, *study_of({"b": 1}, engine="shard", shard="2/2")]))


@pytest.fixture
def reported(monkeypatch) -> list[str]:
    """Cells are done at once, and a report is a name in this list."""
    said: list[str] = []

    def run_at_once(todo, watch) -> None:
        for cell in todo:
            cell.folder.set_status(state="done", exit_code=0, ended=1.0)
            (cell.folder / "DONE").touch()

    monkeypatch.setattr(pool, "run", run_at_once)
    monkeypatch.setattr(run, "start_server", lambda device: None)
    monkeypatch.setattr(ready, "judges_of", lambda todo: [])
    monkeypatch.setattr(run.analysis, "write_report", lambda folder: said.append(folder.name))
    return said


def machines(runs_dir, shard: str = "") -> list[cells.Cell]:
    sweep = {"engine": "shard", "shard": shard} if shard else {}
    return study_of({"fake": 3}, runs_dir=str(runs_dir), **sweep)


def test_whoever_finishes_the_last_cell_reports(tmp_path, reported, capsys) -> None:
    assert launch.run_study(machines(tmp_path, "1/2"), None) == 0
    first = capsys.readouterr().out
    assert reported == [] and not (tmp_path / "s" / "summary.json").exists()
    assert "Shard 1/2 is done. Of the other shards 2 cells are not done" in first
    assert "is new" in first and "without the shard" in first
    assert launch.run_study(machines(tmp_path, "1/2"), None) == 0  # again
    assert "All 1 cell of this share of s are done" in capsys.readouterr().out
    assert launch.run_study(machines(tmp_path, "2/2"), None) == 0
    assert reported == ["s"] and (tmp_path / "s" / "summary.json").exists()
    assert "Of the other shards" not in capsys.readouterr().out


def test_a_share_without_cells_is_done(tmp_path, reported, capsys) -> None:
    empty = [number for number in range(1, 6) if not share_of(machines(tmp_path, f"{number}/5"))]
    assert len(empty) == 2
    assert launch.run_study(machines(tmp_path, f"{empty[0]}/5"), None) == 0
    assert "All 0 cells of this share" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("others", "ended", "closed"),
    [
        ("done", "FINISHED", ["FINISHED"]), ("new", "FINISHED", []), ("running", "FINISHED", []),
        ("failed", "FINISHED", ["FAILED"]), ("killed", "FINISHED", ["FAILED"]),
        ("new", "FAILED", []), ("new", "KILLED", ["KILLED"]), ("running", "KILLED", []),
    ],
)  # fmt: skip
def test_the_last_share_closes_the_run_of_the_study(tmp_path, monkeypatch, others, ended, closed):
    """One share is done or was ended; the others are in the state ``others``."""
    statuses: list[str] = []
    monkeypatch.setattr(run, "close_parent", lambda ids, status, files: statuses.append(status))
    todo = machines(tmp_path, "1/2")
    mine = share_of(todo)
    recorded = {"killed": "running"}.get(others, others)
    locks = []
    for cell in todo:
        cells.save_cell(cell)
        cell.folder.set_status(state="done" if cell in mine else recorded)
        if cell in mine or others == "done":
            (cell.folder / "DONE").touch()
        elif others == "running":
            locks.append(cell.folder.lock())
    run._close_tracking({"uri": "x"}, ended, todo, mine)
    assert statuses == closed
    for lock in locks:
        lock.close()
