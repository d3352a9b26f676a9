"""Files, rows and options that do not fit are named, and nothing is overwritten."""

import json

import pytest

from experiments.evaluate import main
from tests.experiments.evaluation.answering import entry
from tests.experiments.small_sets import prediction, right

SEVEN = prediction("gsm8k", 0, "7")

BAD = {
    "a set that is not known": ([prediction("gsm9k", 0, "7")], ("line 1", "gsm9k", "gsm8k, math")),
    "an id of no row": (
        [SEVEN, prediction("gsm8k", 20, "7")],
        ("line 2", "the unknown id '20'", "gsm8k:test:0"),
    ),
    "an id of another set": ([prediction("gsm8k", "math:test:0", "7")], ("line 1", "unknown id")),
    "an id that is no name": ([prediction("gsm8k", 1.5, "7")], ("line 1", "an id that is 1.5")),
    "a row answered twice": (
        [SEVEN, prediction("gsm8k", "gsm8k:test:0", "7")],
        ("line 2", "'gsm8k:test:0' answered again, after line 1", '"sample"'),
    ),
    "a sample given twice": (
        [prediction("gsm8k", 0, "7", sample=3), prediction("gsm8k", 0, "8", sample=3)],
        ("line 2", "answered again"),
    ),
    "a prediction that is no text": (
        [SEVEN | {"prediction": 7}],
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
        (["select=facility"], "needs limit=N"),
        (["samples=3"], "not for a file of them"),
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
    path.write_text(json.dumps(SEVEN) + "\n")
    place = [] if any(word.startswith("data.root") for word in words) else [f"data.root={root}"]
    command = ["datasets", f"predictions={path}", f"out={tmp_path / 'o.json'}", *place, *words]
    assert main(command) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "o.json").exists()


def test_no_result_is_overwritten_and_a_set_that_is_not_there_is_named(evaluate, capsys, root):
    lines = [line | {"model": "a"} for line in right("hotpotqa")]
    assert evaluate(lines)[0] == 0
    assert evaluate([line | {"model": "b"} for line in lines])[0] == 2
    assert "holds the result of a, but this is b" in capsys.readouterr().err
    (root / "gsm8k" / "test.jsonl").unlink()
    assert evaluate(right("gsm8k"))[0] == 2
    assert "gsm8k/test.jsonl" in capsys.readouterr().err
