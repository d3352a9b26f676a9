"""The command line of predicted shifts on small studies, whole and damaged."""

import json
import math
import shutil

import pytest
import yaml

from analysis.propagation import main


def test_the_command_line(small_study, tmp_path, capsys):
    """Four finished runs of two steps each: few, and said in numbers."""
    out = tmp_path / "p.json"
    words = [f"study={small_study.name}", f"runs_dir={small_study.parent}", f"out={out}"]
    assert main([*words, f"figure={tmp_path / 'p.png'}"]) == 0
    found = json.loads(out.read_text())
    assert {row["fitted_on"] for row in found["runs"]} == {3}
    printed = capsys.readouterr().out
    assert "run by run" in printed
    assert found["kl_limit"] == []
    assert all(row["predicted"] is None for row in found["runs"] if row["feature"] == "keyword")
    assert "r2_repeated: no theory" in printed
    assert main(["study=nothing", f"runs_dir={tmp_path}"]) == 2
    assert "no study folder" in capsys.readouterr().err
    assert main(["judge=x"]) == 2
    assert main(["study=x", "scale=magic"]) == 2
    assert "plain, adam" in capsys.readouterr().err


def test_a_damaged_config_is_said_and_its_run_left_out(copied, tmp_path, capsys):
    study = copied("damaged")
    cells = sorted(study.glob("sim-*"))
    shutil.copytree(cells[0], study / f"{cells[0].name}b")
    (study / f"{cells[0].name}b" / "config.yaml").write_text("judge: [unclosed")
    out = tmp_path / "p.json"
    assert main(["study=damaged", f"runs_dir={tmp_path}", f"out={out}"]) == 0
    said = capsys.readouterr().out
    assert f"{cells[0].name}b" in said and "config" in said.split("problem: ")[1]
    assert {row["cell"] for row in json.loads(out.read_text())["runs"]} == {c.name for c in cells}


def test_a_study_without_logged_norms_says_so(copied, tmp_path, capsys):
    study = copied("unlogged")
    for cell in study.glob("sim-*"):
        (cell / "metrics.jsonl").unlink()
    words = ["study=unlogged", f"runs_dir={tmp_path}", f"figure={tmp_path / 'p.png'}"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.count("is not predicted: no gradient norm at ") == 4
    assert "no figure was drawn" in said and not (tmp_path / "p.png").exists()


def test_a_kl_penalty_puts_its_limit_beside_the_shift(copied, tmp_path, capsys):
    """Copies of finished runs whose configuration has a penalty: limit = Cov(A, z) / beta."""
    study = copied("held")
    for cell in study.glob("sim-*"):
        config = yaml.safe_load((cell / "config.yaml").read_text())
        config["trainer"]["beta"] = 0.5
        (cell / "config.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "p.json"
    assert main(["study=held", f"runs_dir={tmp_path}", f"out={out}"]) == 0
    assert "what the KL penalty would hold" in capsys.readouterr().out
    rows = json.loads(out.read_text())["kl_limit"]
    assert len({row["cell"] for row in rows}) == 4
    for row in rows:
        if math.isfinite(row["limit"]):
            assert row["limit"] == pytest.approx(row["of_truth"] + row["of_bias"])
