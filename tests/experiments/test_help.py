"""What is found by typing: presets, the help of a setting, names that other programs use."""

import re

import pytest

from judgedrift import presets
from judgedrift.__main__ import main
from judgedrift.commands import COMMANDS
from judgedrift.help import explained, of_setting
from judgedrift.other_names import OTHER_NAMES
from study.config.field_names import FIELD_NAMES, NEEDLESS
from study.config.override_errors import keys
from study.config.presets import preset_groups, preset_names
from study.config.settings import HIDDEN, parts, settings
from study.screen import print_table

SCREEN = 80
TWELVE = (
    "judge policy task reward experiment seed study trainer.steps trainer.learning_rate"
    " trainer.prompts_per_step trainer.group_size trainer.max_completion_length"
).split()


@pytest.fixture(autouse=True)
def narrow(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(SCREEN))


def test_the_help_of_a_sweep_is_one_screen_with_twelve_settings(capsys) -> None:
    assert main(["sweep", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= SCREEN
    start = next(k for k, line in enumerate(lines) if line.startswith("What people change"))
    shown = [line.split("=")[0].strip() for line in lines[start + 1 : start + 13]]
    assert shown == TWELVE and not lines[start + 13]
    assert {*shown} <= {*settings(), *preset_groups()}


def test_every_setting_has_a_meaning_and_every_number_a_unit() -> None:
    assert {*settings()} == {*keys()} - {*HIDDEN}
    for key, setting in settings().items():
        assert setting.meaning.endswith("."), key
        is_number = setting.kind.startswith(("a number", "a whole number"))
        assert setting.unit or not is_number or key.endswith("seed"), key
        facts = list(of_setting(setting))
        assert len(facts) >= 7 and setting.default_text
        assert all(len(line) <= SCREEN or " " not in line[11:] for line in facts), key


def test_a_setting_is_explained_from_the_schema_and_the_presets(capsys) -> None:
    assert main(["help", "trainer.learning_rate"]) == 0
    shown = capsys.readouterr().out
    facts = dict(re.findall(r"^  (\w[\w ]*?)  +(.+)$", shown, re.MULTILINE))
    assert facts["default"] == "0.001" and facts["legal"] == "a number 0 or more"
    assert facts["unit"] == "step size" and "trainer=quickstart (0.0006)" in shown
    assert main(["help", "judge.sampling.votes=3"]) == 0
    assert "asked anew" in capsys.readouterr().out
    assert main(["help", "runs_dir"]) == 0
    assert "the cell stays the same" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["lr", "--lr", "trainer.lr", "num-generations", "epochs"])
def test_a_name_of_the_field_is_explained_as_ours(name, capsys) -> None:
    assert main(["help", name]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n  default  ") == 1 and " here." in shown.splitlines()[0]


def test_a_part_is_found_by_its_last_word(capsys) -> None:
    assert main(["help", "grading"]) == 0
    first, _, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "grading is judge.grading here." and second.startswith("judge.grading: What is")
    assert main(["help", "simulated"]) == 0
    assert "judge.simulated or executor.simulated here." in capsys.readouterr().out


def test_every_other_name_leads_to_what_there_is() -> None:
    there = {*settings(), *preset_groups()}
    wrong = {name for name, ours in FIELD_NAMES.items() if not {*ours} <= there}
    assert wrong == set() and not {*FIELD_NAMES, *NEEDLESS} & there
    for word, (typed, _) in OTHER_NAMES.items():
        assert typed.split()[0] in {*COMMANDS, "--version"} and word not in COMMANDS, word


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "Type: judgedrift sweep judge="),
        (["train", "judge=sim-fair"], "Type: judgedrift sweep judge="),
        (["resume"], "Type: judgedrift sweep"),
        (["ls"], "Type: judgedrift list"),
        (["sweep", "lr=1e-5"], "Did you mean trainer.learning_rate="),
        (["sweep", "trainer.lr=1e-5"], "Did you mean trainer.learning_rate="),
        (["sweep", "--num-train-epochs=3"], "Type trainer.steps=3;"),
        (["sweep", "batch_size=8"], "trainer.prompts_per_step=, trainer.group_size= or"),
        (["sweep", "temperature=1"], "trainer.temperature= or judge.sampling.temperature="),
        (["sweep", "num_generations=8"], "Did you mean trainer.group_size="),
        (["sweep", "resume=true"], "A sweep resumes by itself"),
        (["presets", "judgs"], "Did you mean judge?"),
        (["presets", "sim-fair"], "Type: judgedrift presets judge"),
        (["presets", "group=judge"], "Did you mean judge, without group=?"),
        (["help", "learning_rat"], "Did you mean trainer.learning_rate"),
    ],
    ids=" ".join,
)
def test_a_near_word_is_answered_with_ours(words, said, capsys, in_this_process) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.out == "" and printed.err.count("\n") == 1


@pytest.mark.parametrize("group", presets.groups())
def test_each_preset_has_a_line_that_says_what_it_is(group, capsys) -> None:
    assert main(["presets", group]) == 0
    shown = capsys.readouterr().out
    names = [name for name in preset_names(group) if name != "base"]
    rows = re.findall(r"^(\S+)  +(\S.*)$", shown, re.MULTILINE)
    assert [name for name, _ in rows[1:]] == names
    assert all(len(line) <= SCREEN for line in shown.splitlines())
    assert all(presets.about(group, name) for name in names)


def test_models_have_family_size_price_and_source_and_what_sets_two_of_them_apart(capsys) -> None:
    assert main(["presets", "policy"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "[qwen3 8B; Qwen/Qwen3-8B]" in shown
    apart = "qwen2.5-7b-instruct, qwen25-7b: the same model, Qwen/Qwen2.5-7B-Instruct. They differ"
    assert f"{apart} in lora.alpha (128, 64)." in shown
    assert main(["presets", "judge"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "qwq undisclosed; $0.8 in, $2.4 out per M tokens; https://dashscope" in shown
    assert "length in words [simulated; free]" in shown


def test_all_groups_are_listed_and_each_part_lists_its_keys(capsys) -> None:
    assert main(["presets"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{group} " in shown for group in presets.groups())
    for part in parts():
        text = "\n".join(explained(part))
        inside = [key for key in settings() if key.rpartition(".")[0] == part]
        assert all(f"\n{key.rpartition('.')[2]}=" in text for key in inside), part


def test_a_piped_table_keeps_to_the_columns_that_are_said(capsys, monkeypatch) -> None:
    print_table([{"a": "word " * 40, "b": "x"}], "t")
    assert max(map(len, capsys.readouterr().out.splitlines())) <= SCREEN
    monkeypatch.delenv("COLUMNS")
    print_table([{"a": "word " * 40, "b": "x"}], "t")
    assert 80 < max(map(len, capsys.readouterr().out.splitlines())) <= 160
