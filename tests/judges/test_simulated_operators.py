"""The simulated executor: what it reads in a prompt, how often it is right, and its protocol."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient, Response
from hypothesis import given
from hypothesis import strategies as st

from judges.simulated.operators import PROMPTS, Operators, bare, operators_app, solutions
from study.config.schema import Task, freeze
from study.config.simulated_executor import Operating, SimulatedExecutor
from study.errors import UserError
from study.features import features
from study.rows import Row
from study.tasks import oracle, workflow_mini
from study.tasks.kind import grading

TASK = Task(name="workflow-mini", eval_rows=120)
ROWS = {row.dataset: row for row in workflow_mini.TASK.rows(TASK, "eval")}
BOTH = {domain: [0.7, 0.2] for domain in ("math", "code", "qa")}
SETTINGS = SimulatedExecutor(
    correlation=0.5,
    favourite=0.6,
    operators={
        "Custom": Operating(right=BOTH, words=30, bullets=2, sure=1),
        "Programmer": Operating(right=BOTH),
        "Review": Operating(detection=BOTH, false_alarm={"math": [0.1, 0.3]}),
        "Revise": Operating(repair=BOTH, keep={"math": [0.9, 0.9]}, words=5),
        "ScEnsemble": Operating(choice=BOTH),
    },
)


def prompt(operator: str, row: Row, *shown: str) -> str:
    """About what the operator asks; its own prompt is asserted against the phrases elsewhere."""
    marks, problem = PROMPTS[operator], row.prompt_text()
    if marks["role"] == "chooses":
        listed = "\n\n".join(f"{'ABCDE'[n]}:\n{text}" for n, text in enumerate(shown))
        return f"{marks['phrase']}\n\nProblem:\n{problem}\n\n{listed}{marks['after']}"
    solution = f"{marks['before']}{shown[0]}{marks['after']}" if shown else ""
    return f"{marks['phrase']}\n\nProblem:\n{problem}{solution}"


class Client:
    """Posts to an application in this process."""

    def __init__(self) -> None:
        self.transport = ASGITransport(operators_app(SETTINGS, "sim", oracle(TASK)))

    def post(self, body: dict[str, Any]) -> Response:
        async def ask() -> Response:
            async with AsyncClient(transport=self.transport, base_url="http://sim") as client:
                raw = json.dumps(body).encode()  # ASCII, as clients send it
                return await client.post("/v1/chat/completions", content=raw)

        return asyncio.run(ask())


def reply_text(settings: SimulatedExecutor, text: str, right: list[bool], seed: int) -> str:
    """One reply, drawn by ``seed``."""
    world = Operators(settings, workflow_mini.TASK.lookup(TASK))
    return world.reply(world.read(text, str(seed).encode()), right).text


def near(share: float, wanted: float, n: int) -> bool:
    """Whether a share of n draws is no surprise, at one in ten thousand."""
    sd = (wanted * (1 - wanted) / n) ** 0.5
    return abs(share - wanted) <= NormalDist().inv_cdf(1 - 5e-5) * sd


@pytest.mark.parametrize("dataset", workflow_mini.DOMAINS)
def test_a_maker_is_right_as_often_as_the_table_says(dataset):
    row, n = ROWS[dataset], 1500
    item = row.spec["item"]
    wanted = 0.7 if dataset.endswith("easy") else 0.2
    texts = Counter(
        bare(item, reply_text(replace(SETTINGS, seed=seed), prompt("Custom", row), [], seed))
        for seed in range(n)
    )
    assert set(texts) == {item.meta["right"], *item.meta["wrong"]}
    assert near(texts[item.meta["right"]] / n, wanted, n)
    wrong = n - texts[item.meta["right"]]
    assert near(texts[item.meta["wrong"][0]] / wrong, 0.6, wrong)


def test_errors_on_one_problem_go_together():
    """With a shared draw used at rate rho, two calls agree in being right with a correlation of
    rho squared."""
    row, n = ROWS["sums-easy"], 3000
    item, pairs = row.spec["item"], []
    for seed in range(n):
        settings = replace(SETTINGS, seed=seed, correlation=0.8)
        text = prompt("Custom", row)
        pairs.append(
            [
                bare(item, reply_text(settings, text, [], call)) == item.meta["right"]
                for call in (1, 2)
            ]
        )
    assert near(sum(all(pair) for pair in pairs) / n, 0.7**2 + 0.64 * 0.7 * 0.3, n)


def test_review_and_revise_have_their_rates():
    row, n = ROWS["sums-hard"], 1500
    item = row.spec["item"]
    right, wrong = f"It is so.\nAnswer: {item.meta['right']}", item.meta["wrong"][1]

    def share(operator: str, solution: str, is_right: bool, wanted: str) -> float:
        texts = [
            reply_text(
                replace(SETTINGS, seed=seed), prompt(operator, row, solution), [is_right], seed
            )
            for seed in range(n)
        ]
        return sum(wanted in text for text in texts) / n

    assert near(share("Review", right, True, "False"), 0.3, n)
    assert near(share("Review", wrong, False, "False"), 0.2, n)
    answer = f"Answer: {item.meta['right']}"
    assert near(share("Revise", right, True, answer), 0.9, n)
    assert near(share("Revise", wrong, False, answer), 0.2, n)
    assert near(share("Revise", wrong, False, f"Answer: {wrong}"), 0.8, n)


def test_an_ensemble_takes_a_right_solution_at_its_rate():
    row, n = ROWS["facts-easy"], 1500
    shown = ["Answer: Rome", "x\n\nAnswer: Oslo", "Lima"]
    text = prompt("ScEnsemble", row, *shown)
    assert solutions("ScEnsemble", text) == shown
    places = Counter(
        reply_text(replace(SETTINGS, seed=seed), text, [False, True, False], seed)
        for seed in range(n)
    )
    letters = {letter: places[f"<solution_letter>{letter}</solution_letter>"] for letter in "ABC"}
    assert sum(letters.values()) == n
    assert near(letters["B"] / n, 0.7, n)
    assert near(letters["A"] / (n - letters["B"]), 0.5, n - letters["B"])


def test_the_style_is_seen_and_the_rules_read_through_it():
    rows = [row for name, row in ROWS.items() for _ in range(2)]
    texts = [
        reply_text(replace(SETTINGS, seed=seed), prompt("Custom", row), [], seed)
        for seed, row in enumerate(rows)
    ]
    for text in texts:
        counts = features(text)
        assert counts["length"] > 30 and counts["bullets"] == 2 and counts["confidence"] == 1
    rights = [
        bare(row.spec["item"], text) == row.spec["item"].meta["right"]
        for row, text in zip(rows, texts, strict=True)
    ]
    with grading():
        truths = oracle(TASK).truths(rows, texts)
    assert [truth.score == 1 for truth in truths] == rights
    assert True in rights and False in rights


def test_the_same_request_has_the_same_reply_over_the_wire():
    turn = {"role": "user", "content": ""}
    body: dict[str, Any] = {"model": "sim", "messages": [turn], "seed": 3}
    clients = [Client(), Client()]
    right = ROWS["sums-easy"].spec["item"].meta["right"]
    texts = [prompt("Custom", ROWS["sums-easy"]), prompt("Review", ROWS["sums-easy"], right)]
    for text in texts:
        turn["content"] = text
        replies = [client.post(body).json() for client in clients]
        assert replies[0] == replies[1] == clients[0].post(body).json()
        choice, usage = replies[0]["choices"][0], replies[0]["usage"]
        assert choice["message"]["content"] and choice["finish_reason"] == "stop"
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
    turn["content"] = texts[0]
    drawn = {
        clients[0].post({**body, "seed": seed}).json()["choices"][0]["message"]["content"]
        for seed in range(12)
    }
    assert len(drawn) > 1
    streamed = clients[0].post({**body, "stream": True}).text
    pieces = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
    text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
    assert text == clients[0].post(body).json()["choices"][0]["message"]["content"]


def test_what_it_cannot_answer_is_no_outage():
    client = Client()

    def ask(content: object, **more: object) -> tuple[int, str]:
        reply = client.post({"messages": [{"role": "user", "content": content}], **more})
        return reply.status_code, reply.text

    for text in ("", "no problem here", PROMPTS["Review"]["phrase"], "\n\n---\n\n"):
        status, said_text = ask(text)
        assert status == 200 and "which problem" in said_text
    assert ask(None)[0] == 400 and ask("x", model="other")[0] == 404 and ask("x", n=2)[0] == 400


def test_a_solution_that_is_no_unicode_is_said_again_as_what_is():
    client, row = Client(), ROWS["facts-easy"]
    for seed in range(20):
        content = prompt("Revise", row, "Answer: a\ud800b")
        body = {"messages": [{"role": "user", "content": content}], "seed": seed}
        assert client.post(body).status_code == 200


def test_long_prompts_get_empty_replies():
    row, n = ROWS["sums-easy"], 600
    settings = replace(SETTINGS, empty=0.1, empty_per_1000=0.1)
    text = prompt("Custom", row) + "\n" + "x" * 3000
    empty = sum(not reply_text(replace(settings, seed=seed), text, [], seed) for seed in range(n))
    assert near(empty / n, 0.1 + 0.1 * len(text) / 1000, n)


@given(text=st.text(st.characters()) | st.text(alphabet="ABC:\n-<>`", max_size=200))
def test_any_text_is_read_as_some_prompt(text):
    world = Operators(SETTINGS, workflow_mini.TASK.lookup(TASK))
    question = world.read(f"{text}\n{ROWS['sums-easy'].prompt_text()}\n{text}", b"")
    assert question.row is not None
    world.reply(question, [False] * len(question.answers))


def test_settings_that_no_call_can_have_are_refused():
    for operators, why in (
        ({"Customs": {}}, "Customs"),
        ({"Custom": {"right": {"maths": [0.1, 0.2]}}}, "maths"),
        ({"Custom": {"right": {"math": [0.1]}}}, "pair"),
        ({"Custom": {"right": {"math": [0.1, 1.2]}}}, "1.2"),
    ):
        with pytest.raises(UserError, match=why):
            Operators(
                freeze(SimulatedExecutor, {"operators": operators}, "x."),
                workflow_mini.TASK.lookup(TASK),
            )
