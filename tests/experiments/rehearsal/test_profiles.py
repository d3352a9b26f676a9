"""A profile's draws have the medians, percentiles and shares that it states."""

import random
import statistics
from pathlib import Path

import pytest

from experiments.rehearsal.profiles import (
    FILE,
    SOURCES,
    Draw,
    Profile,
    Spread,
    profile_of,
    read_profiles,
)
from experiments.rehearsal.scale import endpoint_models
from experiments.sweep import cells_of
from study.config.compose import load_judge
from study.errors import UserError

DRAWS = 20_000
"""The standard error of a median is .9 % where sigma is 1, of a share of .99 it is .0007."""


def test_a_spread_has_its_median_and_its_99th_percentile() -> None:
    spread = Spread(2.0, 50.0)
    assert spread.at(0.0) == 2.0
    draw = random.Random(3)
    values = [spread.at(draw.gauss(0.0, 1.0)) for _ in range(DRAWS)]
    assert statistics.median(values) == pytest.approx(2.0, rel=0.06)
    assert sum(value <= 50.0 for value in values) / DRAWS == pytest.approx(0.99, abs=0.003)
    assert Spread(4.0, 4.0).at(3.0) == 4.0


def test_draws_have_what_the_profile_states() -> None:
    profile = Profile(
        first_token_s=Spread(1.0, 5.0),
        token_s=Spread(0.01, 0.03),
        spoken_tokens=Spread(20, 60),
        reasoning_tokens=Spread(500, 3000),
        failures={"hang": 0.02, "empty": 0.05},
    )
    numbers = random.Random(7)
    draws = [profile.draw(numbers) for _ in range(DRAWS)]
    for values, median, p99 in (
        ([draw.first_token_s for draw in draws], 1.0, 5.0),
        ([draw.token_s for draw in draws], 0.01, 0.03),
        ([draw.reasoning_tokens for draw in draws], 500, 3000),
    ):
        assert statistics.median(values) == pytest.approx(median, rel=0.05)
        assert sum(value <= p99 for value in values) / DRAWS == pytest.approx(0.99, abs=0.003)
    failures = [draw.failure for draw in draws]
    assert failures.count("hang") / DRAWS == pytest.approx(0.02, abs=0.005)
    assert failures.count("empty") / DRAWS == pytest.approx(0.05, abs=0.007)
    assert Draw(1.0, 0.02, 0, 0, "").seconds(100) == pytest.approx(3.0)


@pytest.mark.parametrize(
    "words",
    [["experiment=judge-families"], ["experiment=workflow-full"], ["experiment=mixed-full"]],
    ids=lambda words: words[0].partition("=")[2],
)
def test_every_model_of_a_full_study_has_a_profile_and_says_where_it_is_from(words) -> None:
    profiles = read_profiles()
    for cell in cells_of(words):
        for model in endpoint_models(cell):
            profile = profile_of(model, profiles)
            assert set(profile.sources) == set(SOURCES) and all(profile.sources.values())


def test_a_judge_without_a_profile_is_refused_and_a_file_brings_one(tmp_path) -> None:
    judge = load_judge("smollm2-135m")
    with pytest.raises(UserError, match=r"judge=smollm2-135m has no profile.*profiles=FILE"):
        profile_of(judge, read_profiles())
    own = FILE.read_text().replace("[judge.qwen3-4b", "[judge.smollm2-135m")
    path = tmp_path / "profiles.toml"
    path.write_text(own)
    profile = profile_of(judge, read_profiles(path))
    assert profile == profile_of(load_judge("qwen3-4b"), read_profiles())


GOOD = """[judge.mine]
first_token_s = [1, 2]
token_s = [0.01, 0.02]
spoken_tokens = [10, 20]
sources = { latency = "a", tokens = "b", limits = "c", failures = "d" }
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[1, 2]", "[2, 1]", r"judge.mine.first_token_s .* the second not the smaller"),
        ("[1, 2]", "[0, 1]", r"judge.mine.first_token_s"),
        ("[1, 2]", '"fast"', r"judge.mine.first_token_s"),
        ("token_s = [0.01, 0.02]\n", "", r"judge.mine.token_s"),
        ("[judge.mine]", "[policy.mine]", r"^policy in profiles=.*judge.NAME or executor.NAME"),
        ("spoken_tokens", "speed = 3\nspoken_tokens", r"judge.mine .* a table of"),
        ("sources", "requests_per_min = 0\nsources", r"requests_per_min .* above 0"),
        ("sources", "failures = { hang = 0.7, empty = 0.6 }\nsources", r"1 in all at the most"),
        ("sources", "failures = { bang = 0.1 }\nsources", r"http_500, hang"),
        ('latency = "a", ', "", r"judge.mine.sources"),
        ("[1, 2]", "[1, 2", r"cannot be read as TOML"),
    ],
    ids="order zero text missing role unknown limit shares failure sources toml".split(),
)
def test_a_file_that_is_no_table_of_profiles_is_refused(old, new, words, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(GOOD)
    assert "mine" in read_profiles(path)["judge"]
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(UserError, match=words):
        read_profiles(path)
