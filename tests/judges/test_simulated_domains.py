"""A simulated judge on rows of several domains: settings by domain, and truths of one check."""

import asyncio
import dataclasses
import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from judges.ask.identity import judge_id
from judges.ask.session import Session
from judges.simulated.app import simulated_app
from judges.simulated.bias import Bias, drifts, effective
from study.config.compose import load_judge
from study.config.identity import digest
from study.config.schema import Endpoint, Judge, Simulated, Study, freeze
from study.config.simulated import DOMAINS, Domain, Domains, in_domain
from study.errors import UserError
from study.rows import Missing, Truth, make_row
from study.tasks import TASKS
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


def test_a_judge_without_domains_is_who_it_was():
    """The hashes are those of the version before there were domains."""
    plain = judge()
    assert judge_id(dataclasses.replace(plain, name="x")) == "a69d1ad0abec5cd2"
    assert "domains" not in effective(plain.simulated)
    assert digest(dataclasses.asdict(Study(judge=Judge(simulated=Simulated())))) == "d4f2ba3136"


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


def test_a_drift_in_one_domain_is_a_drift():
    assert not drifts(Simulated())
    assert drifts(Simulated(domains=Domains(qa=Domain(drift_per_1000=1.0))))
    assert drifts(Simulated(drift_per_1000=1.0, domains=Domains(math=Domain(drift_per_1000=0.0))))


def test_a_truth_that_could_not_be_had_is_a_failure_of_the_endpoint():
    rows = list(lazy_task.Sums(3))
    with Session(judge(), None, truth_of(3)) as session:
        (right,), (lost,) = session.ask_many([(rows[1], "2"), (rows[1], "lost")])
    assert (right.outcome, right.score) == (Outcome.scored, 1.0)
    assert (lost.outcome, lost.score, lost.attempts) == (Outcome.transport, None, 1)
    assert lazy_task.LOST in lost.reason


def test_no_rule_is_no_truth_to_simulate():
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
