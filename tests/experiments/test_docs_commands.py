"""Every command that a page shows is one that there is: sweeps are laid out, all others are read.

A command stands in a block without a language, in an indented block, or as inline code. What cannot
be typed here is in `ELSEWHERE`, with the reason.
"""

import importlib
import importlib.util
import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.plan.preflight import check_arms, check_factors
from experiments.sweep import cells_of
from experiments.workflow.__main__ import MODULES
from judgedrift.commands import COMMANDS, in_one_word
from study.config.schema import register
from study.declared import module_of
from study.errors import UserError
from study.finding import stop_at_problem
from tests.conftest import ROOT

APART = {
    "lab-book": "says what was typed once, and stays as it is",
    "mistakes": "shows mistakes, and test_mistakes.py types them",
}
"""Pages that are not read here, and why."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.stem not in APART),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^((?: {4}.*\n)+)", re.MULTILINE)
INLINE = re.compile(r"`((?:python|judgedrift|make|pip|sbatch(?! --export)|docker) [^`]+)`")
PROGRAM = re.compile(
    r"(?:[A-Z]\w*=\"python|\$W|(?:\.venv/bin/)?python3?|judgedrift|make|pip|sbatch) "
)
SHELL = {
    "export": "sets a variable",
    "source": "enters an environment",
    "printf": "writes a file",
    "docker": "tests/experiments/test_clusters.py reads the file that it is given",
}
"""Programs of others that are not typed, and why."""
ELSEWHERE = {
    r"\bjudge=mine\b": "a preset that the reader writes; test_one_entry.py writes it",
    r"importers KIND": "stands for six kinds, each of which takes some of the options",
    r"s3://": "needs a bucket; tests/experiments/test_far.py has one",
    r"sweep\.ray\.address=HOST:PORT|on=ray": "needs a Ray cluster; test_clusters.py types it",
    r"^COMMAND --help": "stands for any command of judgedrift",
    r"^completion bash >": "writes a file of the shell's",
    r"\$\(": "takes the output of another command",
    r"^-m (tests|benchmarks)\.": "test_docs.py looks whether it is there; its work takes minutes",
    r"^train |restart=true": "takes a cell, which a sweep made",
}
"""What of a command cannot be read here, and why."""
FILLED = {
    **{"judge=a,b": "judge=sim-fair,sim-verbose", "judge=NAME": "judge=sim-fair"},
    **{"executor=NAME": "executor=sim", "proposer=NAME": "proposer=sim-fair"},
    **{"seed=0,1,2,...": "seed=0,1,2", "policy=M": "policy=tiny", "device=D": "device=cpu"},
    **{"checkpoint=STEP": "checkpoint=1", "replies=FILE": "replies=replies.jsonl"},
}
"""A word of a page that stands for any, and one that there is."""
FANNED = re.compile(
    r"experiment=(workflow-treatments|judge-families(-small)?|verinstruct-arms profile=\S+)(?!\S)"
)
"""Sweeps that compose up to ten arms each. Interventions and the plain arms stand for them in the
standard tier, where `test_conf.py` lays judge families and arms of other profiles."""
ROWS = "".join(
    f'{{"prompt": "What is 1 + {number}?", "reference": "{1 + number}"}}\n' for number in range(4)
)
"""As few as docs/real-judge.md writes."""


def blocks(text: str) -> list[str]:
    """The blocks of a page that are typed into a shell."""
    return [block for language, block in BLOCK.findall(text) if language in ("", "bash")]


def lines(block: str) -> Iterator[str]:
    """Commands of a block, each on one line."""
    for line in block.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def commands(text: str) -> list[str]:
    """All commands that a page shows, in the order of their kinds."""
    found = [line for block in blocks(text) for line in lines(block)]
    rest = FENCE.sub("", text)
    for block in INDENTED.findall(rest):
        found += [line for line in lines(block) if PROGRAM.match(line)]
    variables = dict(re.findall(r'^([A-Z]+)="(.*)"$', "\n".join(found), re.MULTILINE))
    found = [re.sub(r"\$([A-Z]+)\b", lambda m: variables.get(m[1], m[0]), one) for one in found]
    found = [one for one in found if not re.match(r'[A-Z]+="', one)]
    inline = [code for code in INLINE.findall(rest) if "..." not in code and code[-1] != "="]
    inline = [code for code in inline if "=" in code or not code.startswith("python")]
    return list(dict.fromkeys([*found, *(" ".join(code.split()) for code in inline)]))


def words_of(command: str) -> list[str]:
    """A command's words, with what stands for any filled in."""
    words = []
    for word in shlex.split(command, comments=True):
        word = word.removeprefix("[").removesuffix("]") if re.match(r"\[\w+=", word) else word
        word = re.sub(r"(?<=[\w.])\|.*", "", word)
        words.append(FILLED.get(word, word))
    return list(itertools.dropwhile(re.compile(r"[A-Z_]+=").match, words))


def shown() -> list[Any]:
    """Every command of the pages once, with the first of the comments behind it, named after the
    first page that shows it."""
    found: dict[tuple[str, ...], tuple[str, str]] = {}
    for page in PAGES:
        for command in commands(page.read_text(encoding="utf-8")):
            found.setdefault((*words_of(command),), (command, page.stem))
    return [
        pytest.param(
            command,
            id=f"{page}-{k}",
            marks=[pytest.mark.long] * bool(FANNED.search(" ".join(words))),
        )
        for k, (words, (command, page)) in enumerate(found.items())
    ]


SHOWN = shown()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of studies and files that have every name that a page gives one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUDGE_KEY", "x")
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    register()
    return tmp_path


def typed(words: list[str], here: Path) -> None:
    """Type a command as far as it can be typed without doing its work.
    Raises AssertionError, UserError: it is none."""
    program, *rest = words
    if program.endswith("python") or program == "python3":
        if rest[0] == "-m":
            module(rest[1], rest[2:], here)
        else:
            assert (ROOT / rest[0]).is_file()
    elif program == "judgedrift":
        rest = in_one_word(rest)
        entry = COMMANDS[rest[0]]
        module(entry.module, [*entry.given, *rest[1:]], here)
    elif program == "make":
        targets = [word for word in rest if "=" not in word]
        phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert phony is not None and targets and set(targets) <= set(phony[1].split())
    elif program == "pip":
        installed(rest)
    elif program == "sbatch" and "--wrap" in rest:
        typed(words_of(rest[rest.index("--wrap") + 1]), here)
    elif program == "sbatch":  # of a file that hands its words to a sweep
        name, *rest = [word for word in rest if not word.startswith("--")]
        assert (ROOT / name).is_file()
        module("experiments.sweep", rest, here)
    else:
        assert program in SHELL, f"{program} is no program that a page may show"


def module(name: str, words: list[str], here: Path) -> None:
    """``python -m NAME WORDS``."""
    if name in ("venv", "pip"):
        installed(words) if name == "pip" else None
        return
    if "--help" in words:
        words = []
    if name == "experiments.sweep":
        cells = cells_of([filled(word, here) for word in words])
        assert cells
        stop_at_problem(check_factors(cells))
        stop_at_problem(check_arms(cells, cells[0].config.factors))
    elif name == "experiments.workflow":
        first = importlib.import_module(MODULES[words[0]])
        first.main.read([filled(word, here) for word in words])
    elif words:
        importlib.import_module(module_of(name)).main.read([filled(word, here) for word in words])
    else:
        assert importlib.util.find_spec(name) is not None


def filled(word: str, here: Path) -> str:
    """A word, once the study or file that it names is there."""
    key, _, value = word.partition("=")
    if key in ("study", "fit") and value:
        for name in value.split(","):
            folder = here / "runs" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "study.json").write_text("{}")
    if key == "replies":
        (here / value).touch()
    if key == "task.path":
        (here / value).write_text(ROWS)
        return f"{key}={here / value}"
    return word


def installed(words: list[str]) -> None:
    """``pip install WORDS``: its extras and files are there."""
    extras = re.findall(r"\[([\w,]+)\]", " ".join(words))
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in (one for group in extras for one in group.split(",")):
        assert re.search(rf"^{extra} = \[", text, re.MULTILINE), extra
    for flag, name in itertools.pairwise(words):
        assert flag not in ("-r", "-c") or (ROOT / name).is_file(), name


@pytest.mark.parametrize("command", SHOWN)
def test_a_command_of_a_page_can_be_typed(command: str, here: Path) -> None:
    words = words_of(command)
    rest = " ".join(words[1:])
    if reason := next((why for mark, why in ELSEWHERE.items() if re.search(mark, rest)), ""):
        pytest.skip(reason)
    typed(words, here)


def test_every_reason_is_needed() -> None:
    everything = "\n".join(str(one.values[0]) for one in SHOWN)
    typed = "\n".join(" ".join(words_of(str(one.values[0]))[1:]) for one in SHOWN)
    for mark in ELSEWHERE:
        assert re.search(mark, typed, re.MULTILINE), mark
    for program in SHELL:
        assert re.search(rf"^{program} ", everything, re.MULTILINE), program


def test_a_command_that_is_none_is_seen(here: Path) -> None:
    page = "```\npython -m judges.chekc judge=a\n```\nText `make dmeo`\n\n    $ no\n    make test\n"
    assert commands(page) == ["python -m judges.chekc judge=a", "make test", "make dmeo"]
    for wrong, kind in (
        ("python -m judges.chekc judge=sim-fair", ModuleNotFoundError),
        ("python -m judges.check jugde=sim-fair", UserError),
        ("judgedrift swep", KeyError),
        ("python -m experiments.sweep jugde=sim-fair", UserError),
        ("make dmeo", AssertionError),
        ("pip install -e '.[gpus]'", AssertionError),
        ("curl -O file", AssertionError),
    ):
        with pytest.raises(kind):
            typed(words_of(wrong), here)


def test_shell_of_the_pages_is_sound() -> None:
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8")):
            done = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True)
            assert done.returncode == 0, (page.name, done.stderr)
