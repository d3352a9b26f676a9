"""``python -m experiments.notebook``: where the notebook lies, and what to type."""

import json
import shutil
from pathlib import Path

from analysis.report.study_notebook import PLACE
from experiments.notebook import main


def test_it_is_made_once_and_said_how_to_open(small_study: Path, tmp_path: Path, capsys) -> None:
    study = shutil.copytree(small_study, tmp_path / small_study.name)
    words = [f"study={study.name}", f"runs_dir={study.parent}"]
    path = study / PLACE
    path.unlink(missing_ok=True)
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == str(path) and said[1].startswith("To open it, type: ")
    assert f"-m jupyterlab {path}" in said[1]
    made = path.stat().st_mtime_ns
    assert main(words) == 0 and path.stat().st_mtime_ns == made
    assert main([*words, "refresh=true"]) == 0 and path.stat().st_mtime_ns > made
    content = json.loads(path.read_text())
    content["cells"].pop()
    path.write_text(json.dumps(content))
    capsys.readouterr()
    assert main([*words, "again=true"]) == 0  # its name in earlier versions
    printed = capsys.readouterr()
    assert printed.err == "again= is now refresh=. Type refresh=true next time.\n"
    assert "you have changed it" in printed.out
    assert json.loads(path.read_text()) == content


def test_an_unknown_study_is_one_paragraph(small_study: Path, capsys) -> None:
    assert main(["study=nowhere", f"runs_dir={small_study.parent}"]) == 2
    said = capsys.readouterr().err
    assert "There is no study folder" in said and small_study.name in said
    assert len(said.strip().splitlines()) == 1
