"""A run that stops for want of verdicts says why, and keeps what it had paid for."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from experiments.trainer.scorer import Scorer
from judges.ask.budget import spent_before
from study.cell.folder import CellFolder
from study.cell.records import MISSING, Recorder
from study.config.schema import Endpoint, Judge, Simulated, Study, Trainer
from study.errors import UserError
from study.rewards.failure import REASON, TooManyMissing, remedy, too_many_missing
from study.rows import Truth, make_row
from study.truth.oracle import Oracle
from study.verdict import Outcome, Verdict

KEY = "sk-test-0123456789abcdef0123456789abcdef"
STATE = SimpleNamespace(global_step=2)
ROW = make_row(({"role": "user", "content": "Write."},))


def verdict(outcome: Outcome, reason: str = "", **more) -> Verdict:
    score = 0.5 if outcome is Outcome.scored else None
    return Verdict(
        judge_id="i", judge="j", grading="g", grading_version="1", prompt_sha="0" * 16,
        outcome=outcome, score=score, reason=reason, **more,
    )  # fmt: skip


def test_outcomes_are_counted_and_each_has_something_to_type():
    votes = [
        *[verdict(Outcome.rate_limited, "429 slow down")] * 3,
        *[verdict(Outcome.truncated, "cut at 8 tokens")] * 2,
        verdict(Outcome.scored),
    ]
    judge = Judge(name="mine", endpoint=Endpoint(max_concurrency=32))
    said = str(too_many_missing("5 of 6 verdicts are missing", votes, judge))
    assert "Of 6 verdicts of judge=mine: 3 rate_limited, 2 truncated" in said
    assert "The commonest reason, 3 times: 429 slow down." in said
    assert "judge.endpoint.max_concurrency=16" in said
    assert f"judge.sampling.max_tokens={2 * judge.sampling.max_tokens}" in said
    assert "\n" not in said and "timeout" not in said


def test_every_outcome_without_a_score_has_a_remedy():
    for outcome in Outcome:
        if outcome is not Outcome.scored:
            said = str(too_many_missing("all missing", [verdict(outcome)], Judge(name="mine")))
            assert f"Against {outcome}: {remedy(outcome, Judge(name='mine'))}" in said


def test_a_reason_is_short_and_holds_no_key(monkeypatch):
    monkeypatch.setenv("MY_KEY", "correct-horse-battery")
    reason = f"no\n\x00 {KEY} {'x ' * (REASON // 2 - 30)} correct-horse-battery " + "y" * 10_000
    judge = Judge(name="mine", endpoint=Endpoint(api_key_env="MY_KEY"))
    said = str(too_many_missing("all missing", [verdict(Outcome.endpoint_down, reason)], judge))
    assert KEY not in said and "correct-horse" not in said and len(said) < 1500


class Session:
    """Stands where a session stands: the first answer is scored and the others are refused."""

    calls, hits = 0, 0
    judge = Judge(name="mine")

    @contextmanager
    def batch(self, group_size):
        yield self

    def votes(self, items):
        self.calls += len(items)
        paid = {"attempts": 1, "finish_reason": "stop", "cost_usd": 0.25}
        outcomes = [Outcome.scored] + [Outcome.refused] * (len(items) - 1)
        return [[verdict(one, "content filter", **paid)] for one in outcomes]

    def stop_if_refused(self):
        """It was not: single answers were."""


def test_the_truth_of_what_was_cut_off_is_not_that_of_an_empty_answer():
    def empty(rows, answers):
        return [Truth(float(answer == "")) for answer in answers]

    config = Study(judge=Session.judge, trainer=Trainer(group_size=2))
    texts = [[{"content": text}] for text in ("<think>a</think>", "<think>b")]
    for simulated in (None, Simulated()):
        session = Session()
        session.judge = replace(Session.judge, on_failure="unscored", max_unscored_frac=1.0)
        session.judge = replace(session.judge, simulated=simulated)
        scorer = Scorer(config, Oracle({ROW.prompt_id: ROW}.get, empty), session)
        scorer([None] * 2, texts, [[1]] * 2, [ROW.prompt_id] * 2, STATE)
        assert [rollout["truth"] for rollout in scorer.pending.rollouts] == [1.0, 0.0]
        assert [rollout["answer"] for rollout in scorer.pending.rollouts] == ["", None]


def test_what_a_simulated_judge_is_shown_is_known_before_it_is_asked():
    asked = Oracle({ROW.prompt_id: ROW}.get, lambda rows, answers: [Truth(0.0)] * len(rows))
    session = Session()
    session.judge = replace(Session.judge, simulated=Simulated())
    scorer = Scorer(Study(judge=session.judge, trainer=Trainer(group_size=1)), asked, session)
    scorer([None], [[{"content": "<think>b"}]], [[1]], [ROW.prompt_id], STATE)
    assert asked.remembered([ROW], [""]) is not None


@pytest.mark.parametrize("policy", ["unscored", "abort"])
def test_a_step_without_verdicts_is_kept_beside_the_run_and_paid_for(tmp_path: Path, policy: str):
    judge = Judge(name="mine", on_failure=policy, max_unscored_frac=0.5)
    config = Study(judge=judge, trainer=Trainer(group_size=4))
    recorder = Recorder(tmp_path)

    def ask() -> Scorer:
        no_rule = Oracle({ROW.prompt_id: ROW}.get, lambda rows, answers: [None] * len(rows))
        scorer = Scorer(config, no_rule, Session())
        scorer.on_missing = recorder.write_missing
        texts = [[{"content": f"answer {number}"}] for number in range(4)]
        said = "Of 4 verdicts of judge=mine: 3 refused"
        with pytest.raises(TooManyMissing, match=said) as caught:
            scorer([None] * 4, texts, [[1]] * 4, [ROW.prompt_id] * 4, STATE)
        assert isinstance(caught.value, UserError) and "content filter" in str(caught.value)
        return scorer

    assert ask().pending is None  # nothing that a recorder or a trainer would go on with
    assert CellFolder(tmp_path).parts("rollouts") == CellFolder(tmp_path).parts("verdicts") == []
    kept = pq.read_table(tmp_path / MISSING / "verdicts" / "step-000003.parquet").to_pylist()
    assert [row["outcome"] for row in kept] == ["scored", "refused", "refused", "refused"]
    rollouts = pq.read_table(tmp_path / MISSING / "rollouts" / "step-000003.parquet").to_pylist()
    assert [row["completion"] for row in rollouts] == [f"answer {number}" for number in range(4)]
    assert {row["reward"] for row in rollouts} == {None}
    total, last = spent_before(CellFolder(tmp_path))
    assert (total.calls, total.usd, last.calls) == (4, 1.0, 0)
    Recorder(tmp_path)  # a resume redoes the step and forgets no payment
    ask()
    assert spent_before(CellFolder(tmp_path))[0].calls == 8
    assert len(list((tmp_path / MISSING / "verdicts").iterdir())) == 2
