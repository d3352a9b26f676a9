"""What the commands of analysis refuse: in one paragraph, with nothing printed or written."""

from importlib import import_module
from pathlib import Path

import pytest

from study.declared import module_of
from tests.analysis.conftest import write_study
from tests.conftest import ROOT

OF_ONE_STUDY = (
    "crossjudge dose field forecast frozen interventions knockout ledger mediation mixture natural"
    " onset overopt panel propagation report view".split()
)
ALIKE = {
    "": "needs study=",
    "quickstart": "'quickstart' is not an option of",
    "study=planted colour=red": "'colour=red' is not an option of",
    "study=nowhere": "There is no study folder",
}
"""Words of a command, and what is said of them."""
OWN = {
    "compare": {
        "": "needs study=",
        "study=planted": "does not name two different studies",
        "study=planted,planted": "does not name two different studies",
        "study=a,b,c": "does not name two different studies",
        "study=planted,zebra": "There is no study folder",
    },
    "confusion": {
        "out=o.json": "study=NAME or table=FILE",
        "study=planted out=o.json table=x": "both study= and table=",
    },
    "crossjudge": {
        "study=planted min_shift_sd=much": "it must be a number that is finite",
        "study=planted min_shift_sd=0": "a number above 0",
    },
    "dose": {
        "study=planted": "experiment=dose-response",
        "study=planted feature=lenght": "Did you mean length?",
    },
    "export": {
        "study=planted format=xlsx out=x": "one of csv, parquet, hf, inspect",
        "study=planted format=csv": "needs out=",
        "study=planted out=x.csv": "needs format=",
        "study=planted format=csv out=nowhere/x.csv": "mkdir -p",
        "study=planted format=hf out=tests": "it is a folder that holds files",
        "study=planted format=hf out=README.md": "it is a file, but this format writes a folder",
        "study=planted format=csv out=tests": "it is a folder",
        "study=plantde format=csv out=x.csv": "There is no study folder",
    },
    "field": {"study=planted feature=colour": "it must be one of length"},
    "forecast": {
        "study=planted judges=nobody": "is not a preset",
        "policy=tiny": "Type judges= with presets",
        "judges=sim-fair k=2": "Type study=NAME, or leave k= out",
        "judges=sim-fair k=-1": "must be a number 0 or more",
    },
    "interventions": {"study=planted": "experiment=interventions"},
    "knockout": {
        "study=planted": "that differ only in correction.without."
        " Type for example: python -m experiments.sweep experiment=knockout"
    },
    "mediation": {
        "study=planted": "doses of length",
        "study=planted feature=lenght": "Did you mean length?",
    },
    "mixture": {"study=planted": "names its domain", "study=planted window=-1": "window=-1"},
    "natural": {
        "study=planted": "Train other judges",
        "study=planted feature=charm": "feature=charm is not legal: it must be one of",
        "study=planted steps=none": "steps=none is not legal: it must be a whole number",
    },
    "onset": {
        "study=planted feature=taste": "feature=taste is not legal: it must be one of length",
        "study=planted high=much": "high=much is not legal: it must be a number",
        "study=planted min_high=inf": "min_high=inf is not legal: it must be a whole number",
    },
    "panel": {"study=planted": "was scored by a second judge"},
    "propagation": {"study=planted scale=magic": "plain, adam"},
    "view": {
        "study=planted answers=0": "1 or more",
        "study=planted out=nowhere/at/all.html": "mkdir -p",
    },
    "workflow": {
        "": "needs study= or log=, and takes only one of them",
        "study=a log=b.jsonl": "needs study= or log=, and takes only one of them",
        "study=away": "There is no study folder",
        "study=planted": "no recorded rollout of programs",
    },
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    """One run of one step, which several commands read before they refuse. Not to be changed."""
    folder = tmp_path_factory.mktemp("runs") / "planted"
    return write_study(folder, judges=["sim-fair"], seeds=1, steps=1)


def paragraph(command: str, words: str, planted: Path, capsys, monkeypatch) -> str:
    """What a command says that refuses its words."""
    monkeypatch.chdir(ROOT)
    before = sorted(planted.rglob("*"))
    main = import_module(module_of(f"analysis.{command}")).main
    assert main([*words.split(), f"runs_dir={planted.parent}"]) == 2
    printed, said = capsys.readouterr()
    assert printed == "" and len(said.strip().splitlines()) == 1
    assert sorted(planted.rglob("*")) == before
    return said


@pytest.mark.parametrize("words", ALIKE)
@pytest.mark.parametrize("command", OF_ONE_STUDY)
def test_every_command_of_a_study_refuses_alike(command, words, planted, capsys, monkeypatch):
    said = paragraph(command, words, planted, capsys, monkeypatch)
    assert ALIKE[words] in said and f"python -m analysis.{command}" in said


@pytest.mark.parametrize(
    ("command", "words"), [(command, words) for command, rows in OWN.items() for words in rows]
)
def test_what_a_command_cannot_do_is_said(command, words, planted, capsys, monkeypatch):
    assert OWN[command][words] in paragraph(command, words, planted, capsys, monkeypatch)
