"""Answers from a file: shares, votes, what is missing, and a judge beside the rule."""

from collections import Counter
from pathlib import Path

import pytest

from analysis.statistics.proportions import wilson
from experiments.evaluation import chosen, datasets
from study.sandbox import tiers
from tests.experiments.evaluation.answering import PLAIN, entry, items, serving
from tests.experiments.small_sets import CHOICES, GSM8K, RIGHT, SETS, WRONG, prediction, right
from tests.recording import compare, of_document


def test_right_and_wrong_answers_give_their_share(evaluate, isolated, tmp_path, capsys):
    wrong = {"gsm8k": 5, "math": 1, "squad2": 1, "hotpotqa": 2, "humaneval": 1, "mbpp": 2}
    lines = [line for name in SETS for line in right(name, wrong.get(name, 0))]
    code, result = evaluate(lines)
    assert code == 0
    assert result["evaluation"] == "datasets" and result["model"] is None
    accuracy = {"gsm8k": 15 / 20, "math": 2 / 3, "squad2": 3 / 4, "hotpotqa": 2 / 4}
    accuracy |= {"humaneval": 1 / 2, "commonsenseqa": 1.0}
    # as `jq '.datasets[] | {name: .dataset, accuracy: .metrics.accuracy}'` reads it
    read = {each["dataset"]: each["metrics"]["accuracy"] for each in result["datasets"]}
    assert {name: read[name] for name in accuracy} == pytest.approx(accuracy)
    evaluated = entry(result, "gsm8k")
    assert (evaluated["domain"], evaluated["split"]) == ("math", "test")
    counts = ("n", "n_samples", "n_missing", "n_unscored", "n_trained_on")
    assert [evaluated[key] for key in counts] == [20, 20, 0, 0, None]
    interval = wilson(15, 20)
    assert evaluated["ci95"]["accuracy"] == pytest.approx([interval.low, interval.high])
    assert evaluated["judge"] is None and evaluated["confusion"] is None
    assert set(evaluated["hashes"]) == {"prompt", "data", "split", "predictions"}
    read_items = items(evaluated)
    assert [line["id"] for line in read_items] == [f"gsm8k:test:{row}" for row in range(20)]
    keys = {"id", "sample", "correct", "score", "extracted", "outcome", "detail"}
    assert all(set(line) == keys for line in read_items)
    assert [line["correct"] for line in read_items] == [False] * 5 + [True] * 15
    assert Path(evaluated["items"]).parent == tmp_path
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
    del result["sandbox"]  # which of them there is, is the machine's
    lines = [*capsys.readouterr().out.splitlines(), *of_document(result)]
    compare("evaluate-datasets", lines, tmp_path)


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
    sizes = {each["dataset"]: each["n"] for each in result["datasets"]}
    assert sizes == {"gsm8k": 3, "squad2": 1, "mbpp": 2, "humaneval": 1}
    assert {each["metrics"]["accuracy"] for each in result["datasets"]} == {1.0}
    assert entry(result, "mbpp")["split"] == "test"


def test_null_is_missing_and_not_wrong(evaluate, capsys):
    lines = [*right("gsm8k", wrong=4)[:-1], prediction("gsm8k", 19, None)]
    assert evaluate(lines) == (2, None)
    assert "answers 19 of 20 prompts. Answers of null: 1. Type" in capsys.readouterr().err
    code, result = evaluate(lines, "allow_missing=true")
    evaluated = entry(result, "gsm8k")
    assert code == 0 and evaluated["metrics"]["accuracy"] == pytest.approx(15 / 19)
    assert (evaluated["n"], evaluated["n_samples"], evaluated["n_missing"]) == (19, 19, 1)
    assert evaluated["baselines"]["constant"]["n"] == 19
    unknown = dict.fromkeys(("correct", "score", "extracted"))
    said = {"outcome": "missing", "detail": "there is no answer"}
    assert items(evaluated)[-1] == {"id": "gsm8k:test:19", "sample": 0} | unknown | said
    _, without = evaluate(lines[:-1], "allow_missing=true", out="other.json")
    assert entry(without, "gsm8k")["metrics"] == evaluated["metrics"]
    assert entry(without, "gsm8k")["n_missing"] == 1


def test_nothing_but_nulls_is_an_error(evaluate, capsys):
    lines = [prediction("gsm8k", 0, None)]
    assert evaluate(lines, "allow_missing=true") == (2, None)
    assert "no response to score" in capsys.readouterr().err


def test_a_truth_that_cannot_be_had_is_unscored(evaluate, monkeypatch, capsys):
    """A grader whose children died twice says None."""
    whole = datasets.score

    def score(rows, texts, grader):
        grader.faults["killed from outside"] = 1
        return [None, *whole(rows[1:], texts[1:], grader)]

    monkeypatch.setattr(datasets, "score", score)
    _, result = evaluate(right("gsm8k", wrong=1))
    evaluated = entry(result, "gsm8k")
    counts = ("n", "n_samples", "n_unscored", "n_missing")
    assert [evaluated[key] for key in counts] == [19, 20, 1, 0]
    assert evaluated["metrics"]["accuracy"] == 1.0
    assert items(evaluated)[0]["correct"] is None and items(evaluated)[0]["outcome"] == "unscored"
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
    with serving(lambda body: "    return x\n") as (url, seen):
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
    evaluated = entry(result, "gsm8k")
    assert code == 0 and (evaluated["n"], evaluated["n_samples"]) == (20, 160)
    # of the other row 3 of 8 are right: 1 - C(5, 5) / C(8, 5)
    passed = (19 + 1 - 1 / 56) / 20
    expected = {"accuracy": (19 * 5 + 3) / 160, "maj@8": 19 / 20, "pass@5": passed}
    assert evaluated["metrics"] == pytest.approx(expected)
    low, high = evaluated["ci95"]["accuracy"]
    alone = wilson(19 * 5 + 3, 160)
    assert low < evaluated["metrics"]["accuracy"] < high
    assert high - low == pytest.approx(alone.high - alone.low)  # rows differ by less than samples
    assert evaluated["baselines"]["oracle_best_of_k"]["accuracy"] == 1.0
    assert [line["sample"] for line in items(evaluated)[:8]] == list(range(8))


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
        assert (entry(result, "gsm8k")["baselines"]["direct"]["accuracy"] is None) is changed


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
    evaluated = entry(result, "squad2")
    assert evaluated["metrics"]["accuracy"] == 0.0 and evaluated["n"] == 4
    assert [line["outcome"] for line in items(evaluated)][2:] == ["no_answer"] * 2


def test_a_named_set_that_the_file_does_not_answer_is_missing(evaluate):
    code, result = evaluate(right("gsm8k"), "datasets=gsm8k,hotpotqa", "allow_missing=true")
    assert code == 0
    evaluated = entry(result, "hotpotqa")
    assert evaluated["metrics"]["accuracy"] is None
    assert (evaluated["n"], evaluated["n_missing"]) == (0, 4)
    assert result["averages"]["by_dataset"] == 1.0


def test_limit_and_select_choose_rows(evaluate):
    _, result = evaluate(right("gsm8k"), "limit=5")
    assert (entry(result, "gsm8k")["n"], result["n_beside"]) == (5, 15)
    ids = [line["id"] for line in items(entry(result, "gsm8k"))]
    assert ids == [f"gsm8k:test:{row}" for row in range(5)]
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
    evaluated = entry(result, "squad2")
    table = evaluated["confusion"]
    assert table["tp"] + table["fn"] + table["fp"] + table["tn"] == evaluated["n_samples"]
    for name, planted in (("fpr", 0.7), ("tpr", 0.8)):
        low, high = table["ci95"][name]
        assert low < planted < high and 0.01 < high - low < 0.3
    assert table["youden_j"] == pytest.approx(table["tpr"] - table["fpr"])
    assert evaluated["judge"]["name"] == result["judge"]["name"] == "sim-fair"
    assert entry(result, "gsm8k")["confusion"]["fpr"] == 0.0
    assert entry(result, "gsm8k")["confusion"]["tpr"] is None
    assert all("verdict" in line for line in items(evaluated))
    _, again = evaluate(lines, *words)
    tables = [each["confusion"] for each in result["datasets"]]
    assert [each["confusion"] for each in again["datasets"]] == tables


def test_no_judge_is_asked_about_what_was_cut_off(evaluate, tmp_path):
    """Of squad2's row 2 an empty answer is right, and one that was cut off beside it is not."""
    texts = ["<think>hm</think>", "<think>well", "", "a river"]
    lines = [prediction("squad2", 2, text, sample=n) for n, text in enumerate(texts)]
    words = ["judge=sim-fair", f"runs_dir={tmp_path / 'runs'}", "allow_missing=true"]
    _, result = evaluate(lines, *words)
    evaluated = entry(result, "squad2")
    table = {key: evaluated["confusion"][key] for key in ("tp", "fp", "fn", "tn", "cut_off")}
    assert table == {"tp": 2, "fp": 0, "fn": 0, "tn": 1, "cut_off": 1}
    assert evaluated["confusion"]["unscored"] == 0
    assert [line["correct"] for line in items(evaluated)[:4]] == [True, False, True, False]
    assert items(evaluated)[1]["verdict"] is None


def test_a_fair_judge_says_what_the_rule_says(evaluate, tmp_path):
    lines = [line for name in PLAIN for line in right(name, wrong=1)]
    _, result = evaluate(lines, "judge=sim-fair", f"runs_dir={tmp_path / 'runs'}")
    for evaluated in result["datasets"]:
        table = evaluated["confusion"]
        assert (table["fp"], table["fn"], table["unscored"]) == (0, 0, 0)
        assert table["accuracy"] == pytest.approx(evaluated["metrics"]["accuracy"])
