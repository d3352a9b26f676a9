"""A simulated judge on rows of several domains, and the simulated executor: settings by domain,
what a prompt says, truths of one check, and the protocol."""

import asyncio
import dataclasses
import json
import random
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient, Response
from hypothesis import given
from hypothesis import strategies as st

from judges.ask.identity import judge_id
from judges.ask.session import Session
from judges.simulated.app import simulated_app
from judges.simulated.bias import Bias, drifts, effective
from judges.simulated.operators import PROMPTS, Operators, bare, operators_app, solutions
from study.config.compose import load_judge
from study.config.identity import digest
from study.config.schema import Endpoint, Judge, Simulated, Study, Task, freeze
from study.config.simulated import DOMAINS, Domain, Domains, in_domain
from study.config.simulated_executor import Operating, SimulatedExecutor
from study.errors import UserError
from study.features import features
from study.rows import Missing, Row, Truth, make_row
from study.tasks import TASKS, oracle, workflow_mini
from study.tasks.kind import grading
from study.truth.oracle import Oracle
from study.verdict import Outcome
from tests import lazy_task
from tests.judges.test_simulated import ask, request_of
from tests.waiting import GENEROUS_S, wait_for


@pytest.fixture(autouse=True)
def lazy(monkeypatch):
    monkeypatch.setitem(TASKS, "lazy", lazy_task.TASK)
    lazy_task.ASKED.clear()


def judge(endpoint: Endpoint | None = None, **settings) -> Judge:
    return Judge(name="sim", endpoint=endpoint or Endpoint(), simulated=Simulated(**settings))


def truth_of(count: int) -> Oracle:
    """An oracle of its own, without a memory of other tests."""
    rows = {row.prompt_id: row for row in lazy_task.Sums(count)}
    return Oracle(rows.get, lazy_task.TASK.truths, waits=True)


def rates(judge: Judge, count: int) -> dict[str, tuple[float, float]]:
    """Domain -> (share of the right answers that pass, share of the wrong ones)."""
    rows = list(lazy_task.Sums(count))
    items = [(row, str(row.spec["sum"] + wrong)) for row in rows for wrong in (0, 1)]
    with Session(judge, None, truth_of(count)) as session:
        votes = session.ask_many(items)
    scores = [vote.score for (vote,) in votes]
    assert set(scores) <= {0.0, 1.0}, "a truth of one check is drawn, not averaged"
    passed: dict[tuple[str, int], list[float]] = defaultdict(list)
    for place, ((row, _), score) in enumerate(zip(items, scores, strict=True)):
        passed[row.domain, place % 2].append(score)
    shares = {key: sum(values) / len(values) for key, values in passed.items()}
    return {domain: (shares[domain, 0], shares[domain, 1]) for domain in lazy_task.DOMAINS}


def test_each_domain_has_the_rates_that_were_planted():
    domains = Domains(qa=Domain(fpr=0.7), code=Domain(tpr=0.3, fpr=0.0))
    rates_by_domain = rates(judge(tpr=0.9, fpr=0.2, domains=domains), 750)
    # binomial, 250 answers each: the standard deviation is at most .03
    wanted = {"math": (0.9, 0.2), "qa": (0.9, 0.7), "code": (0.3, 0.0)}
    for domain, pair in wanted.items():
        assert rates_by_domain[domain] == pytest.approx(pair, abs=0.1), domain


def test_a_truth_of_one_check_is_drawn_and_one_without_checks_is_not():
    bias = Bias(Simulated(tpr=0.8, fpr=0.3))
    draws = [random.Random(seed) for seed in range(4000)]
    for met, share in ((True, 0.8), (False, 0.3)):
        truth = Truth(float(met), (met,))
        values = [bias.decide("x", truth, draw, 0)[0] for draw in draws]
        assert set(values) == {0.0, 1.0}
        assert sum(values) / 4000 == pytest.approx(share, abs=4 * 0.0073)
    assert bias.decide("x", Truth(1.0), draws[0], 0)[0] == pytest.approx(0.8)


def test_the_doses_of_a_domain_are_laid_over_those_of_all():
    domains = Domains(math=Domain(doses={"length": 0.5}, noise_sd=0.0))
    settings = Simulated(doses={"length": 0.1, "emoji": 0.2}, noise_sd=0.3, domains=domains)
    math = in_domain(settings, "math")
    assert math.doses == {"length": 0.5, "emoji": 0.2} and math.noise_sd == 0.0
    for other in ("qa", "", "law", "domains", "__doc__"):
        assert in_domain(settings, other).doses == settings.doses
        assert in_domain(settings, other).noise_sd == 0.3


def test_every_number_and_the_doses_can_be_others_in_a_domain():
    plain = {
        item.name
        for item in dataclasses.fields(Simulated)
        if item.name == "doses" or item.type in ("float", "int")
    }
    assert {item.name for item in dataclasses.fields(Domain)} == plain
    changed = dict.fromkeys(plain - {"doses", "seed"}, 0.25) | {"seed": 7, "doses": {"bold": 0.1}}
    there = in_domain(Simulated(domains=freeze(Domains, {"code": changed})), "code")
    assert {name: getattr(there, name) for name in plain} == changed
    for name in plain:
        with pytest.raises(UserError, match=f"domains.qa.{name}"):
            freeze(Simulated, {"domains": {"qa": {name: "much"}}}, "judge.simulated.")


def test_a_domain_drifts_and_without_one_a_judge_is_who_it_was():
    """The hashes are those of the version before there were domains."""
    plain = judge()
    assert judge_id(dataclasses.replace(plain, name="x")) == "a69d1ad0abec5cd2"
    assert "domains" not in effective(plain.simulated)
    assert digest(dataclasses.asdict(Study(judge=Judge(simulated=Simulated())))) == "d4f2ba3136"
    assert not drifts(Simulated())
    assert drifts(Simulated(domains=Domains(qa=Domain(drift_per_1000=1.0))))
    assert drifts(Simulated(drift_per_1000=1.0, domains=Domains(math=Domain(drift_per_1000=0.0))))


def test_each_setting_of_a_domain_makes_another_judge():
    ids = {judge_id(judge())}
    for domain in DOMAINS:
        for item in dataclasses.fields(Domain):
            value = {"length": 0.0} if item.name == "doses" else 0
            ids.add(judge_id(judge(domains=Domains(**{domain: Domain(**{item.name: value})}))))
    assert len(ids) == 1 + len(DOMAINS) * len(dataclasses.fields(Domain))


@pytest.mark.parametrize(
    ("domains", "why"),
    [
        (Domains(qa=Domain(fpr=1.5)), "judge.simulated.domains.qa.fpr=1.5 is not legal"),
        (Domains(math=Domain(noise_sd=-1.0)), "judge.simulated.domains.math.noise_sd"),
        (Domains(code=Domain(doses={"size": 1.0})), "key of judge.simulated.domains.code.doses"),
        (Domains(code=Domain(doses={"keyword": 1.0})), "domains.code.doses.keyword pays"),
    ],
)
def test_what_is_not_legal_in_a_domain_is_refused(domains, why):
    with pytest.raises(UserError, match=why):
        simulated_app(judge(domains=domains), truth_of(9))


def test_typed_on_the_command_line():
    typed = load_judge(
        "sim-fair",
        "judge.simulated.domains.qa.fpr=0.7",
        "+judge.simulated.domains.code.doses.length=0.2",
    ).simulated
    assert typed.domains == Domains(qa=Domain(fpr=0.7), code=Domain(doses={"length": 0.2}))
    for wrong, why in (
        ("judge.simulated.domains.law.fpr=0.7", "has no law; it has math, qa, code"),
        ("+judge.simulated.domains.qa.rate=0.7", "has no rate; it has doses, noise_sd"),
        ("judge.simulated.domains.qa.fpr=2", "a number 0 or more and at most 1"),
    ):
        with pytest.raises(UserError, match=why):
            load_judge("sim-fair", wrong)


def test_no_rule_and_a_truth_that_could_not_be_had_are_failures():
    rows = list(lazy_task.Sums(3))
    with Session(judge(), None, truth_of(3)) as session:
        (right,), (lost,) = session.ask_many([(rows[1], "2"), (rows[1], "lost")])
    assert (right.outcome, right.score) == (Outcome.scored, 1.0)
    assert (lost.outcome, lost.score, lost.attempts) == (Outcome.transport, None, 1)
    assert lazy_task.LOST in lost.reason
    row = make_row(({"role": "user", "content": "Name a color."},))
    no_truths = Oracle({row.prompt_id: row}.get, lambda rows, answers: [None] * len(rows))
    status, _, reply = ask(simulated_app(judge(), no_truths), request_of(judge(), "red"))
    assert status == 404 and reply["error"]["code"] == "unknown_prompt"


def test_truths_that_take_long_are_asked_for_in_batches_beside_the_loop():
    """While a batch is under way the loop goes on, and the questions of that time are the next."""
    rows = list(lazy_task.Sums(40))
    first, go_on = threading.Event(), threading.Event()
    batches: list[int] = []

    def slow(rows, answers):
        batches.append(len(answers))
        assert threading.current_thread().name != "judge"
        first.set()
        assert go_on.wait(GENEROUS_S)
        return lazy_task.TASK.truths(rows, answers)

    by_prompt, looked_up = {row.prompt_id: row for row in rows}, set()

    def row_of(prompt):
        looked_up.add(prompt)
        return by_prompt.get(prompt)

    slow_oracle = Oracle(row_of, slow, waits=True)
    items = [(row, str(row.spec["sum"])) for row in rows]
    with (
        Session(judge(Endpoint(max_concurrency=100)), None, slow_oracle) as session,
        ThreadPoolExecutor(1) as threads,
    ):
        votes_N = threads.submit(session.ask_many, items)
        assert first.wait(GENEROUS_S)

        async def lively():
            await asyncio.sleep(0)
            return "yes"

        assert session._loop.run(lively()) == "yes"
        # all have come to ask for their truths: in one step with the look-up of the row
        wait_for(lambda: looked_up == set(by_prompt))
        session._loop.run(asyncio.sleep(0))
        go_on.set()
        votes = votes_N.result(GENEROUS_S)
    assert [vote.score for (vote,) in votes] == [1.0] * 40
    assert sum(batches) == 40 and len(batches) <= 3


def test_a_rule_that_raises_is_told_to_those_who_asked():
    row = lazy_task.Sums(1)[0]

    def broken(rows, answers):
        raise RuntimeError("no such table")

    with Session(judge(), None, Oracle({row.prompt_id: row}.get, broken, waits=True)) as session:
        ((vote,),) = session.ask_many([(row, "0")])
    assert vote.score is None and Missing("x") != vote


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


def test_odd_solutions_and_long_prompts_get_their_replies():
    client, row = Client(), ROWS["facts-easy"]
    for seed in range(20):
        content = prompt("Revise", row, "Answer: a\ud800b")
        body = {"messages": [{"role": "user", "content": content}], "seed": seed}
        assert client.post(body).status_code == 200
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
