"""Console, report, its files, notebook and MLflow have one value and one interval of an effect."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from analysis.display.markup import estimate
from analysis.report.writing import write_report
from analysis.study import read_study
from experiments.launch.run import summarise
from experiments.tracking.runs import close_parent
from tests.analysis.conftest import write_study
from tests.conftest import Page
from tests.experiments.mlflow_runs import begin, sql

WORDS = "on rollouts, first and last tenth of the steps"
BASE = "sim-fair"


def test_an_effect_is_one_number_with_one_interval_in_all_places(runs: Path, capsys) -> None:
    folder = write_study(runs / "demo", judges=[BASE, "sim-verbose"])
    ids = begin(runs)
    report = write_report(folder)
    assert close_parent(ids, "FINISHED", folder)
    page = " ".join(Page(report.read_text()).text.split())
    logged = dict(sql(runs, "select key, value from metrics where key like 'arm/%'"))
    study, compared = read_study(folder), 0
    for name in ("scores", "behaviours"):
        for row in pd.read_csv(report.parent / "tables" / f"{name}.csv").to_dict("records"):
            arm, metric = row["arm"], row["metric"]
            numbers = {"shift": study.shift(metric, arm)}
            if arm != BASE:
                numbers["beyond_base"] = study.shift(metric, arm, beyond=BASE)
            for part, asked in numbers.items():
                short = {"shift": ("shift", "low", "high"), "beyond_base": ("diff", "diff_low",
                         "diff_high")}[part]  # fmt: skip
                file = tuple(row[key] for key in short)
                assert file == pytest.approx(
                    (asked.value, asked.low, asked.high), rel=1e-7, abs=1e-9, nan_ok=True
                )  # nine digits
                ends = ("", "_low", "_high")
                names = [f"arm/{arm}/{metric}/{part}{end} {WORDS.replace(',', '')}" for end in ends]
                in_mlflow = tuple(logged.get(key, math.nan) for key in names)
                assert in_mlflow == pytest.approx(file, abs=1e-6, nan_ok=True)
                shown = file if metric == "length" else [round(number, 3) for number in file]
                assert metric not in ("length", "truth", "gap") or estimate(*shown) in page
                compared += 1
    assert compared > 12
    (row,) = (row for row in json.loads((report.parent / "summary.json").read_text())["rows"]
              if row["judge"] == "sim-verbose")  # fmt: skip
    words = study.shift("length", "sim-verbose", beyond=BASE)
    assert row[f"words vs {BASE}"] == estimate(words.value, words.low, words.high)
    summarise(folder, "study=demo")
    printed = " ".join(capsys.readouterr().out.split())
    assert WORDS in printed and f"{words.value:+.3g}" in printed
    ((note,),) = sql(runs, "select value from tags where key = 'mlflow.note.content'")
    assert f"Scores and behaviours {WORDS}." in note
    assert estimate(words.value, words.low, words.high) in note.replace("\\", "")
    assert WORDS in page
