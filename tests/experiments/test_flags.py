"""Hydra's flags at any place of a sweep's command line."""

import pytest

from experiments.sweep import _flags_apart, cells_of
from study.errors import UserError
from tests import commands

WORDS = ["seed=1", "judge=sim-fair"]


@pytest.mark.parametrize(
    ("flags", "passed"),
    [
        (["--cfg", "job"], ["--cfg", "job"]),
        (["--cfg=job", "--resolve"], ["--cfg=job", "--resolve"]),
        (["-c", "job", "--package", "trainer"], ["-c", "job", "--package", "trainer"]),
        (["--info"], ["--info=all"]),
        (["-i", "defaults"], ["-i", "defaults"]),
        (["--config-dir", "mine", "--multirun"], ["--config-dir", "mine", "--multirun"]),
        ([], []),
    ],
)
def test_flags_are_found_before_between_and_behind_the_words(flags, passed):
    for place in range(len(WORDS) + 1):
        assert _flags_apart([*WORDS[:place], *flags, *WORDS[place:]]) == (WORDS, passed)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--cfg"], "argument --cfg/-c"),
        (["--cfg=job", "--cfg"], "argument --cfg/-c"),
        (["--cfg="], "argument --cfg/-c: invalid choice: ''"),
        (["--info="], "argument --info/-i: invalid choice: ''"),
        (["--info", "x"], "'x' is not a setting"),
        (["--resolve"], "--resolve goes with --cfg"),
        (["--multirun", "--run"], "only one of --run, --multirun, --cfg, --info"),
        (["--multirun", "--cfg=job"], "only one of"),
        (["--shell-completion"], "judgedrift completion bash"),
        (["--experimental-rerun", "x.pickle"], "by the same command"),
        (["--config-dir", "/nowhere"], "config_dir=/nowhere is not a folder"),
        (["-cn", "nothing"], "Cannot find primary config 'nothing'"),
    ],
)
def test_flags_that_do_not_fit_are_refused_in_one_paragraph_at_any_place(flags, said, capfd):
    for place in range(len(WORDS) + 1):
        with pytest.raises(UserError) as caught:
            cells_of([*WORDS[:place], *flags, *WORDS[place:]])
        assert said in str(caught.value) and "\n" not in str(caught.value)
        assert capfd.readouterr() == ("", "")


def test_the_version_of_hydra_is_no_mistake(capfd):
    with pytest.raises(SystemExit) as ended:
        _flags_apart([*WORDS, "--version"])
    assert not ended.value.code and "Hydra 1." in capfd.readouterr().out


def test_what_hydra_shows_has_no_folder_of_ours_and_words_on_both_sides():
    for words in (("judge=sim-fair", "--cfg", "hydra"), ("--hydra-help", "judge=sim-fair")):
        done = commands.run("experiments.sweep", *words)
        assert done.returncode == 0 and "hydra" in done.stdout and not done.stderr
        assert "judgedrift-" not in done.stdout
    words = ("judge=sim-verbose", "--cfg", "job", "--package", "judge", "seed=1")
    done = commands.run("experiments.sweep", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# @package judge\n") and "\nname: sim-verbose\n" in done.stdout
