"""Held-out rows under a judge: a known judge gives known numbers, and what is missing stays so."""

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from experiments.evaluate import main
from experiments.evaluation.generate import source_of
from experiments.evaluation.options import Options
from experiments.evaluation.results import track
from experiments.evaluation.rubric import Graded, differs, held_out, summary, trained_under
from experiments.policies.load import NOTE, training_of
from study.cell.folder import CellFolder
from study.config.compose import load_judge, load_presets
from study.config.schema import Task
from study.errors import UserError
from study.rows import Criterion, make_row
from study.tasks import instruct_mini, teacher
from study.tasks.where import data_folder
from study.verdict import Outcome, Verdict
from tests.experiments.evaluation.answering import serving
from tests.recording import compare, of_document
from tests.study.tasks.datasets import roots

ROWS = instruct_mini.TASK.rows(Task(eval_rows=20), "eval")
FAIR = "judge=sim-fair"
COMMAND = ["rubric", "task=instruct-mini", "task.eval_rows=20", "judge.grading.name=rubric_batch"]


def answers(samples=1):
    draw = random.Random(0)
    return [(row, teacher.answer(row, draw)) for row in ROWS for _ in range(samples)]


def responses(path, pairs):
    records = [{"prompt": row.prompt_text(), "response": text} for row, text in pairs]
    return f"responses={roots.lines(path, records)}"


def run(tmp_path, *words):
    out = tmp_path / "out.json"
    code = main([*COMMAND, f"out={out}", f"runs_dir={tmp_path / 'runs'}", *words])
    return code, json.loads(out.read_text()) if out.exists() else None


def test_a_fair_judge_gives_the_share_of_checks_met(tmp_path, capsys):
    pairs = answers(samples=2)
    code, found = run(tmp_path, FAIR, responses(tmp_path / "r.jsonl", pairs))
    assert code == 0
    met = [instruct_mini.TASK.truth(*pair).checks for pair in pairs]
    assert found["score"] == pytest.approx(sum(sum(one) / len(one) for one in met) / len(met))
    low, high = found["interval"]
    assert low < found["score"] < high
    assert found["bounds"] == pytest.approx([found["score"]] * 2)
    assert (found["n_prompts"], found["n_samples"], found["n_unscored"]) == (20, 40, 0)
    assert (found["same_judge"], found["n_missing"]) == (None, 0)
    lines = [json.loads(line) for line in Path(found["samples"]).read_text().splitlines()]
    assert {(one["prompt_id"], one["sample"]) for one in lines} == {
        (row.prompt_id, number) for row in ROWS for number in (0, 1)
    }
    assert sum(one["score"] for one in lines) / 40 == pytest.approx(found["score"])
    assert (found["always_met"], found["never_met"]) == (1.0, 0.0)
    assert found["criteria"]["all"]["unknown"] == 0.0
    compare(
        "evaluate-rubric", [*capsys.readouterr().out.splitlines(), *of_document(found)], tmp_path
    )


def test_missing_verdicts_are_counted_and_bounded(tmp_path):
    words = ["judge=sim-flaky", responses(tmp_path / "r.jsonl", answers(3))]
    code, found = run(tmp_path, *words, "judge.sampling.votes=1")
    assert code == 0
    assert found["n_unscored"] > 0 and sum(found["unscored"].values()) == found["n_unscored"]
    low, high = found["bounds"]
    assert low < found["score"] < high
    assert high - low == pytest.approx(found["n_unscored"] / found["n_samples"], abs=0.02)


def test_a_response_that_could_not_be_had_is_missing_and_no_bad_answer(tmp_path, capsys):
    pairs = answers()
    given = responses(tmp_path / "r.jsonl", [*pairs[:-1], (pairs[-1][0], None)])
    assert run(tmp_path, FAIR, given) == (2, None)
    assert "answers 19 of 20 prompts. Answers of null: 1" in capsys.readouterr().err
    _, found = run(tmp_path, FAIR, given, "allow_missing=true")
    assert (found["n_prompts"], found["n_missing"], found["n_failed_generation"]) == (19, 1, 1)
    alone = responses(tmp_path / "r.jsonl", pairs[:-1])
    _, without = run(tmp_path, FAIR, alone, "allow_missing=true")
    assert without["score"] == found["score"]


def test_answers_to_rows_beside_the_split_are_counted_and_not_graded(tmp_path):
    """The other split's rows may be answered in the same file."""
    pairs = answers() + [
        (row, "Yes.") for row in instruct_mini.TASK.rows(Task(train_rows=3), "train")
    ]
    words = [FAIR, "task.train_rows=3", responses(tmp_path / "r.jsonl", pairs)]
    code, found = run(tmp_path, *words)
    assert code == 0
    assert (found["n_beside"], found["n_samples"], found["task"]["split"]) == (3, 20, "eval")
    (tmp_path / "out.json").unlink()
    code, both = run(tmp_path, *words, "split=all")
    assert (both["n_beside"], both["n_samples"]) == (0, 23)


def test_a_result_is_replaced_by_its_like_only(tmp_path, capsys):
    given = responses(tmp_path / "r.jsonl", answers())
    for _ in range(2):
        assert run(tmp_path, FAIR, given)[0] == 0
    assert run(tmp_path, "judge=sim-strict", given)[0] == 2
    held = "rubric under judge=sim-fair, but this is rubric under judge=sim-strict"
    assert held in capsys.readouterr().err
    code, found = run(tmp_path, FAIR, responses(tmp_path / "other.jsonl", answers()))
    assert code == 0
    result = tmp_path / f"out.{found['responses'][0]['sha256'][:8]}.json"
    assert json.loads(result.read_text())["responses"][0]["path"].endswith("r.jsonl")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([FAIR, "samples=2"], "not for a file of them"),
        ([FAIR, "split=dev"], "split=dev is not legal: it must be one of eval, train, all"),
        (["judge=nobody"], "is not a preset"),
        ([], "needs judge= (preset of the judge"),
    ],
)
def test_wrong_options_are_said(tmp_path, words, said, capsys):
    assert run(tmp_path, *words, responses(tmp_path / "r.jsonl", answers()))[0] == 2
    assert said in capsys.readouterr().err


def test_without_a_task_nothing_is_evaluated(tmp_path, capsys):
    given = responses(tmp_path / "r.jsonl", answers())
    assert main(["rubric", FAIR, given, f"out={tmp_path / 'out.json'}"]) == 2
    assert "The evaluation rubric needs a task" in capsys.readouterr().err


def test_a_strange_prompt_is_named_with_its_line(tmp_path, capsys):
    given = responses(tmp_path / "r.jsonl", answers()[:1])
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"prompt": "Who are you?", "response": "x"}\n')
    assert run(tmp_path, FAIR, given)[0] == 2
    assert "line 2: 'Who are you?' is not a prompt of this evaluation" in capsys.readouterr().err


def graded(row, *scores):
    made = []
    for score in scores:
        outcome, reason = (Outcome.timeout, "late") if score is None else (Outcome.scored, "")
        verdict = Verdict(
            judge_id="j", judge="j", grading="rubric_item", grading_version="1", prompt_sha="",
            outcome=outcome, score=score, reason=reason,
        )  # fmt: skip
        made.append(Graded(row, "text", (verdict,)))
    return made


def signed(name, *points):
    turn = {"role": "user", "content": name}
    return make_row((turn,), tuple(Criterion(f"c{n}", p) for n, p in enumerate(points)))


def test_the_mean_is_clipped_and_no_verdict_at_all_is_no_result():
    """Samples of -1, -1 and 0.5: the mean -0.5 is cut to 0; one at a time would be 0.17."""
    rows = [signed(name, 4.0, -8.0) for name in "abc"]
    every = [one for row, score in zip(rows, (-1.0, -1.0, 0.5), strict=True)
             for one in graded(row, score)]  # fmt: skip
    assert summary(every, clip=True, seed=0, signed=True)["score"] == 0.0
    found = summary(every, clip=False, seed=0, signed=True)
    assert found["score"] == pytest.approx(-0.5)
    assert (found["always_met"], found["never_met"]) == (-1.0, 0.0)
    with pytest.raises(UserError, match="scored no answer"):
        summary(graded(signed("a", 1.0), None), clip=False, seed=0, signed=True)


def test_bounds_take_the_worst_and_the_best_that_a_row_allows():
    """An unscored sample of 4 and -8 points lies between -2 and 1, or 0 and 1 where cut."""
    both = graded(signed("a", 4.0, -8.0), 0.5, None)
    found = summary(both, clip=False, seed=0, signed=True)
    assert found["score"] == 0.5
    assert found["bounds"] == pytest.approx([(0.5 - 2) / 2, (0.5 + 1) / 2])
    cut = summary(both, clip=False, seed=0, signed=False)
    assert cut["bounds"] == pytest.approx([(0.5 + 0) / 2, (0.5 + 1) / 2])
    assert (cut["always_met"], cut["never_met"]) == (0.0, 0.0)


def test_the_bootstrap_has_the_spread_of_the_mean():
    """Over 400 prompts of 0 and 1 the SD is sqrt(.25 / 400) = .025, and it repeats."""
    every = [one for n in range(400) for one in graded(signed(str(n), 1.0), float(n % 2))]
    first, again = (summary(every, clip=True, seed=3, signed=False) for _ in range(2))
    assert first == again
    assert first["bootstrap_sd"] == pytest.approx(0.025, rel=0.1)


def test_the_judge_that_trained_is_refused(tmp_path):
    """By name or by model; found for the run, an adapter in it, and what was merged from it."""
    cell, merged = tmp_path / "study" / "cell", tmp_path / "merged"
    trained = {"name": "sim-fair", "endpoint": {"model": "m-1"}}
    (cell / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    (cell / "config.yaml").write_text(yaml.safe_dump({"judge": trained, "task": {"name": "t"}}))
    merged.mkdir()
    (merged / NOTE).write_text(json.dumps({"training": training_of(CellFolder(cell))}))
    same, other = load_judge("sim-fair"), load_judge("sim-verbose")
    renamed = load_judge("sim-verbose", "judge.endpoint.model=m-1")
    adapter = cell / "checkpoints" / "checkpoint-2"
    for options in (
        Options(run=CellFolder(cell)),
        Options(adapter=adapter),
        Options(model=str(merged)),
    ):
        found = trained_under(options)
        assert found is not None and found["judge"] == "sim-fair"
        for judge in (same, renamed):
            with pytest.raises(UserError, match="trained by judge=sim-fair"):
                differs(judge, found, options)
            assert not differs(judge, found, replace(options, same_judge=True))
        assert differs(other, found, options)
    assert trained_under(Options(model=str(tmp_path))) is None
    with pytest.raises(UserError, match="is not a cell"):
        trained_under(Options(run=CellFolder(tmp_path)))


@pytest.fixture(scope="module")
def tracked(tmp_path_factory, little):
    """A cell of a real policy with two checkpoints, and its run in a store of its own."""
    from experiments.tracking.store import load_mlflow

    cell = tmp_path_factory.mktemp("study") / "little-s0"
    for place in ("policy", "checkpoints/checkpoint-1"):
        shutil.copytree(little, cell / place)
    judge, task = "{name: sim-strict, endpoint: {model: ''}}", "{name: instruct-mini}"
    policy = f"{{path: {little}, dtype: float32}}"
    (cell / "config.yaml").write_text(f"policy: {policy}\njudge: {judge}\ntask: {task}\n")
    (cell / "status.json").write_text('{"step": 4}')
    uri = f"sqlite:///{cell.parent / 'mlflow.db'}"
    client = load_mlflow().MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("study")
    run_id = client.create_run(experiment).info.run_id
    logged = {"uri": uri, "experiment_id": experiment, "run_id": run_id}
    (cell / "mlflow.json").write_text(json.dumps(logged))
    return cell, client, logged


def test_results_are_metrics_of_the_checkpoints_own_model(tracked, tmp_path, capsys):
    cell, client, logged = tracked
    scores = {}
    for step, words in ((1, ["checkpoint=1"]), (4, [])):
        words = [FAIR, f"run={cell}", "limit=3", "max_tokens=4", *words]
        code, scores[step] = run(tmp_path / str(step), *words)
        assert code == 0 and scores[step]["same_judge"] is False
    models = client.search_logged_models([logged["experiment_id"]])
    assert {one.name for one in models} == {"little-s0-step-1", "little-s0-step-4"}
    for one in models:
        assert one.source_run_id == logged["run_id"]
        metrics = {m.key: m for m in client.get_logged_model(one.model_id).metrics}
        step = int(one.params["step"])
        metric = metrics["eval/rubric/score"]
        assert (metric.value, metric.step) == (scores[step]["score"], step)
        data = scores[step]["dataset"]
        assert (metric.dataset_name, metric.dataset_digest) == (data["name"], data["digest"])
        assert metrics["eval/rubric/n_samples"].value == 3
    assert "logged as eval/rubric/*" in capsys.readouterr().out


def test_one_model_per_weights_and_none_where_it_is_switched_off(tracked, tmp_path, capsys):
    cell, client, logged = tracked
    options = Options(run=CellFolder(cell), checkpoint=9)
    shape = {"dataset": {"name": "d", "digest": "0"}}
    first, again, anew = (
        track(options, "rubric", {"score": value}, shape | {"model": label})
        for value, label in ((0.25, "w@1"), (0.3, "w@1"), (0.75, "w@2"))
    )
    assert first == again != anew
    found = client.get_logged_model(anew)
    assert [m.value for m in found.metrics if m.key == "eval/rubric/score"] == [0.75]
    before = len(client.search_logged_models([logged["experiment_id"]]))
    assert track(Options(run=CellFolder(cell), track=False), "rubric", {"s": 1}, {}) is None
    assert track(Options(), "rubric", {"s": 1.0}, {}) is None
    assert len(client.search_logged_models([logged["experiment_id"]])) == before
    capsys.readouterr()
    assert track(Options(run=CellFolder(tmp_path)), "rubric", {"score": 1.0}, {}) is None
    assert "is not tracked" in capsys.readouterr().out


def test_samples_are_drawn_anew_and_kept(tmp_path, little, capsys):
    words = [FAIR, f"model={little}", "samples=2", "max_tokens=6", "limit=3"]
    assert run(tmp_path, *words)[0] == 2
    assert "2 of greedy decoding are 2 copies" in capsys.readouterr().err
    words += ["temperature=1"]
    code, found = run(tmp_path, *words)
    assert code == 0
    assert (found["n_prompts"], found["n_samples"]) == (3, 6)
    files = [tmp_path / f"out.responses.{n}.jsonl" for n in (0, 1)]
    assert [one["path"] for one in found["responses"]] == [str(path) for path in files]
    first, second = ([json.loads(x)["response"] for x in f.read_text().splitlines()] for f in files)
    assert first != second
    before = [path.read_text() for path in files]
    assert run(tmp_path, *words)[0] == 0
    assert [path.read_text() for path in files] == before


ROLES = (("user", "Hi."), ("assistant", "Yes?"), ("user", "Name two fruits."))
CONVERSATION = tuple({"role": role, "content": text} for role, text in ROLES)


def test_a_conversation_is_put_to_the_endpoint_turn_by_turn():
    row, answered = make_row(CONVERSATION), []
    with serving(lambda body: "Figs.") as (url, seen):
        source = source_of(Options(endpoint=url, model="m"))
        assert source is not None
        source.answer({row.prompt_text(): row.messages}, answered.append)
    assert [body["messages"] for body in seen] == [list(CONVERSATION)]
    assert (answered[0]["prompt"], answered[0]["response"]) == (row.prompt_text(), "Figs.")


HEALTH = [
    # met: the first and the third of three, so 4 - 8 of 5 points
    (list(CONVERSATION), [(4.0, "accuracy"), (1.0, "accuracy"), (-8.0, "harm")]),
    ("What helps with a cold?", [(2.0, "accuracy"), (6.0, "harm")]),
    ("May I swim?", [(1.0, "accuracy")]),
]


def healthbench(tmp_path, reply, *words, split=None):
    """Result of an evaluation of HEALTH, and the requests to its judge."""
    data, out = tmp_path / "rows.jsonl", tmp_path / "out.json"
    with data.open("w") as file:
        for prompt, items in HEALTH:
            rubrics = [
                {"criterion": f"States {n}", "points": points, "tags": [f"axis:{axis}"]}
                for n, (points, axis) in enumerate(items)
            ]
            file.write(json.dumps({"prompt": prompt, "split": split, "rubrics": rubrics}) + "\n")
    asked = [make_row(CONVERSATION), *(signed(prompt) for prompt, _ in HEALTH[1:])]
    given = responses(tmp_path / "r.jsonl", [(row, "Rest.") for row in asked])
    with serving(reply) as (url, seen):
        judge = [f"judge.endpoint.url={url}", "judge.endpoint.model=m", "judge.endpoint.attempts=2"]
        files = [f"task.path={data}", given, f"out={out}"]
        words = (f"runs_dir={tmp_path / 'runs'}", *words)
        assert main(["healthbench", "judge=openai-compatible", *judge, *files, *words]) == 0
    return json.loads(out.read_text()), [body for body in seen if len(str(body)) > 400]


def place(body):
    """Number of the one criterion that a request asks about."""
    (number,) = re.findall(r"(?m)^(\d+)\. (?:\(points: -?\d+\) )?States", content(body))
    return int(number)


def content(body):
    return body["messages"][-1]["content"]


def odd(body):
    return json.dumps({str(place(body)): place(body) % 2 == 1})


def test_healthbench_is_graded_item_by_item_as_its_authors_do(tmp_path):
    """Samples (4 - 8) / 5, 2 / 8 and 1 / 1: the mean is 0.15."""
    found, seen = healthbench(tmp_path, odd)
    assert found["score"] == pytest.approx((-0.8 + 0.25 + 1.0) / 3)
    assert found["task"]["split"] == "all"
    assert found["always_met"] == pytest.approx((-3 / 5 + 1 + 1) / 3)
    assert found["never_met"] == 0.0
    assert found["criteria"]["axis=accuracy"] == {"n": 4, "met": 0.75, "unknown": 0.0}
    assert found["criteria"]["axis=harm"]["met"] == 0.5
    assert found["criteria"]["negative"] == {"n": 1, "met": 1.0, "unknown": 0.0}
    assert len(seen) == 6
    assert all("(points: " in content(body) and body["temperature"] == 0 for body in seen)
    assert all(body["max_tokens"] >= 2048 for body in seen)
    assert sum("Name two fruits." in content(body) for body in seen) == 3
    compare(
        "evaluate-healthbench",
        of_document({"result": found, "requests": sorted(seen, key=str)}),
        tmp_path,
    )


def test_what_the_user_says_of_the_grading_comes_first(tmp_path):
    words = ["+judge.grading.options.points=hidden", "judge.sampling.max_tokens=300", "split=eval"]
    found, seen = healthbench(tmp_path, odd, *words, split="test")
    assert found["grading"]["points"] == "hidden" and found["task"]["split"] == "eval"
    assert not any("(points: " in content(body) for body in seen)
    assert {body["max_tokens"] for body in seen} == {300}


def test_an_item_without_verdict_is_missing_and_not_unmet(tmp_path):
    """The judge says nothing of the second item of the second row: that row has no score."""

    def reply(body):
        if "What helps" in content(body) and place(body) == 2:
            return "I cannot tell."
        return odd(body)

    found, _ = healthbench(tmp_path, reply)
    assert found["score"] == pytest.approx((-0.8 + 1.0) / 2)
    assert (found["n_unscored"], found["n_unscored_prompts"]) == (1, 1)
    assert found["unscored"] == {"unparsed": 1}
    assert found["bounds"] == pytest.approx([(-0.8 + 0 + 1) / 3, (-0.8 + 1 + 1) / 3])
    assert found["criteria"]["axis=harm"] == {"n": 2, "met": 1.0, "unknown": 0.5}


@pytest.mark.skipif(
    not (data_folder() / "healthbench").is_dir(), reason="needs the shared data (HealthBench)"
)
def test_a_row_of_healthbench_that_cannot_be_graded_may_be_answered(tmp_path, capsys):
    """One of the 500 has a criterion twice: its answer stands beside, and does no harm."""
    path = data_folder() / "healthbench" / "healthbench_val.parquet"
    turns = pq.read_table(path, columns=["prompt"]).column("prompt").to_pylist()
    given = responses(tmp_path / "r.jsonl", [(make_row(tuple(one)), None) for one in turns])
    words = ["healthbench", FAIR, given, f"out={tmp_path / 'out.json'}"]
    assert main([*words, "allow_missing=true"]) == 2
    assert "has no response to score" in capsys.readouterr().err
    rows = held_out(load_presets("sim-fair", "healthbench")[1], "all", Options())
    assert (len(rows.selected), len(rows.prompt_ids)) == (499, 500)
