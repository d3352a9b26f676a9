"""``import judgedrift as jd``: what it offers, that it loads nothing, and hidden packages."""

import subprocess
import sys
from pathlib import Path

import pytest

import judgedrift as jd
from analysis.study import Study
from experiments.studies import run
from experiments.sweep import cells_of
from study.config.compose import load_presets
from study.errors import UserError
from study.lazy import PACKAGES
from study.tasks import TASKS
from study.verdict import Outcome
from tests.commands import LIMIT_S, run_program
from tests.conftest import ROOT


def test_the_face_is_its_six_names_and_loads_none_of_them() -> None:
    program = (
        "import sys; import judgedrift as jd; print(*dir(jd))\n"
        "print(*{'study', 'judges', 'analysis', 'experiments', 'numpy', 'hydra', 'torch'}"
        " & set(sys.modules))"
    )
    done = run_program(program, cwd=ROOT)
    assert done.stdout == "Study ask compare forecast read sweep\n\n", done.stderr


def test_every_name_is_there_and_has_a_docstring() -> None:
    assert jd.Study is Study
    for name in jd.__all__:
        assert getattr(jd, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'reed'; it offers Study, ask"):
        jd.reed  # noqa: B018


def test_one_answer_is_judged() -> None:
    """By the rule itself: a right answer, then an empty one; and a prompt that nobody knows."""
    _, task = load_presets("sim-fair", "instruct-mini")
    row = TASKS["instruct-mini"].rows(task, "train")[0]
    prompt = row.messages[-1]["content"]
    verdicts = [jd.ask("sim-fair", prompt, answer) for answer in ("A car, a bus.", "no")]
    truths = [TASKS["instruct-mini"].truth(row, answer) for answer in ("A car, a bus.", "no")]
    assert [verdict.outcome for verdict in verdicts] == [Outcome.scored] * 2
    assert (verdicts[0].score > verdicts[1].score) == (truths[0].score > truths[1].score)
    with pytest.raises(UserError, match=r"none of its prompts\. One is: 'Name two"):
        jd.ask("sim-fair", "Who are you?", "I am.")
    with pytest.raises(UserError, match="Did you mean sim-fair"):
        jd.ask("sim-fiar", prompt, "no")


@pytest.mark.parametrize(
    ("key", "value", "typed"),
    [
        ("judge", ["sim-fair", "sim-verbose"], "sim-fair,sim-verbose"),
        ("seed", (0, 1), "0,1"),
        ("shadow", ["sim-fair"], "[sim-fair]"),
        ("plan", True, "true"),
        ("trainer.learning_rate", [1e-3, 0.5], "0.001,0.5"),
        ("task.path", Path("my rows/a=b.jsonl"), "'my rows/a=b.jsonl'"),
        ("judge.sampling.salt", "it's", "'it\\'s'"),
        ("cost.max_usd", None, "null"),
    ],
)
def test_a_setting_by_name_is_what_is_typed(key: str, value: object, typed: str) -> None:
    assert run.typed(key, value) == typed
    (cell, *_) = cells_of([f"{key}={typed}", *([] if key == "seed" else ["seed=0"])])
    if key == "judge.sampling.salt":
        assert cell.config.judge.sampling.salt == value


def test_a_sweep_is_planned_and_refused_from_python(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert jd.sweep("trainer.steps=2", judge=["sim-fair", "sim-verbose"], seed=0, plan=True) is None
    assert capsys.readouterr().out.startswith("quickstart: 2 cells")
    with pytest.raises(UserError, match="Did you mean sim-fair"):
        jd.sweep(judge="sim-fiar")
    with pytest.raises(UserError, match="is no text, number or list"):
        jd.sweep(judge={"name": "x"})
    assert not list(tmp_path.iterdir())


def run_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python in a folder whose packages it finds first, with ours on its path behind it."""
    variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES[:3])
def test_a_folder_that_hides_a_package_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    words = f"{tmp_path / name} hides the package '{name}' of judgedrift, which lies in {ROOT}"
    command = run_in(tmp_path, "-m", "experiments.sweep", "plan=true")
    assert command.returncode == 2 and command.stderr.startswith(words)
    assert command.stderr.count("\n") == 1 and "judgedrift COMMAND" in command.stderr
    face = run_in(tmp_path, "-c", "import judgedrift")
    assert face.returncode == 1 and "study.lazy.HiddenPackage: " + words in face.stderr


def test_the_command_itself_works_beside_such_folders(tmp_path: Path) -> None:
    """And so do the processes that it starts: they find what it finds."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "judgedrift"
    script.write_text(
        "import sys; from judgedrift.__main__ import main; code = main(['--version'])\n"
        "import subprocess\n"
        "sys.exit(code or subprocess.call([sys.executable, '-m', 'judges.check', '--help']))\n"
    )
    done = run_in(tmp_path, str(script))
    assert done.returncode == 0 and "judges.check" in done.stdout, done.stderr
