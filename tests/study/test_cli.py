"""The reader of command lines, and every command that is read by it."""

import ast
import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from study.cli import Command, StudyOptions, command, option, output, overrides, word, writes
from study.config.bounds import Choice, Number
from study.errors import UserError
from study.screen import UNREAD, unless_unread
from study.system.files import write_json
from tests.conftest import ROOT, came_of, run_alone
from tests.waiting import GENEROUS_S

OTHERS = {
    *("experiments.sweep", "judges.serving.vllm_cpu", "study.truth.equations"),
    *("experiments.workflow.__main__", "judgedrift.__main__"),
}
"""Hydra reads the first, vLLM the second; the third is a child that reads its parent's pipe,
and the last two only choose among commands."""


@functools.cache
def commands() -> list[str]:
    """Modules of the four packages that can be run."""
    names = []
    for package in ("study", "judges", "analysis", "experiments"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            if "__main__" in text and any(
                isinstance(node, ast.If) and "'__main__'" in ast.unparse(node.test)
                for node in ast.parse(text).body
            ):
                names.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return sorted(set(names) - OTHERS)


def main_of(name: str) -> Command[Any]:
    main = import_module(name).main
    assert isinstance(main, Command) and main.program == name.removesuffix(".__main__")
    return main


def test_every_command_is_found() -> None:
    assert len(commands()) >= 27
    assert {"judges.store", "analysis.preference", "experiments.evaluate"} <= set(commands())


def check_help(name: str, text: str) -> None:
    """The help of a command names all that can be typed."""
    main = main_of(name)
    assert f"usage: python -m {main.program}" in text and main.example in text
    assert all(f"{key}=" in text for key in main.keys), text
    assert all(main._typed(name) in text for name in main.words), text
    assert all(extra.about for extra in main.options.values())


@pytest.mark.parametrize("name", commands())
def test_help_of_every_command_names_its_options(name: str, capsys) -> None:
    """That it loads nothing heavy, `tests.invariants.test_house` shows of every module."""
    assert main_of(name)(["--help"]) == 0
    check_help(name, capsys.readouterr().out)


@pytest.mark.long
def test_help_of_every_command_names_its_options_and_loads_nothing_heavy() -> None:
    program = (
        "import importlib, sys\n"
        f"for name in {commands()!r}:\n"
        "    main = importlib.import_module(name).main\n"
        "    print('\\f', name)\n"
        "    assert main(['--help']) == 0\n"
        "    print('loaded', *sorted({'torch', 'transformers', 'mlflow'} & sys.modules.keys()))\n"
    )
    texts = run_alone(program).split("\f ")[1:]
    assert [text.split("\n")[0] for text in texts] == commands()
    for text in texts:
        check_help(text.split("\n")[0], text)
        assert text.endswith("\nloaded\n"), text[-80:]


@pytest.mark.parametrize("name", commands())
def test_a_wrong_word_is_one_paragraph_that_names_the_nearest(name, capsys) -> None:
    main = main_of(name)
    key = max(main.keys, key=len)
    first = main.example.split()[3 : 3 + len(main.words)]
    swapped = f"{key[:-2]}{key[-1]}{key[-2]}"
    for wrong, message in (
        ([*first, swapped], f"Did you mean {key}=?"),
        ([*first, f"{swapped}=1"], f"Did you mean {key}=?"),
        ([*first, f"{key}=1", f"{key}=1"], f"{key}= is given twice"),
        ([*first, f"{key}="], f"{key}= has no value"),
    ):
        if message.endswith("no value") and main.options[main.keys[key]].empty:
            continue
        assert main(wrong) == 2
        printed = capsys.readouterr()
        assert message in printed.err and printed.err.count("\n") == 1 and printed.out == ""
        assert f"python -m {main.program} " in printed.err


@pytest.mark.parametrize("name", commands())
def test_the_example_of_every_command_can_be_typed(name: str) -> None:
    main = main_of(name)
    for typed in main.example.split()[3 + len(main.words) :]:
        key, equals, value = typed.partition("=")
        assert equals and value and (key in main.keys or key.startswith(main.beginnings))


@dataclass(frozen=True)
class Options:
    what: str = word("the work", "read", "write")
    name: str = option("a name", required=True)
    count: int = option("how many", 3, Number(low=1, high=9))
    share: float | None = option("a share", legal=Number(low=0, high=1), key="cost.share")
    loud: bool = option("say it loud", False)
    colours: list[str] = option("of it", ["red"], Choice(("red", "blue")))
    place: Path | None = option("where to", only=("write",), former="to")
    overrides: list[str] = overrides("judge.")
    given: frozenset[str] = frozenset()


@command("some.command read name=x", "Does some work.", Options)
def some(options: Options) -> int:
    if options.name == "stopped":
        raise KeyboardInterrupt
    if options.name == "stopped within a library":
        raise came_of(KeyboardInterrupt(), AttributeError("half built"))
    if options.name == "bad":
        raise UserError("It is bad.")
    return 7


def test_words_become_typed_values() -> None:
    typed = frozenset({"what", "name"})
    assert some.read(["read", "name=a=b"]) == Options("read", "a=b", given=typed)
    typed = ["write", "count=9", "name=n", "cost.share=0.5", "loud=true", "colours=blue,red,blue"]
    options = some.read([*typed, "place=a/b", "judge.x=1", "+judge.y=2"])
    assert options == Options(
        *("write", "n", 9, 0.5, True, ["blue", "red"], Path("a/b"), ["judge.x=1", "+judge.y=2"]),
        given=frozenset(
            {"what", "name", "count", "share", "loud", "colours", "place", "overrides"}
        ),
    )
    assert some.read(["read", "name=n", "cost.share=null"]).share is None


def test_an_earlier_name_is_accepted_and_says_the_new_one(capsys) -> None:
    assert some.read(["write", "name=n", "to=a"]).place == Path("a")
    assert capsys.readouterr().err == "to= is now place=. Type place=a next time.\n"
    with pytest.raises(UserError, match="place= is given twice"):
        some.read(["write", "name=n", "place=a", "to=a"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "some.command needs a word for what (one of read, write)."),
        (["raed", "name=x"], "'raed' is not one of read, write. Did you mean read?"),
        (["read"], "some.command needs name= (a name)."),
        (["read", "name=x", "write"], "'write' is not an option of some.command. Legal are name="),
        (["read", "nmae=x"], "'nmae=x' is not an option of some.command. Did you mean name=?"),
        (["read", "--count"], "Did you mean count=?"),
        (["read", "jugde.sampling.votes=3"], "Did you mean judge.sampling.votes=?"),
        (["read", "name=x", "judge.a=1", "+judge.a=2"], "judge.a= is given twice. Give it once."),
        (["read", "name=x", "count=0"], "count=0 is not legal: it must be a number 1 or more"),
        (["read", "name=x", "count=1.5"], "count=1.5 is not legal: it must be a whole number."),
        (["read", "name=x", "cost.share=nan"], "it must be a number that is finite."),
        (["read", "name=x", "loud=yes"], "loud=yes is not legal: it must be true or false."),
        (["read", "name=x", "colours=[red]"], "and a list takes none. Type colours=red."),
        (["read", "name=x", "colours=red,bleu"], "must be one of red, blue. Did you mean blue?"),
        (["read", "name=x", "place=p"], "place= has no meaning with some.command read"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_type(words: list[str], message: str) -> None:
    with pytest.raises(UserError) as raised:
        some.read(words)
    assert message in str(raised.value)
    assert str(raised.value).endswith(" Type for example: python -m some.command read name=x")


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert some(["read", "name=good"]) == 7
    assert some(["read", "name=stopped"]) == 130
    assert some(["read", "name=stopped within a library"]) == 130
    assert some(["read", "name=bad"]) == 2
    assert capsys.readouterr().err == "It is bad.\n"
    assert some(["read", "-h"]) == 0
    shown = capsys.readouterr().out
    assert "Does some work." in shown and "cost.share=NUMBER\n" in shown
    assert "a share (a number 0 or more and at most 1)" in shown and "default 3" in shown


def test_a_secret_is_never_repeated() -> None:
    with pytest.raises(UserError, match="API key") as raised:
        some.read(["read", "name=sk-test-abcdefghijklmnop1234"])
    assert "abcdefghijklmnop" not in str(raised.value)


@pytest.fixture
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "study.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@dataclass(frozen=True)
class Analysis(StudyOptions):
    out: Path | None = output("where to")


@command("some.analysis study=NAME", "", Analysis)
def analysis(options: Analysis) -> int:
    return 0


def test_a_study_is_a_name_in_the_folder_of_runs(runs_dir: Path) -> None:
    options = analysis.read(["study=first", "out=a=b"])
    assert options.out == Path("a=b")
    assert options.folder == runs_dir / "first" and options.folder.is_absolute()
    assert analysis.read(["study=second", "runs_dir=./runs"]).folder.samefile(runs_dir / "second")
    assert analysis.read(["study=second", f"runs_dir={runs_dir}"]).folder == runs_dir / "second"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs study= (name of the study)"),
        (["study="], "study= has no value"),
        (["study=third"], "holds first, second. Type for"),
        (["study=third", "runs_dir=nowhere"], "nowhere holds no study. Type for"),
        (["study=runs/first"], "study=first runs_dir=runs. Type for"),
        (["study=first", "out=nowhere/file"], "Type: mkdir -p"),
        (["study=first", "out=runs"], "it is a folder. Name a file in it, such as out=runs/NAME"),
    ],
)
def test_a_study_or_a_file_that_cannot_be_is_said_before_the_work(runs_dir, words, message) -> None:
    with pytest.raises(UserError) as raised:
        analysis.read(words)
    assert message in str(raised.value)
    name = "first" if "holds first" in message else "NAME"
    assert str(raised.value).endswith(f"Type for example: python -m some.analysis study={name}")


def test_every_analysis_of_one_study_takes_the_same(runs_dir, capsys) -> None:
    mains = [main_of(name) for name in commands() if name.startswith("analysis.")]
    studies = [main for main in mains if issubclass(main.kind, StudyOptions)]
    assert len(studies) == 21
    needed = {
        "analysis.confusion": ["out=numbers.json"],
        "analysis.export": ["format=csv", "out=answers.csv"],
    }
    Path("other").mkdir()
    for main in studies:
        out = needed.get(main.program, [])
        assert main(["study=third", "runs_dir=runs", *out]) == 2
        message = capsys.readouterr().err
        assert "holds first, second" in message and f"python -m {main.program} study=" in message
        assert main(["study=runs/first", *out]) == 2
        assert "study=first runs_dir=runs" in capsys.readouterr().err
        assert main(["study=other", "runs_dir=runs", *out]) == 2  # a folder here, and no study
        assert "holds first, second" in capsys.readouterr().err


def test_missing_numbers_are_null_in_what_is_written(runs_dir: Path) -> None:
    numbers = {"r2": float("nan"), "peak": float("inf"), "runs": [{"n": 3, "low": -0.5}]}
    write_json(Path("numbers.json"), numbers)
    text = Path("numbers.json").read_text()
    assert json.loads(text) == {"r2": None, "peak": None, "runs": [{"n": 3, "low": -0.5}]}
    with pytest.raises(UserError, match=r"out=runs/first/study\.json/x cannot be written"):
        path = Path("runs/first/study.json/x")
        with writes("out", path):
            write_json(path, numbers)


ENDLESS = """
import sys
from dataclasses import dataclass
from study.cli import command, option
from study.screen import print_table

@dataclass(frozen=True)
class Options:
    table: bool = option("a table in place of lines", False)

@command("endless table=false", "Prints without end.", Options)
def main(options):
    while True:
        print_table([{"a": "b"}], "c") if options.table else print("a line")

sys.exit(main())
"""


def into_a_closed_pipe(*words: str) -> subprocess.CompletedProcess[str]:
    """What a Python of these words says once nobody reads it any more."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen([sys.executable, *words], cwd=ROOT, **pipes)
    child.stdout.close()
    message = child.stderr.read()
    child.stderr.close()
    return subprocess.CompletedProcess(words, child.wait(GENEROUS_S), "", message)


@pytest.mark.parametrize(
    "words",
    [
        ("-c", ENDLESS),
        ("-c", ENDLESS, "table=true"),
        ("-m", "judges.parse", "--help"),
        ("-m", "experiments.sweep", "--help"),
    ],
)
def test_a_closed_pipe_ends_a_command_quietly(words: tuple[str, ...]) -> None:
    done = into_a_closed_pipe(*words)
    assert (done.stderr, done.returncode) == ("", UNREAD)


def test_another_broken_pipe_is_an_error() -> None:
    def work() -> int:
        raise BrokenPipeError("of a child")

    with pytest.raises(BrokenPipeError, match="of a child"):
        unless_unread(work)


@dataclass(frozen=True)
class Whole:
    data: str = option("preset", "")
    settings: list[str] = overrides("data.", "judge", "hydra")


@pytest.mark.parametrize(
    "typed",
    ["data.seed=1", "judge=a,b", "judge.name=a", "+judge.options.x=1", "hydra/launcher=ray"],
)
def test_a_beginning_without_a_dot_is_a_setting_of_its_own(typed) -> None:
    assert command("x", "", Whole)(lambda options: 0).read([typed]).settings == [typed]


@pytest.mark.parametrize("typed", ["judges=a", "judge-x=1", "judge", "datas.x=1", "jugde=a"])
def test_what_only_begins_so_is_not(typed) -> None:
    message = "Did you mean judge=" if typed == "jugde=a" else "judge=, hydra="
    with pytest.raises(UserError, match=message):
        command("x", "", Whole)(lambda options: 0).read([typed])
