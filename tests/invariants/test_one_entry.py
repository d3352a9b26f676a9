"""A judge, a task and a behaviour of one's own, as docs/extending.md says: what the page shows is
written into a copy of the tree, and works there."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from judges.ask.identity import judge_id
from study.config.compose import load_judge, preset_names
from tests.commands import run_program
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
JUDGE, FILE_TASK = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
TASK, BEHAVIOUR = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROWS = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0]
SIMULATED = [name for name in preset_names("judge") if name.startswith("sim-")]
PROGRAM = """
import json, sys
from analysis import read_study
from study.features import unit
from judges.ask.identity import judge_id
from judges.simulated.bias import Bias
from study.config.compose import load_judge, load_presets
from study.features import features
from study.tasks import TASKS, kind_of

folder, *names = sys.argv[1:]
paid = load_judge("sim-fair", "+judge.simulated.doses.questions=0.3")
study = read_study(folder)
mine, counting = load_presets("mine", "count-up")
row, *_ = TASKS["count-up"].rows(counting, "train")
_, filed = load_presets("mine", "mine")
print(json.dumps({
    "counted": features("Why? How? Now!")["questions"],
    "z": Bias(paid.simulated).standardised("Why? How?")["questions"],
    "paid": judge_id(paid) != judge_id(load_judge("sim-fair")),
    "ids": {name: judge_id(load_judge(name)) for name in names},
    "unit": unit("questions"),
    "names": [run.names[-1] for run in study.runs],
    "runs": study.shift("questions", judge="sim-fair").n,
    "judge": [mine.family, mine.endpoint.model, mine.price.output],
    "prompt": row.messages[0]["content"],
    "truths": [TASKS["count-up"].truth(row, said).score for said in ("It is 2", "3")],
    "rows": len(kind_of(filed).rows(filed, "train")),
}))
"""


def written(folder: Path) -> Path:
    """A copy of the tree with everything that the page shows; returns it."""
    for name in ("study", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc"))
    for name in ("judges", "analysis", "experiments"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "judgedrift").mkdir()
    (folder / "judgedrift" / "conf").symlink_to(folder / "conf")
    (folder / "conf" / "judge" / "mine.yaml").write_text(JUDGE)
    (folder / "conf" / "task" / "mine.yaml").write_text(FILE_TASK)
    (folder / "mine.jsonl").write_text(ROWS)
    bare = FILE_TASK.replace("name: prompts", "name: count-up")
    named = re.sub(r"^path: .*\n", "", bare, flags=re.M)
    (folder / "conf" / "task" / "count-up.yaml").write_text(named)
    (folder / "study" / "tasks" / "count_up.py").write_text(TASK)
    added(folder / "study" / "features.py", '}\n"""Name -> behaviour.', BEHAVIOUR)
    tasks = folder / "study" / "tasks" / "__init__.py"
    added(tasks, '    "instruct-mini": instruct_mini.TASK,\n', '    "count-up": count_up.TASK,\n')
    added(tasks, "from study.tasks.drawing import", "from study.tasks import count_up\n")
    return folder


def added(path: Path, place: str, text: str) -> None:
    before, found, after = path.read_text(encoding="utf-8").partition(place)
    assert found, place
    path.write_text(before + text + found + after, encoding="utf-8")


@pytest.mark.parametrize(
    "judges",
    [SIMULATED[::6], pytest.param(SIMULATED, marks=pytest.mark.long)],
    ids=["each sixth judge", "all judges"],
)
def test_what_the_page_shows_is_all_that_it_takes(tmp_path, small_study, judges) -> None:
    """The behaviour is counted, a simulated judge can pay for it, an old study is measured by it,
    and judges that do not pay for it are who they were."""
    folder = written(tmp_path)
    variables = os.environ | {"PYTHONPATH": str(folder)}
    done = run_program(PROGRAM, str(small_study), *judges, cwd=folder, env=variables)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "counted": 2.0,
        "z": (2 - 0.1) / 0.3,
        "paid": True,
        "ids": {name: judge_id(load_judge(name)) for name in judges},
        "unit": "per answer",
        "names": ["questions"] * 4,
        "runs": 2,
        "judge": ["mine", "my-model", 0.6],
        "prompt": "Which number follows 1?",
        "truths": [1.0, 0.0],
        "rows": 3,
    }
