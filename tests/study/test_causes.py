"""Why a command line was refused: the reason, the nearest legal names, and what to type."""

import pytest

from study.config import override_errors as causes
from study.config.compose import load_presets
from study.config.presets import (
    NEAREST,
    any_of,
    nearest,
    no_preset,
    preset_groups,
    preset_names,
    unknown_name,
)
from study.config.schema import check_at
from study.errors import UserError


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("sed=1", "sed is not a setting of a study. Did you mean seed=?"),
        ("jugde=sim-fair", "jugde is not a setting of a study. Did you mean judge="),
        ("steps=3", "Did you mean trainer.steps= or policy.warmup.steps=?"),
        ("trainer.stepz=3", "trainer has no stepz. Did you mean trainer.steps="),
        ("+trainer.stepz=3", "trainer has no stepz."),
        ("~trainer.stepz", "trainer has no stepz."),
        ("judge.simulated.domains.law.fpr=1", "domains has no law; it has math, qa, code."),
        ("zzz.a=1", "zzz.a is not a setting of a study; it has study, arm, factors,"),
    ],
)
def test_a_setting_that_is_not_there_is_said_with_the_nearest(typed: str, expected: str) -> None:
    message = causes.unknown_key(["seed=0", typed])
    assert expected in message and message.count("=") <= causes.FEW + 1


@pytest.mark.parametrize(
    "typed",
    [
        *("seed=0", "judge=a,b", "+arm=x", "judge.grading.options.any.thing=1", "~tracking"),
        *("hydra.launcher.n_jobs=2", "hydra/launcher=joblib", "judge@shadow=a", "--cfg", "job"),
    ],
)
def test_what_the_schema_has_or_hydra_takes_is_left(typed: str) -> None:
    assert causes.unknown_key([typed]) == ""


def test_a_part_of_what_is_null_is_refused_with_what_to_type() -> None:
    expected = "judge.simulated.noise_sd is a part of judge.simulated, which is null in what is"
    with pytest.raises(UserError, match=f"^{expected} composed here. Leave it out, or choose"):
        load_presets("qwen3-8b", overrides=["judge.on_failure=zero", "judge.simulated.noise_sd=.1"])
    with (
        pytest.raises(UserError, match=r"A part of judge\.simulated or policy\.lora is set, which"),
        causes.nothing_below_null(["judge.simulated.noise_sd=.1", "seed=1", "policy.lora.r=3"]),
    ):
        raise AssertionError("Unexpected type for root: NoneType")
    with (
        pytest.raises(AssertionError, match="of ours"),
        causes.nothing_below_null(["judge.simulated.noise_sd=0.1"]),
    ):
        raise AssertionError("of ours")


def test_every_key_is_known_and_no_text_in_quotes_blamed() -> None:
    names = causes.keys()
    assert len(names) > 150 and {"seed", "judge.sampling.votes", "policy.lora.r"} <= set(names)
    assert causes.unknown_key([f"{name}=x" for name in names]) == ""
    assert causes.reason(ValueError(), ["seed='3'", "trainer.steps=${seed}", "judge.name=3"]) == ""


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["judge=sim-fiar"], "judge=sim-fiar is not a preset. Did you mean sim-fair"),
        (["judge=sim-fair, sim-verbos"], "judge=sim-verbos is not a preset."),
        (["seed=0,abc"], "seed=abc is not legal: it must be a whole number."),
        (["trainer.steps=1.5"], "trainer.steps=1.5 is not legal: it must be a whole number."),
        (["trainer.learning_rate=fast"], "it must be a number that is finite"),
        (["sweep.report=maybe"], "sweep.report=maybe is not legal: it must be true or false."),
        (["sim-fair"], "Type judge=sim-fair."),
        (["seed"], "Type seed=VALUE."),
        (["=", "x y"], "Settings are typed KEY=VALUE"),
        (["seed=0", "judge=sim-fair"], ""),
    ],
)
def test_the_argument_that_is_wrong_is_found(typed: list[str], expected: str) -> None:
    message = causes.reason(ValueError("in their words"), typed)
    assert expected in message and bool(expected) == bool(message)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["--judge", "sim-fair"], "--judge is not an option of a sweep"),
        (["--judge=sim-fair"], "Type judge=sim-fair;"),
        (["--max-steps=3"], "Type trainer.steps=3;"),
        (["--nothing-like-it=3"], "Type KEY=VALUE;"),
        (["judge", "=", "sim-fair"], "Type judge=VALUE."),
        (["judge=sim-fair,", "sim-verbose"], "Type judge=sim-verbose."),
    ],
)
def test_words_that_are_no_settings_are_refused(typed: list[str], expected: str) -> None:
    with pytest.raises(UserError) as refused:
        causes.refuse_words(typed)
    assert expected in str(refused.value)


@pytest.mark.parametrize("typed", [["--cfg", "job"], ["-m", "seed=0"], ["~arm"], ["seed=0"]])
def test_flags_of_hydra_and_settings_are_let_through(typed: list[str]) -> None:
    causes.refuse_words(typed)


def test_their_own_words_come_with_the_cause_on_one_line_and_without_a_key() -> None:
    error = ValueError("Error merging\noverride x=sk-test-0123456789abcdefghij")
    error.__cause__ = KeyError("no such thing\n full_key: x")
    message = causes.own_words(error)
    assert "no such thing" in message and "\n" not in message and "full_key" not in message
    assert "0123456789abcdefghij" not in message


def test_a_value_is_checked_at_its_key_and_few_names_are_offered() -> None:
    for key, value in (("judge.name", 3), ("no.such", 1), ("judge.grading.options.x", []), ("", 1)):
        check_at(key, value)
    with pytest.raises(UserError, match=r"trainer\.group_size=1 is not legal"):
        check_at("trainer.group_size", 1)
    with pytest.raises(UserError, match="it must be a list"):
        check_at("shadow_judges", 3)
    names = preset_names("judge")
    assert nearest("sim-fiar", names)[0] == "sim-fair" and len(nearest("sim", names)) == NEAREST
    assert nearest("zzzzz", names) == []
    lists = [any_of(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])]
    assert lists == ["a", "a or b", "a, b or c"]
    whole, cut = (unknown_name("x", "a name", ["p", "q", "r"], most=most) for most in (3, 2))
    assert whole.endswith("Legal are p, q, r.") and cut.endswith("Legal are p, q and 1 more.")
    for group in preset_groups():
        message = no_preset(group, "no-such-name")
        assert f"conf/{group}" in message and message.count(", ") <= 2 * NEAREST


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("seed=0-4", "; for several, seed=0,1,2,3,4"),
        ("seed=2..3", "; for several, seed=2,3"),
        ("seed=0-10", "; for several, 'seed=range(0,11)'"),
        ("seed=3-3", ""),
        ("seed=4-0", ""),
    ],
)
def test_a_span_of_numbers_is_answered_by_how_several_are_typed(typed: str, advice: str) -> None:
    message = causes.reason(ValueError("refused"), [typed])
    assert message.partition("; for several")[2] == advice.partition("; for several")[2]
    assert "seed=" in message
