"""Verifiable sets by predictions of known worth, by endpoints, and beside judges of known rates."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from analysis.statistics.proportions import wilson
from experiments.data import main as prepare
from experiments.evaluate import main
from experiments.evaluation import baselines, chosen, datasets
from experiments.evaluation.options import Options
from experiments.track.store import load_mlflow
from study.records import write_part
from study.sandbox import tiers
from study.tasks.datasets.sets import reported
from study.tasks.datasets.table import open_table
from tests.experiments.small_sets import (
    CHOICES,
    GSM8K,
    RIGHT,
    SETS,
    WRONG,
    prediction,
    right,
    write_sets,
)

ROOT = Path(__file__).resolve().parents[2]
CODE = ("humaneval", "mbpp")
PLAIN = tuple(name for name in SETS if name not in CODE)


@pytest.fixture
def root(tmp_path):
    return write_sets(tmp_path / "data")


@pytest.fixture
def isolated():
    try:
        tiers.find()
    except tiers.SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def evaluate(root, tmp_path):
    """(lines or options, more words) -> exit code and the result."""

    def call(lines=None, *words, out="out.json"):
        target = tmp_path / out
        if lines is not None:
            path = tmp_path / "predictions.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            words = (f"predictions={path}", *words)
        code = main(["datasets", f"data.root={root}", f"out={target}", *words])
        return code, json.loads(target.read_text()) if target.exists() else None

    return call


def entry(result, name):
    (found,) = (each for each in result["datasets"] if each["dataset"] == name)
    return found


def items(found):
    return [json.loads(line) for line in Path(found["items"]).read_text().splitlines()]


def test_right_and_wrong_answers_give_their_share(evaluate, isolated, tmp_path):
    wrong = {"gsm8k": 5, "math": 1, "squad2": 1, "hotpotqa": 2, "humaneval": 1, "mbpp": 2}
    lines = [line for name in SETS for line in right(name, wrong.get(name, 0))]
    code, result = evaluate(lines)
    assert code == 0
    assert result["evaluation"] == "datasets" and result["model"] is None
    accuracy = {
        "gsm8k": 15 / 20,
        "math": 2 / 3,
        "squad2": 3 / 4,
        "hotpotqa": 2 / 4,
        "humaneval": 1 / 2,
        "commonsenseqa": 1.0,
    }
    # as `jq '.datasets[] | {name: .dataset, accuracy: .metrics.accuracy}'` reads it
    read = {each["dataset"]: each["metrics"]["accuracy"] for each in result["datasets"]}
    assert {name: read[name] for name in accuracy} == pytest.approx(accuracy)
    found = entry(result, "gsm8k")
    assert (found["domain"], found["split"]) == ("math", "test")
    counts = ("n", "n_samples", "n_missing", "n_unscored", "n_trained_on")
    assert [found[key] for key in counts] == [20, 20, 0, 0, None]
    interval = wilson(15, 20)
    assert found["ci95"]["accuracy"] == pytest.approx([interval.low, interval.high])
    assert found["judge"] is None and found["confusion"] is None
    assert set(found["hashes"]) == {"prompt", "data", "split", "predictions"}
    read_items = items(found)
    assert [line["id"] for line in read_items] == [f"gsm8k:test:{row}" for row in range(20)]
    keys = {"id", "sample", "correct", "score", "extracted", "outcome", "detail"}
    assert all(set(line) == keys for line in read_items)
    assert [line["correct"] for line in read_items] == [False] * 5 + [True] * 15
    assert Path(found["items"]).parent == tmp_path
    # MBPP's rows are in one file; each split is a result of its own
    splits = {each["split"]: each["n"] for each in result["datasets"] if each["dataset"] == "mbpp"}
    assert splits == {"prompt": 1, "test": 2, "validation": 1, "train": 1}
    squad = entry(result, "squad2")["metrics"]
    assert squad["HasAns_exact"] == 0.5 and squad["NoAns_exact"] == squad["NoAns_f1"] == 1.0
    domains = {"math": (0.75 + 2 / 3) / 2, "qa": (0.75 + 0.5 + 1) / 3}
    domains["code"] = (1 / 2 + 3 / 5) / 2  # the splits of MBPP are one set
    assert result["domains"] == pytest.approx(domains)
    weighted = 0.4 * domains["math"] + 0.3 * domains["qa"] + 0.3 * domains["code"]
    assert result["averages"]["weighted"] == pytest.approx(weighted)
    assert result["averages"]["by_domain"] == pytest.approx(sum(domains.values()) / 3)


def test_a_row_is_named_by_its_id_its_index_or_its_sets_own_id(evaluate, isolated):
    lines = [
        prediction("gsm8k", "gsm8k:test:0", "7"),
        prediction("gsm8k", 1, "4.5"),
        prediction("gsm8k", "2", "16"),
        prediction("squad2", "q2", ""),
        prediction("mbpp", "mbpp:test:2", RIGHT["mbpp"][2]),
        prediction("mbpp", 1, RIGHT["mbpp"][1]),
        prediction("humaneval", "HumanEval/1", RIGHT["humaneval"][1]),
    ]
    code, result = evaluate(lines, "allow_missing=true")
    assert code == 0
    assert {each["dataset"]: each["n"] for each in result["datasets"]} == {
        "gsm8k": 3,
        "squad2": 1,
        "mbpp": 2,
        "humaneval": 1,
    }
    assert {each["metrics"]["accuracy"] for each in result["datasets"]} == {1.0}
    assert entry(result, "mbpp")["split"] == "test"


def test_null_is_missing_and_not_wrong(evaluate, capsys):
    lines = [*right("gsm8k", wrong=4)[:-1], prediction("gsm8k", 19, None)]
    assert evaluate(lines) == (2, None)
    assert "answers 19 of 20 prompts. Answers of null: 1. Type" in capsys.readouterr().err
    code, result = evaluate(lines, "allow_missing=true")
    found = entry(result, "gsm8k")
    assert code == 0 and found["metrics"]["accuracy"] == pytest.approx(15 / 19)
    assert (found["n"], found["n_samples"], found["n_missing"]) == (19, 19, 1)
    assert found["baselines"]["constant"]["n"] == 19
    assert items(found)[-1] == {
        "id": "gsm8k:test:19",
        "sample": 0,
        "correct": None,
        "score": None,
        "extracted": None,
        "outcome": "missing",
        "detail": "there is no answer",
    }
    _, without = evaluate(lines[:-1], "allow_missing=true", out="other.json")
    assert entry(without, "gsm8k")["metrics"] == found["metrics"]
    assert entry(without, "gsm8k")["n_missing"] == 1


def test_nothing_but_nulls_is_an_error(evaluate, capsys):
    lines = [prediction("gsm8k", 0, None)]
    assert evaluate(lines, "allow_missing=true") == (2, None)
    assert "no response that could be scored" in capsys.readouterr().err


def test_a_truth_that_cannot_be_had_is_unscored(evaluate, monkeypatch, capsys):
    """A grader whose children died twice says None."""
    whole = datasets.score
    monkeypatch.setattr(
        datasets,
        "score",
        lambda rows, texts, grader: (
            grader.faults.update({"killed from outside": 1})
            or [None, *whole(rows[1:], texts[1:], grader)]
        ),
    )
    _, result = evaluate(right("gsm8k", wrong=1))
    found = entry(result, "gsm8k")
    assert (found["n"], found["n_samples"], found["n_unscored"], found["n_missing"]) == (
        19,
        20,
        1,
        0,
    )
    assert found["metrics"]["accuracy"] == 1.0
    assert items(found)[0]["correct"] is None and items(found)[0]["outcome"] == "unscored"
    assert result["faults"] == {"killed from outside": 1}
    assert "1 unscored: killed from outside" in capsys.readouterr().out


@pytest.fixture
def bare(monkeypatch):
    """A machine where nothing isolates code."""
    monkeypatch.setattr(tiers, "try_tier", lambda tier, bwrap=None: "refused")
    tiers.find.cache_clear()
    yield
    tiers.find.cache_clear()


def test_what_cannot_be_graded_is_refused_before_it_is_generated(evaluate, bare, capsys):
    with serving(lambda prompt, body: "    return x\n") as (url, seen):
        words = [f"endpoint={url}", "model=m"]
        assert evaluate(None, *words, "datasets=gsm8k,humaneval") == (2, None)
        assert "sandbox=unsafe" in capsys.readouterr().err
        rubric = ["judge=sim-fair", "judge.grading.name=rubric"]
        assert evaluate(None, *words, "datasets=gsm8k", *rubric) == (2, None)
        assert seen == []


def test_code_is_evaluated_without_isolation_where_that_is_typed(evaluate, bare):
    code, result = evaluate(right("humaneval"), "sandbox=unsafe")
    assert code == 0 and result["sandbox"] == "unsafe"
    assert entry(result, "humaneval")["metrics"]["accuracy"] == 1.0


def test_the_best_of_uneven_samples_is_of_as_many_as_every_row_has(evaluate):
    lines = [prediction("squad2", 2, "a river", sample=n) for n in range(2)]
    texts = ["a river", "a hill", ""]
    lines += [prediction("squad2", 3, text, sample=n) for n, text in enumerate(texts)]
    _, result = evaluate(lines, "allow_missing=true")
    best = entry(result, "squad2")["baselines"]["oracle_best_of_k"]
    assert (best["k"], best["accuracy"], best["n"]) == (2, 0.0, 2)


def test_samples_vote_and_are_clustered_by_row(evaluate):
    """Of 8 samples, the first 5 of every row but one are right."""
    lines = [
        prediction("gsm8k", row, answer if sample < (5 if row else 3) else "0", sample=sample)
        for row, (_, answer) in enumerate(GSM8K)
        for sample in reversed(range(8))
    ]
    code, result = evaluate(lines)
    found = entry(result, "gsm8k")
    assert code == 0 and (found["n"], found["n_samples"]) == (20, 160)
    assert found["metrics"] == pytest.approx({"accuracy": (19 * 5 + 3) / 160, "maj@8": 19 / 20})
    low, high = found["ci95"]["accuracy"]
    alone = wilson(19 * 5 + 3, 160)
    assert low < found["metrics"]["accuracy"] < high
    assert high - low == pytest.approx(alone.high - alone.low)  # rows differ by less than samples
    assert found["baselines"]["oracle_best_of_k"]["accuracy"] == 1.0
    assert [line["sample"] for line in items(found)[:8]] == list(range(8))


def test_answers_vote_by_what_they_say_and_not_by_their_spelling(evaluate):
    """Of each row the right answer has three spellings, and one wrong answer stands there twice."""
    spellings = {
        "gsm8k": ("7", ["0", "0", "7", "7.0", "$7", "a", "b", "c"]),
        "squad2": ("", ["a river", "a river", "Mara Voss", "mara voss.", "the Mara Voss", *"bcd"]),
        "math": (0, ["9", "9", r"\frac12", r"\frac{1}{2}", r"\dfrac{1}{2}", "a", "b", "c"]),
    }
    lines = [
        prediction(name, 0, text, sample=n)
        for name, (_, texts) in spellings.items()
        for n, text in enumerate(texts)
    ]
    _, result = evaluate(lines, "allow_missing=true")
    for name in spellings:
        metrics = entry(result, name)["metrics"]
        assert metrics["accuracy"] == 3 / 8 and metrics["maj@8"] == 1.0, name


def test_an_earlier_result_on_other_problems_is_no_baseline(evaluate, root, capsys):
    """Ids count the rows of a file, and do not say which file."""
    lines = [line | {"model": "m"} for line in right("gsm8k")]
    evaluate(lines, "method=direct", out="direct.json")
    for changed in (False, True):
        if changed:
            path = root / "gsm8k" / "test.jsonl"
            path.write_text(path.read_text().replace("Ann", "Bea"))
        _, result = evaluate(lines, "method=cot", out="cot.json")
        direct = entry(result, "gsm8k")["baselines"]["direct"]
        assert (direct["accuracy"] is None) is changed


def test_code_has_pass_at_k(evaluate, isolated):
    """3 of 10 right, and 0 of 10."""
    lines = [
        prediction("humaneval", 0, RIGHT["humaneval"][0] if n < 3 else WRONG["humaneval"], sample=n)
        for n in range(10)
    ]
    lines += [prediction("humaneval", 1, WRONG["humaneval"], sample=n) for n in range(10)]
    _, result = evaluate(lines)
    metrics = entry(result, "humaneval")["metrics"]
    # 1 - C(7, 5) / C(10, 5) of the first row is 231 / 252
    assert metrics == pytest.approx({"accuracy": 0.15, "pass@5": 231 / 252 / 2, "pass@10": 0.5})


def test_endless_code_ends_at_its_limit(evaluate, isolated):
    lines = [prediction("mbpp", 1, "def four():\n    while True:\n        pass"),
             prediction("mbpp", 2, RIGHT["mbpp"][2])]  # fmt: skip
    code, result = evaluate(lines)
    first, second = items(entry(result, "mbpp"))
    assert code == 0 and (first["outcome"], second["correct"]) == ("timeout", True)


def test_thinking_is_no_answer(evaluate):
    """squad2 takes "" for "no answer", and a thinker that was cut off said nothing of the kind."""
    lines = [prediction("squad2", row, "<think>Mara Voss</think>") for row in range(2)]
    lines += [prediction("squad2", row, "<think>well") for row in (2, 3)]
    _, result = evaluate(lines)
    found = entry(result, "squad2")
    assert found["metrics"]["accuracy"] == 0.0 and found["n"] == 4
    assert [line["outcome"] for line in items(found)][2:] == ["no_answer"] * 2


BAD = {
    "a set that is not known": ([prediction("gsm9k", 0, "7")], ("line 1", "gsm9k", "gsm8k, math")),
    "an id of no row": (
        [prediction("gsm8k", 0, "7"), prediction("gsm8k", 20, "7")],
        ("line 2", "the unknown id '20'", "gsm8k:test:0"),
    ),
    "an id of another set": ([prediction("gsm8k", "math:test:0", "7")], ("line 1", "unknown id")),
    "an id that is no name": ([prediction("gsm8k", 1.5, "7")], ("line 1", "an id that is 1.5")),
    "a row answered twice": (
        [prediction("gsm8k", 0, "7"), prediction("gsm8k", "gsm8k:test:0", "7")],
        ("line 2", "'gsm8k:test:0' answered again, after line 1", '"sample"'),
    ),
    "a sample given twice": (
        [prediction("gsm8k", 0, "7", sample=3), prediction("gsm8k", 0, "8", sample=3)],
        ("line 2", "answered again"),
    ),
    "a prediction that is no text": (
        [prediction("gsm8k", 0, 7)],
        ("line 1", "a prediction that is 7"),
    ),
    "no prediction": ([{"dataset": "gsm8k", "id": 0}], ("line 1", "no prediction")),
    "no object": ([["gsm8k", 0, "7"]], ("line 1", "['gsm8k', 0, '7']")),
    "a sample that is no number": ([prediction("gsm8k", 0, "7", sample=True)], ("line 1", "True")),
    "two models": (
        [prediction("gsm8k", 0, "7", model="a"), prediction("gsm8k", 1, "4.5", model="b")],
        ("responses of 2 models: a, b",),
    ),
    "no line": ([], ("holds no prediction",)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_predictions_are_named_with_file_and_row(name, evaluate, tmp_path, capsys):
    lines, said = BAD[name]
    code, result = evaluate(lines, "allow_missing=true")
    error = capsys.readouterr().err
    assert (code, result) == (2, None)
    assert str(tmp_path / "predictions.jsonl") in error and "Traceback" not in error
    assert all(words in error for words in said), error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "predictions.jsonl"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"dataset": "gsm8k", "id": 0, "prediction": "7"}\n{"dataset": "gs', "line 2"),
        ('{"dataset": "gsm8k", "id": 0, "prediction": "\u00e9"}\n'.encode("latin-1"), "line 1"),
        ('{"dataset": "gsm8k", "id": 0, "prediction": "7"}\n'.encode("utf-16"), "line 1"),
        (b"[" * 100_000, "line 1"),
    ],
    ids=["torn", "latin-1", "utf-16", "deep"],
)
def test_a_damaged_file_is_named_with_its_row(data, said, root, tmp_path, capsys):
    path = tmp_path / "p.jsonl"
    path.write_bytes(data)
    words = ["datasets", f"data.root={root}", f"predictions={path}", f"out={tmp_path / 'o.json'}"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert str(path) in error and said in error
    assert not (tmp_path / "o.json").exists()


def test_half_of_a_character_is_read_and_written(evaluate):
    """JSON can spell what UTF-8 cannot."""
    code, result = evaluate([prediction("hotpotqa", 0, "\ud800 yes")], "allow_missing=true")
    assert code == 0 and entry(result, "hotpotqa")["n"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["datasets=gsm9k"], "Did you mean gsm8k?"),
        (["select=facility"], "type limit=N"),
        (["samples=3"], "a file has as many as it has"),
        (["temperature=1"], "temperature has no meaning with predictions"),
        (["task.eval_rows=3", "judge=sim-fair"], "task.eval_rows=3 has no meaning with datasets"),
        (["judge.sampling.votes=3"], "has no meaning without judge=NAME"),
        (["method=tot"], "one of direct, cot, sc"),
        (["data.root=nowhere"], "data.root"),
        (["responses=r.jsonl"], "has no meaning with experiments.evaluate datasets"),
        (["datasets=math,math500"], "datasets=math500"),
        (["judge=nobody"], "judge=nobody is not a preset"),
    ],
)
def test_options_that_do_not_fit_are_refused(words, said, root, tmp_path, capsys):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(prediction("gsm8k", 0, "7")) + "\n")
    place = [] if any(word.startswith("data.root") for word in words) else [f"data.root={root}"]
    command = ["datasets", f"predictions={path}", f"out={tmp_path / 'o.json'}", *place, *words]
    assert main(command) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "o.json").exists()


def test_a_set_that_is_not_there_is_named(evaluate, root, capsys):
    (root / "gsm8k" / "test.jsonl").unlink()
    assert evaluate(right("gsm8k"))[0] == 2
    assert "gsm8k/test.jsonl" in capsys.readouterr().err


def test_a_named_set_that_the_file_does_not_answer_is_missing(evaluate):
    code, result = evaluate(right("gsm8k"), "datasets=gsm8k,hotpotqa", "allow_missing=true")
    assert code == 0
    found = entry(result, "hotpotqa")
    assert (found["metrics"]["accuracy"], found["n"], found["n_missing"]) == (None, 0, 4)
    assert result["averages"]["by_dataset"] == 1.0


def test_limit_and_select_choose_rows(evaluate):
    _, result = evaluate(right("gsm8k"), "limit=5")
    assert (entry(result, "gsm8k")["n"], result["n_beside"]) == (5, 15)
    assert [line["id"] for line in items(entry(result, "gsm8k"))] == [
        f"gsm8k:test:{row}" for row in range(5)
    ]
    _, spread = evaluate(right("gsm8k"), "limit=4", "select=facility", out="f.json")
    chosen_ids = {line["id"] for line in items(entry(spread, "gsm8k"))}
    # the seventeen sums are near copies of each other
    copies = chosen_ids & {f"gsm8k:test:{row}" for row in range(3, 20)}
    assert len(chosen_ids) == 4 and 1 <= len(copies) <= 2
    hashes = [entry(each, "gsm8k")["hashes"]["data"] for each in (result, spread)]
    assert len(set(hashes)) == 2


def test_more_rows_than_facility_location_takes(evaluate, monkeypatch, capsys):
    monkeypatch.setattr(chosen, "MOST", 4)
    _, result = evaluate(right("gsm8k"), "limit=10", "select=random")
    assert entry(result, "gsm8k")["n"] == 10
    _, result = evaluate(right("gsm8k"), "limit=3", "select=facility", out="f.json")
    assert entry(result, "gsm8k")["n"] == 3
    assert evaluate(right("gsm8k"), "limit=10", "select=facility", out="g.json") == (2, None)
    assert "Type limit=4 or less, or select=random." in capsys.readouterr().err


def test_the_same_command_gives_the_same_result(evaluate):
    _, first = evaluate(right("hotpotqa", 1))
    _, second = evaluate(right("hotpotqa", 1))
    assert first == second


def test_a_result_is_not_overwritten_by_another_models(evaluate, capsys):
    lines = [line | {"model": "a"} for line in right("hotpotqa")]
    assert evaluate(lines)[0] == 0
    assert evaluate([line | {"model": "b"} for line in lines])[0] == 2
    assert "holds the result of a, and this is b" in capsys.readouterr().err


def test_a_constant_answer_is_a_baseline_of_every_set(evaluate, isolated):
    _, result = evaluate([line for name in SETS for line in right(name)])
    answers = {each["dataset"]: each["baselines"]["constant"] for each in result["datasets"]}
    assert (answers["squad2"]["answer"], answers["squad2"]["accuracy"]) == ("", 0.5)
    assert (answers["hotpotqa"]["answer"], answers["hotpotqa"]["accuracy"]) == ("yes", 0.5)
    most, count = Counter(gold for _, gold in CHOICES).most_common(1)[0]
    assert answers["commonsenseqa"]["answer"] == most
    assert answers["commonsenseqa"]["accuracy"] == count / len(CHOICES)
    assert answers["humaneval"]["accuracy"] == answers["mbpp"]["accuracy"] == 0.0
    interval = wilson(2, 4)
    assert answers["hotpotqa"]["ci95"] == pytest.approx([interval.low, interval.high])


def test_a_judge_is_measured_against_the_rule(evaluate, tmp_path):
    """A simulated judge that passes 70 % of qa's wrong answers and fails 20 % of its right ones."""
    lines = [prediction("gsm8k", row, "0", sample=n) for row in range(20) for n in range(10)]
    for row, gold in enumerate(RIGHT["squad2"]):
        texts = [f"{gold} {'.' * n}" if n % 2 else f"a river {n}" for n in range(60)]
        lines += [prediction("squad2", row, text, sample=n) for n, text in enumerate(texts)]
    words = ["judge=sim-fair", f"runs_dir={tmp_path / 'runs'}"]
    words += [f"judge.simulated.domains.qa.{name}" for name in ("fpr=0.7", "tpr=0.8")]
    code, result = evaluate(lines, *words)
    assert code == 0
    found = entry(result, "squad2")
    table = found["confusion"]
    assert table["tp"] + table["fn"] + table["fp"] + table["tn"] == found["n_samples"]
    for name, planted in (("fpr", 0.7), ("tpr", 0.8)):
        low, high = table["ci95"][name]
        assert low < planted < high and 0.01 < high - low < 0.3
    assert table["youden_j"] == pytest.approx(table["tpr"] - table["fpr"])
    assert found["judge"]["name"] == result["judge"]["name"] == "sim-fair"
    assert entry(result, "gsm8k")["confusion"]["fpr"] == 0.0
    assert entry(result, "gsm8k")["confusion"]["tpr"] is None
    assert all("verdict" in line for line in items(found))
    _, again = evaluate(lines, *words)
    assert [each["confusion"] for each in again["datasets"]] == [
        each["confusion"] for each in result["datasets"]
    ]


def test_no_judge_is_asked_about_what_was_cut_off(evaluate, tmp_path):
    """Of squad2's row 2 an empty answer is right, and one that was cut off beside it is not."""
    texts = ["<think>hm</think>", "<think>well", "", "a river"]
    lines = [prediction("squad2", 2, text, sample=n) for n, text in enumerate(texts)]
    words = ["judge=sim-fair", f"runs_dir={tmp_path / 'runs'}", "allow_missing=true"]
    _, result = evaluate(lines, *words)
    found = entry(result, "squad2")
    table = {key: found["confusion"][key] for key in ("tp", "fp", "fn", "tn", "cut_off")}
    assert table == {"tp": 2, "fp": 0, "fn": 0, "tn": 1, "cut_off": 1}
    assert found["confusion"]["unscored"] == 0
    assert [line["correct"] for line in items(found)[:4]] == [True, False, True, False]
    assert items(found)[1]["verdict"] is None


def test_a_fair_judge_says_what_the_rule_says(evaluate, tmp_path):
    lines = [line for name in PLAIN for line in right(name, wrong=1)]
    _, result = evaluate(lines, "judge=sim-fair", f"runs_dir={tmp_path / 'runs'}")
    for found in result["datasets"]:
        table = found["confusion"]
        assert (table["fp"], table["fn"], table["unscored"]) == (0, 0, 0)
        assert table["accuracy"] == pytest.approx(found["metrics"]["accuracy"])


@contextmanager
def serving(reply, end="stop"):
    """(address, prompts so far) of a chat endpoint that answers ``reply(prompt, body)``."""
    seen: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = body["messages"][0]["content"]
            seen.append(prompt)
            message = {"role": "assistant", "content": reply(prompt, body)}
            choice = {"message": message, "finish_reason": end, "index": 0}
            usage = {"prompt_tokens": 1, "completion_tokens": len(message["content"].split())}
            data = json.dumps({"choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
        server.shutdown()


def solver(root):
    """Answers every row, the reasoned ones right and the direct ones wrong on every second row."""
    gold = {item.prompt: n for n, item in enumerate(reported("gsm8k", root))}

    def reply(prompt, body):
        bare = max((text for text in gold if prompt.startswith(text)), key=len)
        n = gold[bare]
        answer = GSM8K[n][1]
        if prompt == bare:
            return f"#### {answer if n % 2 else 0}"
        # of eight samples three go wrong, each in its own way
        wrong = n == 0 or body.get("seed", 0) % 8 in (1, 4, 6)
        answer = body.get("seed", 0) + 900 if wrong else answer
        return f"step by step by step by step\n#### {answer}"

    return reply


def test_methods_are_each_others_baselines(evaluate, root, capsys):
    with serving(solver(root)) as (url, seen):
        words = ["datasets=gsm8k", f"endpoint={url}", "model=m"]
        code, direct = evaluate(None, *words, out="direct.json")
        assert code == 0 and entry(direct, "gsm8k")["metrics"]["accuracy"] == 0.5
        said = capsys.readouterr().out
        missing = {name: each for name, each in entry(direct, "gsm8k")["baselines"].items()
                   if each["accuracy"] is None}  # fmt: skip
        assert set(missing) == {
            "untrained", "chain_of_thought", "self_consistency", "oracle_best_of_k",
        }  # fmt: skip
        assert entry(direct, "gsm8k")["baselines"]["direct"]["accuracy"] == 0.5
        for label in ("chain_of_thought", "self_consistency"):
            command = missing[label]["command"]
            assert command in said
            assert main(shlex.split(command)[3:]) == 0
        assert len(set(seen)) == 40
        code, again = evaluate(None, *words, out="direct.json")
    others = entry(again, "gsm8k")["baselines"]
    assert others["direct"]["accuracy"] == 0.5
    assert others["chain_of_thought"]["accuracy"] == 19 / 20
    assert others["oracle_best_of_k"] | {"ci95": 0, "file": 0} == {
        "accuracy": 19 / 20, "k": 8, "n": 20, "ci95": 0, "file": 0,
    }  # fmt: skip
    # one reasoned answer already takes more tokens than a direct one
    assert others["self_consistency"]["votes"] == 1
    voted = json.loads(Path(others["self_consistency"]["file"]).read_text())
    found = entry(voted, "gsm8k")
    assert (voted["method"], found["n_samples"], voted["generation"]["temperature"]) == (
        "sc",
        160,
        0.7,
    )
    assert found["metrics"]["maj@8"] == 19 / 20 > found["metrics"]["accuracy"]
    assert found["baselines"]["self_consistency"]["votes"] == 8
    assert others["constant"]["accuracy"] == 1 / 20
    assert others["untrained"] == {"accuracy": None, "command": None}


def test_another_choice_of_rows_keeps_the_answers_that_are_there(evaluate, root):
    with serving(solver(root)) as (url, seen):
        words = ["datasets=gsm8k", f"endpoint={url}", "model=m"]
        for more in (["limit=8"], ["limit=4"], ["limit=8", "method=cot"], ["limit=8"]):
            code, result = evaluate(None, *words, *more)
            assert code == 0 and entry(result, "gsm8k")["n"] == int(more[0][6:])
    assert len(seen) == 16 and result["n_beside"] == 8


def test_only_answers_that_are_evaluated_count_as_truncated(evaluate, root):
    with serving(solver(root), end="length") as (url, _):
        words = ["datasets=gsm8k", f"endpoint={url}", "model=m"]
        truncated = [evaluate(None, *words, f"limit={n}")[1]["n_truncated"] for n in (6, 4)]
    assert truncated == [6, 4]


def test_prompts_of_a_method_have_hashes_of_their_own(root):
    item = reported("gsm8k", root)[0]
    assert chosen.asked(item, "direct") == item.prompt == chosen.asked(item, None)
    asked = chosen.asked(item, "cot")
    assert asked.startswith(item.prompt) and "step by step" in asked
    program = reported("mbpp", root)[0]
    assert "block of code" in chosen.asked(program, "sc").removeprefix(program.prompt)


def killed_after(url, root, out, answers):
    """Start the evaluation, kill -9 it once ``answers`` responses are in its file; the file."""
    command = [
        *(sys.executable, "-m", "experiments.evaluate", "datasets", "datasets=gsm8k"),
        *(f"endpoint={url}", "model=m", f"data.root={root}", f"out={out}", "concurrency=1"),
    ]
    file = out.with_suffix(".responses.jsonl")
    with subprocess.Popen(command, cwd=ROOT, env=os.environ) as child:
        while child.poll() is None:
            if file.exists() and file.read_bytes().count(b"\n") >= answers:
                child.send_signal(signal.SIGKILL)
                break
            time.sleep(0.02)
        assert child.wait() == -signal.SIGKILL
    return command, file


def test_a_killed_evaluation_goes_on(root, tmp_path):
    out = tmp_path / "out.json"
    whole = solver(root)

    def slow(prompt, body):
        time.sleep(0.05)
        return whole(prompt, body)

    with serving(slow) as (url, seen):
        command, file = killed_after(url, root, out, 5)
        assert not out.exists()
        kept = file.read_bytes().count(b"\n")
        before = len(seen)
        assert main([*command[3:]]) == 0
    assert len(seen) - before == 20 - kept
    assert entry(json.loads(out.read_text()), "gsm8k")["n"] == 20


@pytest.fixture
def cell(runs, tmp_path, little):
    """A tracked run that was trained on row 3 of gsm8k and on rows that no set has."""
    folder = runs / "study" / "cell"
    (folder / "rollouts").mkdir(parents=True)
    base = tmp_path / "base"
    shutil.copytree(little, base)
    config = json.loads((base / "config.json").read_text()) | {"max_position_embeddings": 2048}
    (base / "config.json").write_text(json.dumps(config))
    shutil.copytree(base, folder / "policy")
    config = {
        "judge": {"name": "sim-fair", "endpoint": {"model": ""}},
        "task": {"name": "prompts"},
        "policy": {"path": str(base), "dtype": "float32"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "status.json").write_text(json.dumps({"step": 40}))
    rows = [
        {"step": 1, "prompt": "another", "item": "gsm8k:test:3"},
        {"step": 1, "prompt": "another", "item": None},
    ]
    write_part(
        folder / "rollouts" / "step-000001.parquet",
        rows,
        {"step": "int32", "prompt": "string", "item": "string"},
    )
    return folder


def test_a_run_is_not_scored_on_what_it_was_trained_on(evaluate, cell):
    words = [f"run={cell}", "datasets=gsm8k,hotpotqa", "max_tokens=4", "limit=6", "track=false"]
    code, result = evaluate(None, *words)
    assert code == 0
    found = entry(result, "gsm8k")
    assert (found["n_trained_on"], found["n"]) == (1, 6)
    assert [line["id"] for line in items(found)] == [f"gsm8k:test:{n}" for n in (0, 1, 2, 4, 5, 6)]
    assert entry(result, "hotpotqa")["n_trained_on"] == 0
    place = cell.parent / "results" / "evaluation" / "cell-step-40_results.json"
    assert json.loads(place.read_text()) == result
    untrained = found["baselines"]["untrained"]
    assert untrained["accuracy"] is None and "checkpoint=0" in untrained["command"]
    assert main(shlex.split(untrained["command"])[3:]) == 0
    _, again = evaluate(None, *words)
    before = entry(again, "gsm8k")["baselines"]["untrained"]
    assert before["n"] == 6 and before["accuracy"] is not None
    made = json.loads(Path(before["file"]).read_text())
    assert made["model"].startswith("base@") and result["model"] != made["model"]


def test_a_studys_result_is_not_lost_to_a_smaller_or_another_one(evaluate, cell):
    words = [f"run={cell}", "max_tokens=2", "track=false"]
    folder = cell.parent / "results" / "evaluation"
    place = folder / "cell-step-40_results.json"
    _, whole = evaluate(None, *words, "datasets=gsm8k", "limit=4")
    evaluate(None, *words, "datasets=gsm8k", "limit=2", out="small.json")
    assert json.loads(place.read_text()) == whole and len(list(folder.iterdir())) == 1
    _, other = evaluate(None, *words, "datasets=hotpotqa", out="other.json")
    assert json.loads(place.read_text()) == other
    (aside,) = set(folder.iterdir()) - {place}
    assert json.loads(aside.read_text()) == whole
    evaluate(None, *words, "datasets=hotpotqa", out="other.json")
    assert len(list(folder.iterdir())) == 2  # the same again is no other


def test_the_untrained_model_of_a_runs_adapter_is_asked_as_the_runs(cell, root, tmp_path):
    """So that it leaves out the same rows."""
    adapter = cell / "checkpoint-3"
    adapter.mkdir()
    words = ["datasets", f"adapter={adapter}", f"data.root={root}", f"out={tmp_path / 'o.json'}"]
    options = main.read([*words, "limit=5"])
    model, changed = datasets._untrained(options, "base@1 + checkpoint-3")
    assert model.startswith("base@")
    command = baselines.typed(options, "untrained", changed)
    read = main.read(shlex.split(command)[3:])
    assert (read.run, read.checkpoint, read.adapter, read.limit) == (cell, 0, None, 5)


def test_a_tracked_runs_numbers_are_metrics_of_its_model(evaluate, cell, runs):
    uri = f"sqlite:///{runs / 'mlflow.db'}"
    client = load_mlflow().MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("study")
    run_id = client.create_run(experiment).info.run_id
    kept = {"uri": uri, "experiment_id": experiment, "run_id": run_id}
    (cell / "mlflow.json").write_text(json.dumps(kept))
    words = [f"run={cell}", "datasets=hotpotqa", "max_tokens=4", "method=sc", "samples=2"]
    code, result = evaluate(None, *words)
    (model,) = client.search_logged_models([experiment])
    metrics = {each.key: each.value for each in client.get_logged_model(model.model_id).metrics}
    found = entry(result, "hotpotqa")
    assert code == 0 and model.name == "cell-step-40"
    assert metrics["eval/datasets/hotpotqa-dev/maj_at_2"] == found["metrics"]["maj@2"]
    assert metrics["eval/datasets/averages/weighted"] == result["averages"]["weighted"]
    place = cell.parent / "results" / "evaluation" / "cell-step-40-sc_results.json"
    assert json.loads(place.read_text())["datasets"] == result["datasets"]


def test_a_row_of_another_set_with_the_same_problem_was_trained_on(root):
    """As the rows of MATH-500 are rows of MATH under other ids."""
    (root / "math500").mkdir()
    shutil.copy(root / "math" / "test.jsonl", root / "math500" / "test.jsonl")
    seen = chosen.Seen(frozenset(), frozenset({reported("math", root)[1].prompt}), None, ())
    assert [seen.holds(item) for item in reported("math500", root)] == [False, True, False]


def test_rows_that_a_run_may_yet_draw_are_not_scored(evaluate, cell, root, tmp_path):
    """plan-c cuts the test file where there is no other: its train rows are no held-out rows."""
    folder = tmp_path / "prepared"
    words = ["prepare", "data=plan-c", "datasets=gsm8k,commonsenseqa", f"data.root={root}"]
    assert prepare([*words, f"out={folder}"]) == 0
    table = open_table(folder)
    train = {item.id for name in ("gsm8k", "commonsenseqa") for item in table.rows("train", name)}
    assert 10 < len(train) < 25
    config = yaml.safe_load((cell / "config.yaml").read_text())
    for chosen_sets in ([], ["gsm8k"]):
        config["task"] = {
            "name": "mixed",
            "path": str(folder),
            "options": {"datasets": chosen_sets},
        }
        (cell / "config.yaml").write_text(yaml.safe_dump(config))
        shutil.rmtree(cell / "rollouts", ignore_errors=True)
        words = [f"run={cell}", "max_tokens=2", "track=false", "datasets=gsm8k,commonsenseqa"]
        _, result = evaluate(None, *words, out=f"{len(chosen_sets)}.json")
        trained = {name for name in train if not chosen_sets or name.startswith("gsm8k")}
        for found, size in zip(result["datasets"], (20, 5), strict=True):
            scored = {line["id"] for line in items(found)}
            assert not scored & trained
            assert found["n_trained_on"] == size - len(scored)
            assert len(scored | {n for n in trained if n.startswith(found["dataset"])}) == size


def test_what_a_run_may_yet_draw_is_not_known_without_its_folder(evaluate, cell, capsys):
    config = yaml.safe_load((cell / "config.yaml").read_text())
    config["task"] = {"name": "mixed", "path": "moved/away", "options": {}}
    (cell / "config.yaml").write_text(yaml.safe_dump(config))
    words = [f"run={cell}", "max_tokens=2", "track=false", "datasets=gsm8k", "limit=4"]
    _, result = evaluate(None, *words)
    found = entry(result, "gsm8k")
    assert found["n_trained_on"] is None
    assert [line["id"] for line in items(found)] == [f"gsm8k:test:{n}" for n in (0, 1, 2, 4)]
    assert "told by its records alone" in " ".join(capsys.readouterr().err.split())


def test_a_run_is_not_graded_by_the_judge_that_trained_it(evaluate, cell, tmp_path, capsys):
    words = [f"run={cell}", "datasets=hotpotqa", "max_tokens=4", "track=false", "judge=sim-fair"]
    words += [f"runs_dir={tmp_path / 'verdicts'}"]
    assert evaluate(None, *words)[0] == 2
    assert "same_judge=true" in capsys.readouterr().err
    code, result = evaluate(None, *words, "same_judge=true")
    assert code == 0 and result["same_judge"] is True


def test_a_command_that_is_printed_can_be_typed(tmp_path):
    """Whatever was typed, the words of a baseline's command are read without complaint."""
    typed = ["datasets", "run=runs/a/b", "datasets=gsm8k,mbpp", "limit=5", "select=facility"]
    typed += [
        "data.root=some where",
        "thinking=false",
        f"out={tmp_path / 'o.json'}",
        "temperature=1",
    ]
    options = main.read([*typed, "judge=sim-fair", "judge.sampling.votes=1", "samples=4"])
    assert isinstance(options, Options)
    for words in ({"method": "sc"}, {"method": "cot"}, {"checkpoint": 0}):
        command = baselines.typed(options, "other", words)
        read = main.read(shlex.split(command)[3:])
        assert read.out == tmp_path / "o-other.json"
        assert (read.limit, read.select, read.datasets) == (5, "facility", ["gsm8k", "mbpp"])
        assert (read.root, read.thinking, read.judge) == ("some where", False, "")
        assert (read.method, read.checkpoint) == (words.get("method"), words.get("checkpoint"))
