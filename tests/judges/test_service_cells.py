"""Cells of a sweep that ask a judge which another process serves."""

import json

from study.cell.cells import load_cell
from study.cell.folder import study_cells
from study.cell.parts import read_part
from study.config.compose import load_presets
from study.config.identity import digest
from tests.conftest import sweep
from tests.judges.services import keeping


def test_cells_find_the_judge_at_run_time_and_no_file_of_theirs_holds_its_key(runs, warmed):
    overrides = ["judge.serve.bind=0.0.0.0", "judge.endpoint.url=http://127.0.0.1:9/v1"]
    model, _ = load_presets("qwen3-4b", overrides=overrides)
    words = ["judge=qwen3-4b", overrides[1], "judge.serve.auto=true", "debug=tiny", "seed=0"]
    words += ["judge.serve.bind=elsewhere", "study=wide", "sweep.report=false"]
    with keeping(model, runs) as running:
        done = sweep(warmed(runs), *words)
        assert done.returncode == 0, done.stdout + done.stderr
        key = running.service.key_path.read_text().strip().encode()
        assert list(running.service.users()) == []
        holders = [path for path in runs.rglob("*") if path.is_file() and key in path.read_bytes()]
        assert holders == [running.service.key_path]
    assert key.decode() not in done.stdout + done.stderr
    (folder,) = study_cells(runs / "wide")
    verdicts = [read_part(part, ["outcome", "score"]) for part in folder.parts("verdicts")]
    assert {
        (str(o), s) for part in verdicts for o, s in zip(*part.to_pydict().values(), strict=True)
    } == {("scored", 0.8)}
    cell = load_cell(folder)
    assert cell.config.judge.endpoint.url == "http://127.0.0.1:9/v1"
    data = json.loads(json.dumps(cell.data))
    data["judge"]["serve"] |= {"bind": "", "auto": False}
    assert folder.name.endswith(digest(data))
