"""What a step's programs come to: who is asked, what is recorded, and what is told again."""

import dataclasses
import random
import time
from contextlib import contextmanager

import pytest

from experiments.sweep import cells_of
from experiments.workflow.check import check_world
from experiments.workflow.executor import ATTEMPTS
from experiments.workflow.experience import Buffer
from experiments.workflow.model import _Again
from experiments.workflow.operators import OPERATORS
from experiments.workflow.problem import problem_of
from experiments.workflow.world import HIDDEN, Programs
from judges.ask.replies import Store
from study.errors import UserError
from study.finding import stop_at_problem
from study.tasks import kind_of, oracle
from study.tasks.mixed import item_row
from study.truth.item import Item
from study.verdict import Reply
from tests.experiments.evaluation.answering import prompt_of, serving

PAID = ("attempts", "cost_usd")
"""Of a call's row: what the store spares."""
SAME_MODEL = ["judge=smollm2-135m", "executor=smollm2-135m", "task=mixed-mini"]


def config_of(*settings):
    """The config of the first cell of the small study with these settings."""
    return cells_of(["experiment=workflow-quickstart", "tracking=none", *settings])[0].config


@pytest.fixture(scope="module")
def config():
    return config_of()


@pytest.fixture(scope="module")
def rows(config):
    every = kind_of(config.task).rows(config.task, "train")
    return {domain: next(r for r in every if r.domain == domain) for domain in HIDDEN}


@contextmanager
def world_of(config, store=None, **treatment):
    """The world of a config, with another treatment of its programs."""
    config = dataclasses.replace(config, workflow=dataclasses.replace(config.workflow, **treatment))
    with Programs(config, store, oracle(config.task)) as world:
        yield world


@pytest.fixture(scope="module")
def world(config):
    with world_of(config) as world:
        yield world


@contextmanager
def asked(config, reply, **treatment):
    """A world whose executor is a real endpoint that answers ``reply(body)``, and its requests."""
    with serving(reply) as (url, seen):
        endpoint = dataclasses.replace(
            config.executor.endpoint, url=url, model="m", dialect="openai", backoff_s=0.0
        )
        executor = dataclasses.replace(config.executor, simulated=None, endpoint=endpoint)
        with world_of(dataclasses.replace(config, executor=executor), **treatment) as world:
            yield world, seen


def without(paid, executed):
    """Rows of calls without what a store spares."""
    return [
        [{name: value for name, value in call.items() if name not in paid} for call in each.calls]
        for each in executed
    ]


def test_only_a_program_that_ran_has_an_answer(world, rows):
    texts = ["Programmer", "Programmer ->", "Review", "Nobody", "no program"]
    executed = world.play([rows["math"]] * 5, texts)
    outcomes = [each.columns["outcome"] for each in executed]
    assert outcomes == ["ok", "syntax_error", *2 * ["contract_error"], "syntax_error"]
    assert [each.answer is None for each in executed] == [False, True, True, True, True]
    assert [len(each.calls) for each in executed] == [1, 0, 0, 0, 0]
    assert [each.played.outcome for each in executed] == outcomes
    assert all("why" not in each.columns for each in executed)


def test_what_ran_is_counted_and_measured(world, rows):
    (each,) = world.play([rows["qa"]], ["[AnswerGenerate, AnswerGenerate] -> ScEnsemble -> Format"])
    columns = each.columns
    counts = {name: columns[f"feature/op/{name}"] for name in OPERATORS}
    called = {"AnswerGenerate": 2.0, "ScEnsemble": 1.0, "Format": 1.0}
    assert counts == dict.fromkeys(OPERATORS, 0.0) | called
    assert columns["feature/calls"] == 4.0 == len(each.calls)
    assert columns["feature/simplicity"] == pytest.approx(1 - 4 / 12)
    assert columns["feature/tokens"] == sum(c["tokens_in"] + c["tokens_out"] for c in each.calls)
    assert columns["feature/efficiency"] == pytest.approx(1 - columns["feature/tokens"] / 8000)
    assert columns["feature/format"] == 1.0
    # two of the four calls are equal, and no word of the program repeats three in a row
    assert columns["feature/repetition"] == pytest.approx((0 + 1 / 4) / 2)
    assert columns["form"] == "dsl" and columns["prompt_version"] == "problem"


def test_the_same_program_on_the_same_problem_is_run_and_paid_once(world, rows):
    before = world.calls
    asked_rows = [rows["math"], rows["math"], rows["qa"]]
    first, second, other = world.play(asked_rows, ["Custom -> Review ? Revise : done"] * 3)
    assert first.answer == second.answer and first.columns == second.columns
    assert without(PAID, [first]) == without(PAID, [second])
    paid = sum(call["attempts"] for each in (first, second, other) for call in each.calls)
    assert world.calls - before == paid
    assert all(call["attempts"] == 0 for call in second.calls)


def test_a_store_tells_a_second_run_the_same_and_asks_nobody(config, rows, tmp_path):
    three = ["(AnswerGenerate) * 3 -> ScEnsemble", "Custom -> Review -> Revise"]
    told = []
    for _ in range(2):
        with Store(tmp_path / "verdicts.db") as store, world_of(config, store) as world:
            executed = world.play([rows["math"]] * 2, three)
            told.append((without(PAID, executed), [each.columns for each in executed], world.calls))
    (calls, columns, sent), again = told[0], told[1]
    assert sent > 0 and again == (calls, columns, 0)
    draws = [call["keys"] for call in calls[0] if call["operator"] == "AnswerGenerate"]
    assert len({key for keys in draws for key in keys}) == 3  # equal questions, three draws


def test_questions_of_one_run_differ_in_their_seed_again_where_a_reply_is_empty(config, rows):
    with asked(config, lambda body: f"<answer>{body['seed']}</answer>") as (world, seen):
        world.play([rows["math"]], ["(AnswerGenerate) * 3 -> ScEnsemble"])
    makers = [body for body in seen if "ensemble" not in prompt_of(body).lower()][:3]
    assert len({prompt_of(body) for body in makers}) == 1
    assert sorted(body["seed"] for body in makers) == [0, 1, 2]
    replies = iter(["", "", "42"])
    with asked(config, lambda body: next(replies)) as (world, seen):
        (each,) = world.play([rows["math"]], ["Custom"])
    assert each.answer == "42" and len(seen) == 3 == each.calls[0]["attempts"]
    assert len({body["seed"] for body in seen}) == 3


def test_replies_of_one_call_are_named_in_the_order_of_its_questions(config, rows):
    """Five votes at once come back in any order."""

    def reply(body):
        if "<solution_letter>" in prompt_of(body):
            time.sleep(random.random() / 10)
            return "<solution_letter>A</solution_letter>"
        return "41" if body["seed"] else "42"

    told = []
    for _ in range(2):
        with asked(config, reply) as (world, _):
            (each,) = world.play([rows["math"]], ["[Custom, Custom] -> MdEnsemble"])
            told.append(each.calls[-1])
    assert told[0]["operator"] == "MdEnsemble" and len(set(told[0]["keys"])) > 1
    assert told[0]["keys"] == told[1]["keys"]


def test_a_dead_executor_masks_and_too_many_of_them_stop_the_step(config, rows):
    dead = dataclasses.replace(config.executor.endpoint, url="http://127.0.0.1:9/v1", attempts=1)
    executor = dataclasses.replace(
        config.executor, simulated=None, endpoint=dead, max_failed_frac=0.5
    )
    with world_of(dataclasses.replace(config, executor=executor)) as world:
        executed = world.play([rows["math"]] * 2, ["Custom", "no program"])
        assert [each.played.outcome for each in executed] == ["operator_error", "syntax_error"]
        assert executed[0].answer is None
        with pytest.raises(UserError, match=r"1 of the 1 programs .*executor\.max_failed_frac"):
            world.play([rows["math"]], ["Custom"])


def test_a_fallback_is_paid_only_as_a_treatment(config, rows):
    with world_of(config, fallback="credit") as world:
        executed = world.play([rows["math"], rows["code"]], ["no program", "no program"])
    assert [each.columns["outcome"] for each in executed] == ["ok", "ok"]
    assert [each.columns["feature/fallback"] for each in executed] == [1.0, 1.0]
    assert executed[0].calls[0]["operator"] == "AnswerGenerate"
    assert executed[1].calls[0]["operator"] == "CustomCodeGenerate"


@pytest.mark.parametrize(("seed", "first"), [({}, 0), ({"seed": None}, 0), ({"seed": 5}, 5)])
def test_an_empty_reply_is_drawn_again_with_another_seed_each_time(seed, first):
    """A request without a seed counts from 0."""
    again = _Again({"model": "m", **seed})
    changes = [again(Reply(" \n")) for _ in range(ATTEMPTS)]
    seeds = [first + 1_000_003 * number for number in range(1, ATTEMPTS)]
    named = [f"again {number}" for number in range(1, ATTEMPTS)]
    assert [(body["seed"], name) for body, name in changes[:-1]] == [
        *zip(seeds, named, strict=True)
    ]
    assert changes[-1] is None and _Again({"model": "m"})(Reply("4")) is None


def test_what_is_mended_is_kept_and_stays_invalid(config, rows):
    def reply(body):
        return "```\nCustom\n```" if "cannot be run" in prompt_of(body) else "42"

    with asked(config, reply, repair=True) as (world, seen):
        broken, sound = world.play([rows["math"]] * 2, ["Custom ->", "Custom"])
    assert broken.columns["outcome"] == "syntax_error" and broken.answer is None
    assert broken.columns["repair_outcome"] == "ok" and broken.columns["repair_answer"] == "42"
    assert broken.columns["feature/repaired"] == 1.0
    # the question for the mended program, and what that asked
    assert [call["model_calls"] for call in broken.calls] == [1, 1]
    assert "repair" not in sound.columns
    assert "Custom ->" in prompt_of(next(body for body in seen if "cannot" in prompt_of(body)))


def test_hidden_tests_are_shown_to_programs_only_as_a_treatment():
    tests = "assert f(1) == 2\nassert f(41) == 42"
    problem = ("Write f.\nassert f(1) == 2", "Write f.")
    place = ("mbpp:test:0", "mbpp", "code", "test", "mbpp:f")
    item = Item(*place, *problem, entry_point="f", tests=tests)
    row = item_row(item, "test")
    assert problem_of(row).public_tests == ("assert f(1) == 2",)
    assert problem_of(row, "hidden").public_tests == (item.tests,)
    prompt = 'def f(x):\n    """\n    >>> f(1)\n    2\n    """'
    humaneval = dataclasses.replace(item, code_prompt=prompt)
    assert problem_of(item_row(humaneval, "test")).public_tests == ("assert (f(1)) == (2)",)


def test_a_policy_is_shown_the_problem_or_as_a_treatment_none(config, rows):
    row = rows["math"]
    layered = {"prompt": "layered", "form": "python"}
    with world_of(config, **layered) as world:
        messages, version = world.prompt(row)
        text = "\n".join(turn["content"] for turn in messages)
        assert text.count(row.prompt_text()) == 1 and len(version) == 12
        assert world.prompt(rows["qa"])[1] != version  # other operators, other words
    with world_of(config, **layered, instructions=True) as world:
        assert world.prompt(row)[1] == f"{version}+layer2-1"
    for settings in ({}, layered):
        with world_of(config, **settings, shows_problem=False) as world:
            assert world.prompts
            text = "\n".join(turn["content"] for turn in world.prompt_for(row))
            assert row.prompt_text() not in text and HIDDEN["math"] in text


def recorded(row, program, truth, reward):
    told = {"prompt_id": row.prompt_id, "outcome": "ok", "feature/fallback": 0.0}
    scores = {"truth": truth, "judge_score": 1.0, "reward": reward}
    return told | scores | {"completion": program}


@pytest.mark.parametrize(("verified", "kept"), [(True, 1), (False, 2)])
def test_the_buffer_takes_what_the_rule_or_as_a_treatment_the_judge_calls_right(
    config, rows, verified, kept
):
    buffer = dataclasses.replace(config.workflow.buffer, shots=2, verified=verified)
    step = [
        recorded(rows["math"], "Programmer", 1.0, 1.0),
        recorded(rows["qa"], "Custom", 0.0, 0.9),
    ]
    with world_of(config, buffer=buffer) as world:
        assert world.buffer == Buffer(verified=verified)
        world.learn(step)
        assert len(world.buffer.entries) == kept


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["executor=none"], "needs an executor"),
        (["reward=judge"], "needs a reward of programs"),
        (["world=direct"], "Add world=workflow"),
        (["task=mixed-mini"], "knows the problems of task=workflow-mini only"),
        (["judge.grading.name=pairwise"], "compares the answers of a group"),
        (["reward.rules=run"], "reward.rules=run"),
        (["workflow.prompt=layered", "workflow.cap=20"], "cap=20 is .* tokens too few"),
        (SAME_MODEL, "allow_same_model=true"),
    ],
)
def test_what_cannot_work_is_refused_in_one_paragraph(settings, told):
    config = config_of(*settings)
    rows = kind_of(config.task).rows(config.task, "train")
    with pytest.raises(UserError, match=told) as error:
        stop_at_problem(check_world(config, rows))
    assert "\n" not in str(error.value)


def test_one_model_may_judge_itself_where_that_is_said():
    config = config_of(*SAME_MODEL, "allow_same_model=true")
    stop_at_problem(check_world(config, kind_of(config.task).rows(config.task, "train")))
