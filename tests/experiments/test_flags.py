"""Hydra's flags at any place of a sweep's command line."""

import pytest

from experiments.sweep import _flags_apart
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


def test_a_config_is_shown_with_words_on_both_sides_of_the_flags():
    words = ("judge=sim-verbose", "--cfg", "job", "--package", "judge", "seed=1")
    done = commands.run("experiments.sweep", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# @package judge\n") and "\nname: sim-verbose\n" in done.stdout
