"""Judges are asked while others of a step are still written, and all that is recorded is the same
as when they are asked after the last."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from experiments.trainer import generate, rollouts
from experiments.trainer.grpo import RecordingTrainer
from judges.ask.budget import Budget, BudgetSpent
from judges.ask.replies import Store
from judges.ask.session import Session
from judges.endpoint.failures import EndpointRefused
from judges.fault_injection.server import choice, completion, whole
from judges.faults import FaultServer
from study.cell.folder import CellFolder
from study.cell.parts import Part, parts, read_part
from study.cell.records import MISSING
from study.config.schema import Cost, Judge
from study.rewards.failure import TooManyMissing
from study.tasks import oracle
from tests.invariants.test_grpo import TASK, run, study
from tests.judges.sessions import held
from tests.judges.test_ahead import GRADINGS, noisy
from tests.waiting import wait_for

ENDS = tuple(range(2, 90))
"""Many tokens end a completion, so that rollouts end early and at different places."""
AHEAD = ("rubric_item", "pairwise", "drift")
"""What is asked by the answer, by the group, and in order: each way to ask ahead. What the others
ask ahead is seen without a trainer in `tests.judges.test_ahead`."""
VARIES = ("latency_s", "from_cache", "cost_usd")
"""What differs between two askings of the same: of equal answers, either may be the first."""

Ended = Callable[[dict[int, list[int]]], None]


@pytest.fixture(autouse=True)
def on_the_way(monkeypatch) -> Iterator[list[Callable[[], None]]]:
    """What is done as soon as the first rollouts of a step have ended and were submitted."""
    then: list[Callable[[], None]] = []

    def generated(
        model: Any, prompts: Any, owner: Any, sampling: Any, uniform: Any, ended: Ended, beat: Any
    ):
        positions = 0

        def watched(ids_of: dict[int, list[int]]) -> None:
            nonlocal positions
            positions += 1
            ended(ids_of)
            for act in then:
                act()

        ends_early = dataclasses.replace(sampling, eos_token_ids=ENDS)
        completions = generate.generate(model, prompts, owner, ends_early, uniform, watched, beat)
        assert positions > 1
        return completions

    monkeypatch.setattr(rollouts, "generate", generated)
    yield then


@pytest.fixture
def afterwards(monkeypatch) -> Callable[[], None]:
    """Called, it leaves all questions to the reward function."""
    return lambda: monkeypatch.setattr(RecordingTrainer, "_ended", lambda self, ids_of: None)


def train(folder: Path, cache: Path, *judges: Judge, cost: Cost | None = None) -> Any:
    """A run of two steps under an acting judge and shadow judges; all that it recorded."""
    config = dataclasses.replace(study(), judge=judges[0])
    folder.mkdir()
    with ExitStack() as stack:
        store = stack.enter_context(Store(folder / "verdicts.db"))
        sessions = [stack.enter_context(Session(judge, store, oracle(TASK))) for judge in judges]
        budget = Budget(cost, judges) if cost else None
        error = None
        outcome = None
        try:
            outcome = run(config, folder, cache, sessions[0], shadows=sessions[1:], budget=budget)
        except (BudgetSpent, TooManyMissing, EndpointRefused) as stop:
            error = stop
        calls = [session.calls for session in sessions]
        assert not any(session._asker._in_flight for session in sessions)
    verdicts = [row for part in CellFolder(folder).parts("verdicts") for row in rows_of(part)]
    rollouts = [row for part in CellFolder(folder).parts("rollouts") for row in rows_of(part)]
    metrics = [] if outcome is None else [line["metrics"] for line in outcome.lines]
    return error, calls, rollouts, verdicts, metrics


def rows_of(part: Part | Path) -> list[dict[str, Any]]:
    """The rows of a table without what varies."""
    rows = read_part(part).to_pylist()
    return [{name: value for name, value in row.items() if name not in VARIES} for row in rows]


def counted(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics that are no times."""
    timed = ("system/", "time/", "judge/latency_s")
    return {name: value for name, value in metrics.items() if not name.startswith(timed)}


@pytest.mark.parametrize(
    "grading",
    [
        pytest.param(name, marks=() if name in AHEAD else pytest.mark.long)
        for name in [*GRADINGS, "drift"]
    ],
)
def test_records_are_those_of_asking_afterwards(grading, tmp_path, cache, afterwards, monkeypatch):
    submissions = []
    begin = Session._begin

    def counting(self: Session, groups: Any, draws: Any) -> Any:
        submissions.append((self.judge.name, sum(map(len, groups))))
        return begin(self, groups, draws)

    monkeypatch.setattr(Session, "_begin", counting)
    drift = {"drift_per_1000": 20.0} if grading == "drift" else {}
    acting = noisy("likert" if drift else grading, **drift)
    shadow = dataclasses.replace(noisy("likert", doses={"length": 0.3}), name="shadow")
    ours = train(tmp_path / "ahead", cache, acting, shadow)
    ahead = {
        name: [size for who, size in submissions if who == name] for name in ("noisy", "shadow")
    }
    afterwards()
    theirs = train(tmp_path / "afterwards", cache, acting, shadow)
    assert ours[:4] == theirs[:4] and ours[0] is None
    assert [*map(counted, ours[4])] == [*map(counted, theirs[4])]
    assert len({row["reward"] for row in ours[2]}) > 2
    assert sum(ahead["shadow"]) == sum(ahead["noisy"]) == 16 and len(ahead["shadow"]) > 2
    if drift:
        assert ahead["noisy"] == [8, 8]


def test_a_spent_budget_asks_nothing(tmp_path, cache, afterwards) -> None:
    judge, cost = noisy("likert"), Cost(max_calls=20)
    error, calls, rollouts, verdicts, _ = train(tmp_path / "a", cache, judge, cost=cost)
    assert isinstance(error, BudgetSpent)
    assert {row["step"] for row in rollouts} == {1}
    afterwards()
    again = train(tmp_path / "b", cache, judge, cost=cost)
    assert (str(error), calls, rollouts, verdicts) == (str(again[0]), *again[1:4])


def test_a_judge_that_refuses_its_key_stops_the_run_as_it_does_afterwards(
    tmp_path, cache, afterwards
) -> None:
    with FaultServer() as server:
        judge = held(url=server.url("key_401"))
        ours = train(tmp_path / "a", cache, judge)
        afterwards()
        theirs = train(tmp_path / "b", cache, judge)
    assert isinstance(ours[0], EndpointRefused) and str(ours[0]) == str(theirs[0])
    assert ours[2:] == theirs[2:] == ([], [], [])


def test_a_server_that_dies_on_the_way(tmp_path, cache, on_the_way) -> None:
    """What it has answered counts, the rest is missing by name, and the policy keeps the step."""

    async def says_70(body: bytes) -> bytes:
        return whole(completion(choice("[[70]]")))

    with FaultServer(says_70) as server:

        def dies() -> None:
            with Store(tmp_path / "a" / "verdicts.db") as store:
                wait_for(store.count)
            server.__exit__()

        on_the_way.append(dies)
        judge = dataclasses.replace(held(url=server.url("slow_0")), max_unscored_frac=0.01)
        error, _, rollouts, verdicts, _ = train(tmp_path / "a", cache, judge)
    assert isinstance(error, TooManyMissing) and rollouts == verdicts == []
    (kept,) = (tmp_path / "a" / MISSING / "verdicts").glob("*.parquet")
    outcomes = [row["outcome"] for row in rows_of(kept)]
    assert len(outcomes) == 8
    assert {"scored", "endpoint_down"} <= set(outcomes) <= {"scored", "endpoint_down", "transport"}


def test_what_shadow_judges_said_ahead_is_kept_when_the_step_stops(tmp_path, cache) -> None:
    """It has been paid for, so it counts against the budget of the next attempt."""
    with FaultServer() as server:
        fails = dataclasses.replace(held(url=server.url("unparsed")), max_unscored_frac=0.01)
        shadow = dataclasses.replace(noisy("likert"), name="b")
        error, *_ = train(tmp_path / "a", cache, fails, shadow)
    assert isinstance(error, TooManyMissing)
    (kept,) = (tmp_path / "a" / MISSING / "verdicts").glob("*.parquet")
    roles = [row["role"] for row in rows_of(kept)]
    assert roles == ["acting"] * 8 + ["shadow"] * 16  # of two votes


def test_a_step_that_ends_on_the_way_leaves_nothing_behind(tmp_path, cache, on_the_way) -> None:
    judge = noisy("likert")
    expected = train(tmp_path / "whole", cache, judge)
    config = dataclasses.replace(study(), judge=judge)
    with Store(tmp_path / "verdicts.db") as store, Session(judge, store, oracle(TASK)) as session:
        for error in (RuntimeError("on the way"), KeyboardInterrupt("on the way")):

            def stop(error: BaseException = error) -> None:
                raise error

            on_the_way[:] = [stop]
            with pytest.raises(type(error), match="on the way"):
                run(config, tmp_path / type(error).__name__, cache, session)
            assert session._asker._in_flight == {} and session._submissions == set()
        on_the_way.clear()
        before = session.calls
        outcome = run(config, tmp_path / "at last", cache, session)
        asked = session.calls - before
    assert outcome.lines[0]["metrics"]["reward/mean"] == expected[4][0]["reward/mean"]
    assert sum(line["metrics"]["cost/calls"] for line in outcome.lines) == asked
    recorded = [row for part in parts(tmp_path / "at last" / "rollouts") for row in rows_of(part)]
    assert recorded == expected[2]
