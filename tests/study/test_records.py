import json
import math

import pyarrow.parquet as pq
import pytest

from study.cell.folder import CellFolder
from study.cell.records import (
    CALL,
    NEVER_MISSING,
    OPTIONAL,
    PLACE,
    REPLAYED,
    ROLLOUT,
    VERDICT,
    CallRow,
    Recorder,
    frame_types,
    items_file,
    read_metrics,
    rollout_id,
    step_line,
)
from study.cell.verify import unsound
from study.rewards.replayed import Replayed
from study.verdict import Outcome, VerdictRow
from tests.study.test_verdict import verdict


def rows(step, kind):
    row = dict.fromkeys(kind, None) | {"rollout_id": rollout_id(step, 0), "step": step}
    return [row]


def write(recorder, step):
    return recorder.write_step(
        step,
        [row | {"component/judge": 0.5, "reward": None} for row in rows(step, ROLLOUT)],
        [row | {"labels": ["met"], "score": None} for row in rows(step, VERDICT)],
        {"reward/mean": 0.1 * step},
    )


def test_a_step_is_recorded_whole_and_missing_stays_missing(tmp_path):
    write(Recorder(tmp_path), 1)
    table = pq.read_table(tmp_path / "rollouts" / "step-000001.parquet")
    assert table.column_names == [*ROLLOUT, "component/judge"]
    assert table["reward"].to_pylist() == [None]
    assert table["component/judge"].to_pylist() == [0.5]
    verdicts = pq.read_table(tmp_path / "verdicts" / "step-000001.parquet")
    assert verdicts["rollout_id"].to_pylist() == table["rollout_id"].to_pylist()
    assert verdicts["labels"].to_pylist() == [["met"]]
    assert verdicts["score"].to_pylist() == [None]


def test_resume_drops_later_steps_but_keeps_their_time(tmp_path):
    first = Recorder(tmp_path)
    lines = [write(first, step) for step in (1, 2, 3)]
    (tmp_path / "rollouts" / "step-000004.tmp").touch()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "time')

    again = Recorder(tmp_path, after_step=1)
    assert [line["step"] for line in again.lines()] == [1]
    names = [path.name for path in sorted((tmp_path / "rollouts").iterdir())]
    assert names == ["step-000001.parquet"]
    assert write(again, 2)["time_ms"] == lines[1]["time_ms"]
    assert [line["step"] for line in again.lines()] == [1, 2]


def test_columns_of_verdicts_and_replays_have_their_types():
    assert {*verdict(outcome=Outcome.empty).as_row(), "rollout_id", "step", "role"} == set(VERDICT)
    shared = set(REPLAYED) & set(ROLLOUT)
    assert shared == {*PLACE, "judge_score", "reward", "advantage"}
    assert all(REPLAYED[name] == ROLLOUT[name] for name in shared)
    kinds = frame_types({**ROLLOUT, **VERDICT, **CALL, **OPTIONAL})
    assert (kinds["step"], kinds["tokens"], kinds["cost_usd"]) == ("int64", "float64", "float64")
    assert (kinds["answer"], kinds["rules"], kinds["from_cache"]) == ("str", "object", "bool")
    assert all(kinds[name] == "int64" for name in NEVER_MISSING)


def test_the_types_of_rows_have_the_columns_of_their_tables():
    assert CallRow.__annotations__.keys() == CALL.keys()
    assert VerdictRow.__annotations__.keys() == VERDICT.keys()
    assert Replayed.__annotations__.keys() == REPLAYED.keys()


def test_no_byte_of_a_line_changes_unseen(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.write_line(1, {"truth/mean": 0.5, 'a ", "digest": "': math.nan})
    path = tmp_path / "metrics.jsonl"
    line = path.read_bytes()
    assert read_metrics(tmp_path)[1] == []
    for place in range(len(line) - 1):
        path.write_bytes(line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :])
        lines, problems = read_metrics(tmp_path)
        assert (lines, len(problems)) == ([], 1), line[place:]


def test_a_run_that_goes_on_keeps_which_lines_were_signed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "time_ms": 5, "metrics": {}}\n')
    Recorder(tmp_path, 1).write_line(2, {"truth/mean": 0.5})
    before = path.read_text()
    assert [line.count('"digest"') for line in before.splitlines()] == [0, 1]
    Recorder(tmp_path, 2)
    assert path.read_text() == before


def test_answers_to_held_out_rows_are_those_of_their_line(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.write_items(2, [{"id": "a", "correct": True}])
    recorder.write_line(2, {"eval/averages/math": 1.0})
    path, sentence = items_file(tmp_path, 2), "step-000002.jsonl is not what was written."
    assert not any(each.endswith(sentence) for each in unsound(CellFolder(tmp_path)))
    path.write_text(path.read_text().replace("true", "false"))
    assert any(each.endswith(sentence) for each in unsound(CellFolder(tmp_path)))
    path.unlink()
    assert any(each.endswith(sentence) for each in unsound(CellFolder(tmp_path)))


@pytest.mark.parametrize("beyond", [1 << 63, -(1 << 63), 10**30, True, "1", [1]])
def test_a_number_that_parquet_cannot_hold_makes_no_line(beyond):
    line = {"step": 1, "time_ms": 5, "metrics": {"time/step_s": (1 << 63) - 1}}
    assert step_line(json.dumps(line).encode()) == line
    line["metrics"] = {"time/step_s": beyond}
    assert step_line(json.dumps(line).encode()) is None


def test_metrics_of_older_studies_are_read_by_the_names_that_they_have_now(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "time_ms": 5, "metrics": {"system/step_s": 2.5, "system/judge_s": 1.5,'
        ' "system/shared_prefix": 1.0, "truth/mean": 0.5}}\n'
        '{"step": 2, "time_ms": 6, "metrics": {"time/step_s": 3.5, "system/process_cpu": 9.0}}\n'
    )
    lines, problems = read_metrics(tmp_path)
    assert problems == []
    assert [line["metrics"] for line in lines] == [
        {"time/step_s": 2.5, "time/judge_s": 1.5, "trainer/shared_prefix": 1.0, "truth/mean": 0.5},
        {"time/step_s": 3.5, "system/process_cpu": 9.0},
    ]
    again = Recorder(tmp_path, 2).lines()
    assert [line["metrics"]["time/step_s"] for line in again] == [2.5, 3.5]
