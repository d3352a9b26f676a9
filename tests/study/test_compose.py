"""Settings as they are typed: keys of free tables need no plus before them."""

import pytest

from study.config.compose import load_judge, opened
from study.errors import UserError


@pytest.mark.parametrize(
    "free",
    [
        "judge.grading.options.reference=shown", "judge.grading.options.prompts.qa=qa",
        "reward.domains.qa=judge,rule", "reward.weights.rule=0.5",
        "judge.simulated.domains.qa.doses.length=0.2",
    ],
)  # fmt: skip
def test_a_key_of_a_free_table_is_added_or_overridden(free):
    assert opened([free, f"+{free}", f"~{free}"]) == [f"++{free}", f"+{free}", f"~{free}"]


@pytest.mark.parametrize(
    "text",
    [
        "judge=sim-fair", "reward.domains={qa:judge}", "trainer.steps=3",
        "judge.simulated.domains.qa.fpr=0.7", "trainer.stepps=3", "shadow=[sim-fair]",
        "hydra/launcher=joblib", "--help", "",
    ],
)  # fmt: skip
def test_all_else_is_left_as_it_is(text):
    assert opened([text]) == [text]


def test_a_judge_takes_options_that_its_preset_does_not_have():
    judge = load_judge(
        "sim-fair",
        "judge.grading.name=binary",
        "judge.grading.options.reference=hidden",
        "judge.grading.options.prompts.qa=qa",
    )
    assert judge.grading.options == {"reference": "hidden", "prompts": {"qa": "qa"}}
    judge = load_judge("smollm2-135m", "judge.grading.options.prompt=strict")
    assert judge.grading.options == {"prompt": "strict"}
    with pytest.raises(UserError, match="has no optoins"):
        load_judge("sim-fair", "judge.grading.optoins.reference=hidden")
