"""Policies of programs beside their baselines: equal programs agree, equal tokens are equal."""

import json
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.statistics.bootstrap import mean_by_bootstrap
from experiments.evaluate import main
from experiments.evaluation.metrics import Vote
from experiments.workflow import baselines, dsl
from experiments.workflow import evaluation as workflow
from experiments.workflow.find import find
from experiments.workflow.played import (
    MOST_REPEATS,
    Played,
    Player,
    any_right,
    falls_short,
    mean_tokens,
    voted,
)
from experiments.workflow.templates import TEMPLATES
from judges.ask.replies import Store
from study.cell.cells import load_cell
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.programs.endings import Ending
from study.sandbox import tiers
from study.system import locks
from study.system.files import write_yaml
from study.tasks import kind_of
from study.tasks.kind import grading
from tests.conftest import sweep
from tests.experiments.evaluation.answering import prompt_of, serving

PROGRAMS = (
    *("world=workflow", "executor=sim", "task=workflow-mini", "reward=workflow-gated"),
    *("workflow.form=dsl", "workflow.prompt=problem", "policy=tiny", "scaffold=none"),
    *("trainer=workflow-quickstart", "trainer.steps=1", "trainer.eval_steps=0"),
    *("policy.warmup.steps=150", "policy.warmup.learning_rate=0.002"),
    *("judge=sim-fair", "seed=0", "study=programs", "sweep.report=false", "tracking=none"),
)
ONCE = ("untrained", "direct", "chain_of_thought", "aflow", "fixed_best", "random")
"""Baselines of one program a row, on every row."""


@pytest.fixture(scope="module")
def cell(together, tmp_path_factory) -> Path:
    """A run of one step whose policy writes the short form; each worker has a copy."""
    try:
        tiers.find()
    except tiers.SandboxUnavailable as error:
        pytest.skip(str(error))
    trained = together / "programs"
    with locks.held(together / "programs.lock"):
        if not (trained / "programs" / "whole").exists():
            done = sweep(trained, *PROGRAMS)
            assert done.returncode == 0, done.stdout + done.stderr
            (trained / "programs" / "whole").touch()
    runs_dir = tmp_path_factory.mktemp("runs")
    shutil.copytree(trained, runs_dir, dirs_exist_ok=True)
    (folder,) = (path.parent for path in runs_dir.glob("programs/*/config.yaml"))
    return folder


@pytest.fixture(scope="module")
def result(cell) -> dict:
    """All baselines on twelve rows."""
    return evaluated(cell, "result.json")


def evaluated(cell, name):
    out = cell.parent / name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workflow, "CHOOSING", 2)
        assert main(["workflow", f"run={cell}", "limit=12", "samples=2", f"out={out}"]) == 0
    return json.loads(out.read_text())


def entries(result, method):
    return {entry["dataset"]: entry for entry in result["datasets"] if entry["method"] == method}


def items(result):
    """(method, set) -> whether each run of each of its rows is right, and its tokens."""
    rows = defaultdict(list)
    for line in Path(result["items"]).read_text().splitlines():
        item = json.loads(line)
        runs = [(run["correct"], run["tokens"]) for run in item["runs"]]
        rows[item["method"], item["dataset"]].append(runs)
    return rows


def test_every_method_has_an_entry_for_each_set_that_it_is_for(result):
    sets = set(entries(result, "trained"))
    assert len(sets) == 6
    for method in (*ONCE, "self_consistency", "oracle_best_of_k", "template/answer"):
        assert set(entries(result, method)) == sets, method
    for name in ("template/code", "template/generate-test-revise"):
        assert set(entries(result, name)) == {"functions-easy", "functions-hard"}
    for entry in result["datasets"]:  # what the jq line of the published results reads, and more
        assert 0 <= entry["metrics"]["accuracy"] <= 1
        low, high = entry["ci95"]["accuracy"]
        assert low <= entry["metrics"]["accuracy"] <= high
        rows = items(result)[entry["method"], entry["dataset"]]
        assert entry["n"] + entry["n_missing"] == len(rows)
        assert entry["tokens"] >= 0


def test_accuracies_and_tokens_are_means_over_the_items(result):
    for (method, name), rows in items(result).items():
        entry = entries(result, method)[name]
        if method == "self_consistency":
            continue
        judge = any if method == "oracle_best_of_k" else next
        rights = [judge(right for right, _ in runs) for runs in rows]
        assert entry["metrics"]["accuracy"] == pytest.approx(fmean(rights)), (method, name)
        counted = rows if method == "oracle_best_of_k" else [runs[:1] for runs in rows]
        tokens = fmean(sum(tokens for _, tokens in runs) for runs in counted)
        assert entry["tokens"] == pytest.approx(tokens)


def test_repeated_baselines_take_the_tokens_of_the_policy_and_self_consistency_no_more(result):
    budget = {name: entry["tokens"] for name, entry in entries(result, "trained").items()}
    repeated = 0
    for method in (*ONCE, "template/answer"):
        for name, entry in entries(result, method).items():
            equal = entry["equal_tokens"]
            runs = items(result)[method, name]
            assert {len(each) for each in runs} == {equal["repeats"]}
            before = fmean(sum(tokens for _, tokens in each[:-1]) for each in runs)
            if equal["repeats"] > 1:
                repeated += 1
                assert before < budget[name]
            if method != "untrained":  # an invalid program takes none, however often
                assert equal["tokens"] >= budget[name] or equal["repeats"] == MOST_REPEATS
    assert repeated
    for name, entry in entries(result, "self_consistency").items():
        assert entry["samples"] == 1 or entry["tokens"] <= budget[name]


def test_best_of_k_holds_the_policy_s_samples(result):
    for runs in (rows for (name, _), rows in items(result).items() if name == "oracle_best_of_k"):
        assert {len(each) for each in runs} == {2}


def test_a_second_evaluation_asks_the_executor_nothing_and_says_the_same(cell, result):
    again = evaluated(cell, "again.json")
    assert again["executor_calls"] == 0 < result["executor_calls"]
    assert again["datasets"] == result["datasets"]


def test_the_same_program_and_its_template_agree(cell, tmp_path):
    """As the policy's line and as the baseline's class: the same answers, the same tokens."""
    config = load_cell(CellFolder(cell)).config
    rows = kind_of(config.task).rows(config.task, "eval")[:12]
    pairs = {
        "Custom": TEMPLATES["custom"],
        "AnswerGenerate": TEMPLATES["answer"],
        "(AnswerGenerate) * 3 -> ScEnsemble": TEMPLATES["self-consistency"],
    }
    with grading(), Store(tmp_path / "verdicts.db") as store:
        with Player(config, store, "dsl") as player:
            lines = {line: player.play(rows, [line] * len(rows)) for line in pairs}
            asked = player.world.calls
        with Player(config, store, "python", checked=False) as player:
            for line, template in pairs.items():
                assert player.play(rows, [template] * len(rows)) == lines[line]
            assert asked > 0
            assert player.world.calls == 0
            another = player.play(rows, [TEMPLATES["custom"]] * len(rows), draw=1)
            assert player.world.calls > 0
            assert another != lines["Custom"]  # other draws
    assert {played.vote.correct for played in lines["Custom"]} == {True, False}


def test_the_policy_s_help_in_training_is_none_here(cell, tmp_path):
    """A default program in place of an invalid one is a treatment of training."""
    config = load_cell(CellFolder(cell)).config
    treated = replace(config, workflow=replace(config.workflow, fallback="credit", repair=True))
    rows = kind_of(config.task).rows(config.task, "eval")[:2]
    with Store(tmp_path / "verdicts.db") as store, Player(treated, store, "dsl") as player:
        assert player.play(rows, ["Review ->"] * 2) == [Played(Vote(None, False), 0.0)] * 2
        assert player.world.calls == 0


def test_what_the_executor_loses_is_missing_and_not_wrong(cell, tmp_path):
    config = load_cell(CellFolder(cell)).config
    rows = kind_of(config.task).rows(config.task, "eval")
    lost = next(row for row in rows if row.domain == "math")
    gold = {row.prompt_text(): row.reference for row in rows if row.domain == "math"}

    def reply(body):
        question = next(text for text in gold if text in prompt_of(body))
        if question == lost.prompt_text():
            raise ConnectionError("the line goes dead")
        return gold[question]

    asked = [row for row in rows if row.domain == "math"][:3]
    with serving(reply) as (url, _), Store(tmp_path / "verdicts.db") as store:
        endpoint = replace(config.executor.endpoint, url=url, model="m", attempts=1, deadline_s=5.0)
        executor = replace(config.executor, endpoint=endpoint, simulated=None)
        with Player(replace(config, executor=executor), store, "dsl") as player:
            missing, *others = player.play(asked, ["Custom"] * 3)
    assert (missing.vote, missing.why) == (None, Ending.OPERATOR_ERROR)
    assert [played.vote.correct for played in others] == [True, True]


def test_the_most_frequent_program_is_that_of_the_records(cell):
    counts = defaultdict(lambda: defaultdict(int))
    for part in CellFolder(cell).parts("rollouts"):
        for record in read_part(part, ["domain", "outcome", "completion"]).to_pylist():
            if record["outcome"] == "ok":
                counts[record["domain"]][record["completion"].strip()] += 1
    frequent = baselines.frequent(CellFolder(cell))
    assert frequent.keys() == counts.keys()
    for domain, (text, python) in frequent.items():
        assert counts[domain][text] == max(counts[domain].values())
        assert dsl.compiled(text).python == python


def test_random_programs_are_offered_in_their_domain_and_differ_by_seed(cell):
    config = load_cell(CellFolder(cell)).config
    rows = kind_of(config.task).rows(config.task, "eval")[:60]
    drawn = [baselines.random_program(row, 0) for row in rows]
    assert drawn == [baselines.random_program(row, 0) for row in rows]
    assert drawn != [baselines.random_program(row, 1) for row in rows]
    assert len(set(drawn)) > 20
    for row, text in zip(rows, drawn, strict=True):
        assert ("CustomCodeGenerate" not in text and "Test(" not in text) or row.domain == "code"
        assert find(text, "python").form == "python"


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "needs run="),
        (["run=nowhere"], "nowhere is not a cell"),
        (["run={cell}", "executor.context=9"], "without executor=NAME"),
        (["run={cell}", "executor=nobody"], "executor=nobody is not a preset"),
        (["run={cell}", "baselines=best"], "baselines="),
        (["run={cell}", "checkpoint=77"], "does not exist"),
        (["run={cell}", "judge.context=9", "executor=sim"], "judge.context=9 has no meaning"),
        (["run={cell}", "responses_out=a.jsonl"], "responses_out= has no meaning"),
        (["run={direct}"], "world=direct"),
        (["run={cell}", "datasets=gsm8k"], "datasets= has no meaning"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) and value else "",
)
def test_what_cannot_be_evaluated_is_said_in_a_paragraph(cell, tmp_path, capsys, words, said):
    direct = tmp_path / "direct"
    direct.mkdir()
    write_yaml(direct / "config.yaml", CellFolder(cell).config() | {"world": "direct"})
    out = tmp_path / "out.json"
    typed = [word.format(cell=cell, direct=direct) for word in words]
    assert main(["workflow", *typed, f"out={out}"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not out.exists()


PLAYED = st.builds(
    Played,
    st.one_of(st.none(), st.builds(Vote, st.sampled_from([None, "a", "b"]), st.booleans())),
    st.one_of(st.none(), st.floats(0, 100)),
)


@given(st.lists(PLAYED, max_size=6))
def test_the_vote_is_one_of_the_answers_that_were_had(runs):
    told = [played.vote for played in runs if played.vote is not None]
    winner = voted(runs)
    if not told:
        assert winner is None
        assert any_right(runs) is None
        return
    assert any_right(runs) == (True in [each.correct for each in told])
    ballots = [each.ballot for each in told]
    named = [name for name in ballots if name is not None]
    if len(told) == 1 or not named:
        assert winner == told[0].correct
    else:
        first = max(dict.fromkeys(named), key=named.count)
        assert winner == told[ballots.index(first)].correct


@given(st.lists(st.lists(PLAYED, min_size=1, max_size=3), min_size=1, max_size=5))
def test_tokens_are_those_of_runs_of_which_something_is_known(runs):
    known = [[each.tokens for each in row if each.vote is not None] for row in runs]
    known = [row for row in known if row]
    tokens = mean_tokens(runs)
    if not known or any(None in row for row in known):
        assert tokens is None
        assert not falls_short(runs, 1e9)
    else:
        assert tokens == pytest.approx(sum(map(sum, known)) / len(known))
        assert not falls_short(runs, tokens)
        assert not falls_short(runs, None)


def test_the_bootstrap_of_a_mean_is_near_student_s_interval():
    draw = np.random.default_rng(0)
    for n in (12, 60, 400):
        values = draw.normal(0.3, 1.0, n)
        estimate = mean_by_bootstrap(values, 1, "problem")
        low, high = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
        assert estimate.value == pytest.approx(values.mean())
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.2 * (high - low))
    few = mean_by_bootstrap(values[:9], 1, "problem")
    assert np.isnan(few.low)
    assert "fewer than 10 problems" in few.note
