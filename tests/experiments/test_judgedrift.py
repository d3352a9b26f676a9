"""The one command: what it lists, what each command says of itself, and what a shell completes."""

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from judgedrift import __main__ as judgedrift
from judgedrift import completion
from judgedrift.__main__ import main
from judgedrift.commands import BRIEF, COMMANDS, STAGES, SWEEP
from study.cli import AnyStudyOptions, Command
from study.config.presets import preset_names
from study.declared import declared, module_of
from study.errors import UserError
from tests.conftest import ROOT, run_alone

HEAVY = set(
    "torch transformers mlflow pandas scipy statsmodels hydra aiohttp matplotlib seaborn sklearn"
    " datasets nltk IPython jinja2 starlette".split()
)
ASKED = (
    "sweep plan status monitor report probe replay forecast evaluate serve check data pipeline"
    " doctor list show clean ui completion".split()
)


def test_the_installed_script_is_this_one_and_names_lead_to_one_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["judgedrift"].partition(":")
    assert getattr(import_module(module), name) is main
    first = import_module(module_of("analysis.report")).main
    before = first.help()
    other = first.named("judgedrift report", ["judgedrift report study=a", "b"])
    assert "usage: judgedrift report" in other.help() and "examples:\n  judgedrift" in other.help()
    assert first.help() == before and "usage: python -m analysis.report" in before


def test_alone_it_prints_every_command_in_the_order_of_a_study(capsys) -> None:
    assert main([]) == main(["--help"]) == 0
    once, again = capsys.readouterr().out.split("usage: ")[1:]
    assert once == again
    named = [line.split()[0] for line in once.splitlines() if line.startswith("  ")]
    told = [name for stage, commands in STAGES.items() if stage not in BRIEF for name in commands]
    assert named[: len(told)] == told and set(ASKED) <= set(told)
    assert named.index("doctor") < named.index("plan") < named.index("sweep")
    assert named.index("sweep") < named.index("report") < named.index("clean")
    assert all(COMMANDS[name].about in once for name in told)
    for stage in BRIEF:
        names = once.partition(f"\n{stage}: ")[2].partition(":")[0].split()
        assert names[: len(STAGES[stage])] == list(STAGES[stage])
    assert sum(map(len, STAGES.values())) == len(COMMANDS)


def test_what_is_said_to_type_is_typed_as_the_command_was(monkeypatch, capsys) -> None:
    error = UserError(
        "Type python -m experiments.sweep --cfg job, python -m experiments.workflow run --help,"
        " or python -m tests.mutants."
    )

    def refuse(options: object) -> int:
        raise error

    monkeypatch.setattr(judgedrift, "import_module", lambda name: SimpleNamespace(main=command))
    command = Command(refuse, "experiments.ui", "", AnyStudyOptions)
    assert main(["ui"]) == 2
    told = capsys.readouterr().err
    assert told == (
        "Type judgedrift sweep --cfg job, judgedrift workflow run --help, or python -m"
        " tests.mutants.\n"
    )
    assert str(error).startswith("Type python -m experiments.sweep --cfg job")
    assert judgedrift.by_name()["experiments.monitor"] == "judgedrift monitor"


def test_the_help_of_every_command_has_its_examples_and_loads_nothing_heavy() -> None:
    """And the list of the commands loads not even what some helps load."""
    program = (
        "import sys; from judgedrift.commands import COMMANDS\n"
        "from judgedrift.__main__ import main; main([])\n"
        f"heavy = {HEAVY!r}\n"
        "print('LOADED', sorted((heavy | {'numpy', 'pyarrow', 'rich'}) & sys.modules.keys()))\n"
        "for name in COMMANDS:\n"
        "    print('@@', name)\n"
        "    assert main([name, '--help']) == 0\n"
        "    print('loaded', *sorted(heavy & sys.modules.keys()))\n"
    )
    listed, *texts = run_alone(program).split("@@ ")
    assert listed.endswith("LOADED []\n")
    assert [text.split("\n")[0] for text in texts] == list(COMMANDS)
    for text, (name, entry) in zip(texts, COMMANDS.items(), strict=True):
        in_words = name.replace("workflow-", "workflow ")
        assert f"usage: judgedrift {in_words.partition(' ')[0]}" in text
        brief = any(name in STAGES[stage] for stage in BRIEF)  # their defaults are an estimator's
        assert brief or text.endswith("\nloaded\n"), text[-90:]
        typed = [f"judgedrift {in_words} {example}".rstrip() for example in entry.examples]
        assert all(each in text for each in typed)
        assert f"python -m {entry.module}" not in text


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_can_be_typed(name: str) -> None:
    entry = COMMANDS[name]
    if entry.module == SWEEP:
        groups = {word.partition("=")[0] for text in entry.examples for word in text.split()}
        schema = {"judge", "seed", "trainer.steps", "judge.sampling.votes", "runs_dir"}
        assert groups | schema <= set(completion.keys_of(SWEEP))
        return
    command = import_module(module_of(entry.module)).main
    assert isinstance(command, Command)
    for example in entry.examples:
        words = example.split()
        assert len([word for word in words if "=" not in word]) <= len(command.words)
        typed = [word.partition("=")[0] for word in words if "=" in word]
        assert all(key in command.keys or key.startswith(command.beginnings) for key in typed)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["zzz"], "'zzz' is not a command of judgedrift. To see all commands, type: judgedrift"),
        (["report", "study=no-such"], "Type for example: judgedrift report study=quickstart"),
        (["report", "stduy=x"], "is not an option of judgedrift report. Did you mean study=?"),
    ],
)
def test_what_is_wrong_is_one_paragraph(words, said, capsys) -> None:
    """Beside the mistakes of docs/mistakes.md, which test_mistakes.py types."""
    assert main(words) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_a_workflow_command_is_typed_in_one_word_or_in_two(capsys) -> None:
    helps = []
    for words in (["workflow-validate"], ["workflow", "validate"]):
        assert main([*words, "--help"]) == 0
        helps.append(capsys.readouterr().out)
    assert helps[0] == helps[1] and "usage: judgedrift workflow validate " in helps[0]
    assert main(["workflow", "nothing"]) == 2
    assert "Did you mean workflow-" in capsys.readouterr().err


def test_the_sweep_is_told_what_was_typed(monkeypatch) -> None:
    told: list[list[str]] = []
    before = list(sys.argv)
    monkeypatch.setattr(import_module(SWEEP), "main", lambda: told.append(list(sys.argv)) or 7)
    assert main(["plan", "judge=sim-fair"]) == main(["sweep"]) == 7
    assert told == [["judgedrift plan", "plan=true", "judge=sim-fair"], ["judgedrift sweep"]]
    assert sys.argv == before


@pytest.mark.parametrize("name", [name for name in COMMANDS if COMMANDS[name].module != SWEEP])
def test_what_is_declared_is_what_the_command_takes(name: str) -> None:
    module = COMMANDS[name].module
    command, said = import_module(module_of(module)).main, declared(module)
    assert said.help() == command.help() and said.keys == command.keys


@pytest.fixture
def shell(tmp_path: Path):
    """A bash that completes what stands at its end."""
    for name in ("first", "second"):
        cell = tmp_path / "runs" / name / f"sim-fair-s0-{name}"
        cell.mkdir(parents=True)
        (cell / "config.yaml").write_text("")
        (cell.parent / "study.json").write_text("{}")
    (tmp_path / "rc").write_text(completion.script("bash"))

    def completed(line: str) -> list[str]:
        program = (
            f". {tmp_path / 'rc'}; COMP_LINE=$1; COMP_POINT=${{#1}};"
            ' _judgedrift; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", program, "bash", line],
            cwd=tmp_path, capture_output=True, text=True, check=True,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
        assert done.stderr == ""
        return sorted(done.stdout.split())

    return completed


def test_bash_completes_commands_keys_presets_studies_and_cells(shell) -> None:
    assert shell("judgedrift ") == sorted(COMMANDS)
    assert shell("judgedrift s") == sorted(name for name in COMMANDS if name.startswith("s"))
    assert "judge=" in shell("judgedrift sweep jud")
    assert shell("judgedrift monitor st") == ["study="]
    flat = [name for name in preset_names("judge") if name.startswith("sim-f")]
    assert shell("judgedrift sweep judge=sim-f") == flat
    assert shell("judgedrift sweep seed=0 judge=sim-fair,sim-verb") == ["sim-fair,sim-verbose"]
    assert shell("judgedrift report study=") == ["first", "second"]
    assert shell("judgedrift report study=f") == ["first"]
    assert shell("judgedrift report runs_dir=nowhere study=") == []
    assert shell("judgedrift show cell=") == ["sim-fair-s0-first", "sim-fair-s0-second"]
    assert shell("judgedrift sweep trainer.learning_rate=") == []


def test_what_zsh_reads_has_the_same_commands_and_keys() -> None:
    text = completion.script("zsh", "jd")
    assert text.endswith("compdef _judgedrift jd")
    assert all(name in text for name in COMMANDS) and "trainer.steps" in text
