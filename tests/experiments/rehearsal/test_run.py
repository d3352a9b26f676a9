"""A small study is rehearsed whole: killed on the way it goes on, and nothing of it is lost."""

import json
import re
import signal
from pathlib import Path

import pytest

from experiments.rehearsal.scale import STUDY
from study.cell.folder import study_cells
from study.config.endpoints import REHEARSED
from tests import commands
from tests.waiting import wait_for

WORDS = (
    *("experiment=mixed-full", "judge=qwen3-32b,qwq-plus", "seed=0,1", "task=mixed-mini"),
    *("prompts=1,2,3", "steps=2", "seeds=1", "factor=500"),
)


@pytest.mark.long
def test_a_rehearsal_that_is_killed_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    words = [*WORDS, f"runs_dir={tmp_path}"]
    place = tmp_path / "mixed-full"
    second = place / "prompts-2" / f"{STUDY}mixed-full"

    begun = commands.start("experiments.rehearsal", *words, real=True)
    wait_for(lambda: any(cell.lines() for cell in study_cells(second)))
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    recorded = [line for cell in study_cells(second) for line in cell.lines()]
    assert recorded and not (place / "rehearsal.md").exists()

    ended = commands.run("experiments.rehearsal", *words)
    assert ended.returncode == 0, ended.stderr
    page = (place / "rehearsal.md").read_text(encoding="utf-8")
    assert page.startswith(f"# rehearsal-mixed-full: {REHEARSED}")
    assert "## What broke\n\n- nothing\n" in page
    # 2 judges x 1 seed x 2 steps x (1 + 2 + 3) prompts x 6 rollouts
    assert "144 of 144 rollouts are on record" in page
    assert "task=mixed-mini" in page or "rows of task=mixed" not in page
    dollars = re.search(r"\| dollars \| \$([\d.,]+) \| \$([\d.,]+) \|", page)
    assert dollars is not None and float(dollars[2].replace(",", "")) > 0
    for prompts in (1, 2, 3):
        runs_dir = place / f"prompts-{prompts}"
        study = runs_dir / f"{STUDY}mixed-full"
        cells = study_cells(study)
        assert [cell.state() for cell in cells] == ["done"] * 2
        assert all(cell.name.startswith("simulated-") for cell in cells)
        for cell in cells:
            verdicts = [table for _, table in cell.records("verdicts")]
            assert sum(table.num_rows for table in verdicts) == 2 * prompts * 6
            assert {name for t in verdicts for name in t["revision"].to_pylist()} == {REHEARSED}
        report = (study / "report" / "bias_report.html").read_text(encoding="utf-8")
        assert "Rehearsal, simulated judges" in report
        logged = (runs_dir / "requests.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(logged) >= 2 * 2 * prompts * 6 - 1

    again = commands.run("experiments.rehearsal", *words)  # nothing is left to run
    assert again.returncode == 0 and "nothing to run" in again.stdout
    assert (place / "rehearsal.md").read_text(encoding="utf-8") == page
    other = commands.run("experiments.rehearsal", *words[:-2], "factor=9", words[-1])
    assert other.returncode == 2 and "factor was 500.0, not 9.0" in other.stderr
    assert json.loads((place / "settings.json").read_text())["factor"] == 500.0
