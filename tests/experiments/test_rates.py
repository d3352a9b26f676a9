"""What finished cells say of others like them, against what these then took."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from experiments.plan import rates
from experiments.plan.plan import _count, spending, time_lines, usage_lines, wall_time
from experiments.plan.rates import (
    APART,
    MOST,
    Pace,
    Rates,
    Span,
    Usage,
    _pace,
    _usages,
    asks,
    describe_cells,
    newest,
    span,
)
from study.cell import cells
from study.cell.cells import Cell
from study.cell.folder import CellFolder, study_cells
from study.cell.parts import part_name
from study.cell.records import EVALUATIONS
from study.system.files import append_line


@pytest.fixture
def study(small_study, tmp_path) -> Path:
    """Four finished cells of two judges, with a shadow judge."""
    return Path(shutil.copytree(small_study, tmp_path / "runs" / small_study.name))


@pytest.fixture
def todo(study) -> list[Cell]:
    return [cells.load_cell(folder) for folder in study_cells(study)]


@pytest.fixture
def fair(todo) -> Cell:
    return next(cell for cell in todo if cell.config.judge.name == "sim-fair")


def taken(study: Path) -> dict[str, Counter[str]]:
    """Judge -> what its verdicts took in all cells, row by row."""
    sums: dict[str, Counter[str]] = {}
    for cell in study_cells(study):
        for kind in ("verdicts", f"{EVALUATIONS}/verdicts"):
            for _, table in cell.records(kind):
                for row in table.to_pylist():
                    if not row["from_cache"]:
                        names = ("attempts", "tokens_in", "tokens_out")
                        of = sums.setdefault(row["judge"], Counter())
                        of.update({name: row[name] or 0 for name in names})
    return sums


def test_the_same_again_is_expected_to_take_what_it_took(study, todo) -> None:
    told = {each.judge.name: each for each in spending(todo, Rates(study))}
    for name, sums in taken(study).items():
        each = told[name]
        assert each.is_known and each.calls.value == pytest.approx(sums["attempts"])
        read = each.fresh.value + each.cached.value
        assert read == pytest.approx(sums["tokens_in"])
        assert each.out.value == pytest.approx(sums["tokens_out"])
        assert each.calls.low < each.calls.value < each.calls.high
    assert set(told) == {"sim-fair", "sim-flaky", "sim-verbose"}


def test_other_seeds_and_longer_runs_take_in_proportion(study, fair) -> None:
    once = spending([fair], Rates(study))[0].calls.value
    longer = replace(fair.config, seed=99, trainer=replace(fair.config.trainer, steps=20))
    again = spending([replace(fair, config=longer)], Rates(study))[0]
    assert again.calls.value == pytest.approx(once * 20 / fair.config.trainer.steps)


def test_a_judge_that_never_ran_is_told_by_one_with_its_grading(study, fair) -> None:
    new = replace(fair.config, judge=replace(fair.config.judge, name="sim-new"))
    found = Rates(study).usage(new, asks(new)[0])
    assert describe_cells(usage.cell for usage in found) == f"4 finished cells of {study.name}"
    other = replace(new, policy=replace(new.policy, path="another"))
    assert Rates(study).usage(other, asks(other)[0]) == []


def test_the_time_of_a_cell_is_what_such_cells_took(study, todo) -> None:
    paces = Rates(study).paces(todo[0].config)
    took = sorted(cell.folder.status()["seconds"] for cell in todo)
    assert sorted(pace.seconds(todo[0].config) for pace in paces) == pytest.approx(took, rel=0.05)
    longer = replace(todo[0].config, trainer=replace(todo[0].config.trainer, steps=100))
    for pace in paces:
        more = pace.seconds(longer) - pace.seconds(todo[0].config)
        assert more == pytest.approx(98 * pace.step_s)
    (line,) = time_lines(todo, Rates(study))
    assert line.startswith("Time: about ") and f"4 finished cells of {study.name}" in line


def test_rates_of_another_host_are_taken_where_this_one_has_none(study, todo) -> None:
    for place, cell in enumerate(todo):
        cell.folder.set_status(host="elsewhere" if place else cell.folder.status()["host"])
    assert len(Rates(study).paces(todo[0].config)) == 1
    todo[0].folder.set_status(host="elsewhere")
    assert len(Rates(study).paces(todo[0].config)) == 4


def test_each_line_names_the_cells_that_it_rests_on_whichever_was_made_before(study, todo) -> None:
    rates = Rates(study)
    fair = [cell for cell in todo if cell.config.judge.name == "sim-fair"]
    for cell in [cell for cell in todo if cell not in fair]:
        (cell.folder / "metrics.jsonl").unlink()
    nothing, some = Span(0.2, 0.1, 0.4), Span(1000.0, 900.0, 1200.0)
    assert (_count(nothing), _count(some)) == ("0", "1,000 (900 to 1,200)")
    usage_lines(todo, rates)
    (line,) = time_lines(fair, rates)
    assert f"by {describe_cells(cell.folder for cell in fair)}" in line
    assert describe_cells([*(cell.folder for cell in fair), fair[0].folder]).startswith(
        f"{len(fair)} finished"
    )


def test_an_evaluation_is_no_part_of_the_step_that_it_follows(tmp_path) -> None:
    folder = tmp_path / "study" / "cell"
    folder.mkdir(parents=True)
    took = {0: 7.0, 1: None, 2: 5.0, 3: None, 4: 5.0}
    at_ms = 1_000_000
    for step, eval_s in took.items():
        at_ms += 2000 * (step > 0) + 1000 * int(eval_s or 0)
        metrics = {} if eval_s is None else {"time/eval_s": eval_s}
        line = {"step": step, "time_ms": at_ms, "metrics": metrics}
        append_line(folder / "metrics.jsonl", json.dumps(line))
    CellFolder(folder).set_status(seconds=4 * 2.0 + 17.0 + 3.0)
    pace = _pace(CellFolder(folder))
    assert pace == Pace(
        pytest.approx(2.0), pytest.approx(17 / 3), pytest.approx(3.0), CellFolder(folder)
    )


def test_a_cell_that_was_stopped_early_tells_nothing(study, todo) -> None:
    for cell in todo[1:]:
        cell.folder.set_status(stopped_at=1)
    config, told = todo[0].config, Rates(study)
    assert [pace.cell for pace in told.paces(config)] == [todo[0].folder]
    assert {usage.cell for usage in told.usage(config, asks(config)[0])} == {todo[0].folder}


def test_a_cell_whose_verdicts_are_damaged_or_of_another_version_tells_nothing(todo) -> None:
    first, second, *_ = (cell.folder for cell in todo)
    assert _usages(second)
    _usages.cache_clear()
    next((first / "verdicts").glob("*.parquet")).write_bytes(b"nothing")
    assert _usages(first) == {}
    (merged,) = (second / "verdicts").glob("*.parquet")
    table = pq.read_table(merged)
    older = table.filter(pc.equal(table["step"], 1)).drop_columns(["attempts"])
    pq.write_table(older, merged.with_name(f"{part_name(1)}.parquet"))
    merged.unlink()
    assert _usages(second) == {}


def test_what_is_not_known_is_said_with_what_to_type(todo, tmp_path) -> None:
    none = Rates(tmp_path / "none" / "none")
    (line,) = time_lines(todo, none)
    assert "unknown until cells like these have run" in line and "trainer.steps=5" in line
    (line,) = usage_lines(todo, none)
    assert line.startswith(
        "No finished cell shows the requests to sim-fair, sim-verbose, sim-flaky"
    )
    assert time_lines([], none) == usage_lines([], none) == []


def test_a_damaged_or_foreign_cell_is_passed_over(study, todo) -> None:
    (todo[0].folder / "config.yaml").write_text("{")
    (todo[1].folder / "metrics.jsonl").write_text("nothing\n")
    for path in todo[2].folder.path.rglob("*.parquet"):
        path.write_bytes(b"nothing")
    assert len(Rates(study).paces(todo[3].config)) == 2  # of the last, and the one without verdicts
    assert Rates(study).usage(todo[3].config, asks(todo[3].config)[0])


def test_cells_of_the_study_come_first_and_few_are_read(tmp_path) -> None:
    for name in (*(f"other/c{number}" for number in range(60)), "mine/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "DONE").touch()
    (tmp_path / "mine" / "moved").mkdir()
    (tmp_path / "mine" / "moved" / "DONE").symlink_to(tmp_path / "nowhere")
    found = newest(tmp_path / "mine")
    assert CellFolder(tmp_path / "mine" / "moved") not in found
    assert found[0] == CellFolder(tmp_path / "mine" / "c") and len(found) == MOST


def test_cells_begin_in_the_slot_that_is_free_and_leave_some_doubt() -> None:
    each = [Span(seconds, seconds / 2, seconds * 2) for seconds in (4.0, 3.0, 2.0)]
    wall = wall_time(each, 2)
    assert (wall.value, wall.low, wall.high) == (5.0, 2.5, 10.0)
    assert wall_time(each, 1).value == 9.0 and wall_time(each, 8).value == 4.0
    assert span([2.0]) == Span(2.0, 2.0 * (1 - APART), 2.0 * (1 + APART))
    assert span([1.0, 3.0]) == Span(2.0, 1.0, 3.0)


def test_evaluations_have_rates_of_their_own(study, fair, monkeypatch) -> None:
    """Their answers repeat each other more than those of steps, and a short run that tells the
    rates has more of them for each step."""
    of_steps = Usage(1.0, 1.0, 1.0, 0.0, fair.folder)
    of_evaluations = Usage(0.5, 0.5, 0.5, 0.0, fair.folder)
    told = {("sim-fair", ""): of_steps, ("sim-fair", EVALUATIONS): of_evaluations}
    monkeypatch.setattr(rates, "_usages", lambda folder: told)
    for steps in (5, 40):
        trainer = replace(fair.config.trainer, steps=steps, eval_steps=5, eval_samples=1)
        config = replace(fair.config, trainer=trainer, shadow_judges=[])
        plain, held_out = asks(config)
        (each,) = spending([replace(fair, config=config)], Rates(study))
        assert held_out.folder == EVALUATIONS and held_out.calls > 0
        assert each.calls.value == pytest.approx(plain.calls + 0.5 * held_out.calls)
    del told["sim-fair", EVALUATIONS]  # of a run that evaluates nothing
    (each,) = spending([replace(fair, config=config)], Rates(study))
    assert each.is_known and each.calls.value == pytest.approx(plain.calls + held_out.calls)
