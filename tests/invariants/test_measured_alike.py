"""Records, forecast and trainer measure an answer alike, where it is missing too."""

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.forecast.estimate import ask, first_rollouts, forecast
from analysis.records.runs import read_study
from experiments.trainer.record_step import step_metrics
from experiments.trainer.scorer import StepRecord
from study.cell import cells
from study.cell.folder import study_cells
from study.cell.parts import read_part
from study.features import FEATURES
from tests.conftest import RECORDS_ONLY, Trained
from tests.rewritten import unsigned


@pytest.fixture(scope="module")
def studies(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One judge pays for a keyword, and of both arms' first steps one answer is taken away."""
    import pyarrow.parquet as pq

    runs_dir = tmp_path_factory.mktemp("runs")
    done = trained(runs_dir, *RECORDS_ONLY, "judge=sim-keyword", "seed=0", "trainer.steps=1")
    assert done.returncode == 0, done.stdout + done.stderr
    (part,) = runs_dir.glob("debug/*/rollouts/*.parquet")
    table = pq.read_table(part)
    answers = ["robust words", None, "Robust and robust", *table["answer"].to_pylist()[3:]]
    place = table.schema.get_field_index("answer")
    pq.write_table(table.set_column(place, table.schema.field("answer"), [answers]), part)
    unsigned(part.parents[1])
    return runs_dir / "debug"


def test_a_missing_answer_and_the_keyword_are_measured_alike(studies: Path) -> None:
    """The first three answers have 2, no and 3 words, and the keyword 1, no and 2 times."""
    (folder,) = study_cells(studies)
    (part,) = folder.parts("rollouts")
    records = read_part(part).to_pylist()
    assert [record["answer"] for record in records[:2]] == ["robust words", None]
    recorded = read_study(studies)
    assert recorded.keyword == "robust"
    first = first_rollouts([cells.load_cell(folder)], "robust")
    metrics = step_metrics(StepRecord(1, records, []), "robust")
    (run,) = recorded.runs
    for name, expected in (("length", [2, np.nan, 3]), ("keyword", [1, np.nan, 2])):
        place = FEATURES.index(name)
        column = run.features[..., place]
        np.testing.assert_array_equal(column.ravel()[:3], expected)
        assert sorted(column.ravel()) == pytest.approx(
            sorted(first.features[..., place].ravel()), nan_ok=True
        )
        assert metrics[f"policy/{name}"] == pytest.approx(np.nanmean(column))
    assert metrics["policy/unanswered_frac"] == 1 / len(records)


def test_the_keyword_its_judge_pays_for_is_counted_in_training_and_forecast(studies: Path) -> None:
    (folder,) = study_cells(studies)
    (line,) = (json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines())
    assert line["metrics"]["policy/keyword"] >= 0
    pushes = {
        (line.judge, line.feature): line
        for line in forecast(ask(studies, "sim-keyword,sim-fair")).pushes
    }
    keyword, fair = pushes["sim-keyword", "keyword"], pushes["sim-fair", "keyword"]
    assert np.isfinite(keyword.in_sds) and keyword.push.value > fair.push.value
