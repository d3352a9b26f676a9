"""The command line of predicted shifts on small studies, whole and damaged."""

import math
import shutil

import pytest

from analysis.propagation.__main__ import main
from tests.analysis.conftest import config_of


def test_the_command_line(small_study, tmp_path, answered):
    """Four finished runs of two steps each: few, and said in numbers."""
    found, printed = answered(main, small_study, f"figure={tmp_path / 'p.png'}")
    assert {row["fitted_on"] for row in found["runs"]} == {3}
    assert "run by run" in printed and found["kl_limit"] == []
    assert all(row["predicted"] is None for row in found["runs"] if row["feature"] == "keyword")
    assert "r2_repeated: no theory" in printed


def test_a_damaged_config_is_said_and_its_run_left_out(copied, answered):
    study = copied("damaged")
    cells = sorted(study.glob("sim-*"))
    other = shutil.copytree(cells[0], study / f"{cells[0].name}b")
    (other / "config.yaml").write_text("judge: [unclosed")
    found, said = answered(main, study)
    assert other.name in said and "config" in said.split("problem: ")[1]
    assert {row["cell"] for row in found["runs"]} == {cell.name for cell in cells}


def test_a_study_without_logged_norms_says_so(copied, tmp_path, printed):
    study = copied("unlogged")
    for cell in study.glob("sim-*"):
        (cell / "metrics.jsonl").unlink()
    said = printed(main, study, f"figure={tmp_path / 'p.png'}")
    assert said.count("is not predicted: no gradient norm at ") == 4
    assert "no figure was drawn" in said and not (tmp_path / "p.png").exists()


def test_a_kl_penalty_puts_its_limit_beside_the_shift(copied, answered):
    """Copies of finished runs whose configuration has a penalty: limit = Cov(A, z) / beta."""
    study = copied("held")
    for cell in study.glob("sim-*"):
        with config_of(cell) as config:
            config["trainer"]["beta"] = 0.5
    found, said = answered(main, study)
    assert "the limit of the KL penalty" in said
    rows = found["kl_limit"]
    assert len({row["cell"] for row in rows}) == 4
    for row in rows:
        if math.isfinite(row["limit"]):
            assert row["limit"] == pytest.approx(row["of_truth"] + row["of_bias"])
