import pytest

from experiments.plan.plan import design
from experiments.plan.preflight import check_arms, check_study
from study.cell.cells import make_cell
from study.cell.study_file import base, write_study
from study.errors import UserError
from study.finding import stop_at_problem


def cell(judge="a", seed=0, rate=0.1, votes=1):
    return make_cell(
        {
            "study": "s",
            "seed": seed,
            "judge": {"name": judge, "sampling": {"votes": votes}},
            "task": {"name": "instruct-mini", "train_rows": 64},
            "trainer": {"steps": 5, "learning_rate": rate},
        }
    )


def test_arms_differ_in_declared_factors_and_others_are_named():
    stop_at_problem(check_arms([cell("a", 0), cell("b", 1, votes=2)], ["judge", "seed"]))
    with pytest.raises(UserError, match="seed"):
        stop_at_problem(check_arms([cell(seed=0), cell(seed=1)], ["judge", "see"]))
    with pytest.raises(UserError) as caught:
        stop_at_problem(check_arms([cell(rate=0.1), cell(rate=0.2)], ["judge", "seed"]))
    message = str(caught.value)
    assert "trainer.learning_rate = 0.1 | 0.2" in message
    assert "factors=[judge,seed,trainer.learning_rate]" in message
    assert "\n" not in message


def test_a_study_keeps_its_factors_and_its_base(tmp_path):
    factors = ["judge", "seed"]
    write_study(tmp_path, {"factors": factors, "base": base(cell(), factors)})
    stop_at_problem(check_study(tmp_path, [cell("z", 7)], ["seed", "judge"]))
    with pytest.raises(UserError, match=r"trainer\.learning_rate = 0\.1 \| 0\.2"):
        stop_at_problem(check_study(tmp_path, [cell(rate=0.2)], factors))
    with pytest.raises(UserError, match="declared the factors judge, seed"):
        stop_at_problem(check_study(tmp_path, [cell()], ["judge"]))


def test_a_design_counts_arms_and_the_seeds_of_the_poorest():
    assert design([cell("a", 0), cell("a", 1), cell("a", 2), cell("b", 0), cell("b", 1)]) == (2, 2)
    assert design([cell("a", 0)]) == (1, 1)
