"""What ``experiments.data draw`` writes is what a run draws, and the counts are of its rows."""

import dataclasses
import json
import re
from collections import Counter

import pytest

from experiments.data import __main__ as data
from study.config.schema import Task
from study.system.files import sha256
from study.tasks.datasets.table import open_table
from tests.invariants.test_grpo import run, study
from tests.study.tasks.datasets import roots


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    base = tmp_path_factory.mktemp("drawn")
    roots.make(base / "root")
    words = [f"data.root={base / 'root'}", f"out={base / 'plan-c'}"]
    assert data.main(["prepare", "data=plan-c", *words]) == 0
    return base


def draw(folder, out, *words, steps=5, prompts=4, seed=0):
    sizes = [f"steps={steps}", f"prompts_per_step={prompts}", f"seed={seed}", f"out={out}"]
    assert data.main(["draw", f"path={folder}", *sizes, *words]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return lines, json.loads((out.parent / "info.json").read_text())


def test_a_run_of_the_same_settings_draws_the_same(prepared, tmp_path, cache):
    task = Task(name="mixed", path=str(prepared / "plan-c"), train_rows=1_000_000)
    outcome = run(dataclasses.replace(study(steps=3), task=task, seed=5), tmp_path / "run", cache)
    lines, _ = draw(prepared / "plan-c", tmp_path / "rows.jsonl", steps=3, prompts=2, seed=5)
    groups = [r for r in outcome.records if r["member"] == 0]
    groups.sort(key=lambda r: (r["step"], r["group"]))
    names = ("step", "dataset", "domain")
    for line, record in zip(lines, groups, strict=True):
        assert (line["id"], line["problem"]) == (record["item"], record["prompt"])
        assert [line[name] for name in names] == [record[name] for name in names]


def test_lines_are_of_the_form_that_the_source_has(prepared, tmp_path, capsys):
    lines, info = draw(prepared / "plan-c", tmp_path / "rows.jsonl")
    assert json.loads(capsys.readouterr().out) == info
    table = open_table(prepared / "plan-c")
    assert [line["step"] for line in lines] == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [5] * 4
    for line in lines:
        assert list(line) == ["step", "id", "dataset", "domain", "problem", "answer", "type"]
        item = table.by_id(line["id"])
        assert item is not None and line["problem"] == item.prompt
        assert line["type"] == line["domain"] == item.domain
        assert line["answer"] or not item.answerable
    golds = {line["id"]: line["answer"] for line in lines}
    solutions = {f"gsm8k:train:{row}": str(row + 5) for row in range(20)}
    drawn = [name for name in golds if name in solutions]
    assert drawn and all(golds[name] == solutions[name] for name in drawn)
    programs = [line["answer"] for line in lines if line["domain"] == "code"]
    assert programs and all("return" in program for program in programs)
    boxes = [line["answer"] for line in lines if line["dataset"] == "math"]
    assert boxes and all(re.fullmatch(r"\\frac\{\d+\}\{\d+\}", text) for text in boxes)


def test_the_counts_are_those_of_the_lines(prepared, tmp_path):
    folder, out = prepared / "plan-c", tmp_path / "rows.jsonl"
    lines, info = draw(folder, out, "datasets=humaneval,gsm8k", steps=20, prompts=3, seed=2)
    assert info["manifest_sha256"] == sha256(folder / "manifest.json")
    assert info["sha256"] == sha256(out)
    assert (info["rows"], info["steps"], info["prompts_per_step"], info["seed"]) == (60, 20, 3, 2)
    assert info["options"]["datasets"] == ["humaneval", "gsm8k"]
    assert set(info["datasets"]) == {"humaneval", "gsm8k"}
    for name, entry in info["datasets"].items():
        counts = Counter(line["id"] for line in lines if line["dataset"] == name)
        drawn = sum(counts.values())
        assert (entry["drawn"], entry["distinct"]) == (drawn, len(counts))
        assert entry["most_repeats"] == max(counts.values()) <= 4
        squares = sum(count**2 for count in counts.values())
        assert entry["effective"] == pytest.approx(drawn**2 / squares)
        assert entry["used_up_at"] is None
    domains = info["domains"]
    assert abs(domains["math"]["drawn"] - 60 * 4 / 7) < 1
    assert domains["math"]["target"] == pytest.approx(4 / 7)
    assert domains["math"]["share"] == domains["math"]["drawn"] / 60


def test_the_same_command_writes_the_same_bytes_and_another_seed_others(prepared, tmp_path):
    texts, out = [], tmp_path / "rows.jsonl"
    for seed in (1, 1, 2):
        draw(prepared / "plan-c", out, seed=seed)
        texts.append(out.read_bytes())
    assert texts[0] == texts[1] != texts[2]


def test_weights_are_typed_as_in_a_sweep(prepared, tmp_path):
    words = "task.options.domains={math:1,qa:1,code:2}"
    lines, info = draw(prepared / "plan-c", tmp_path / "rows.jsonl", words)
    assert Counter(line["domain"] for line in lines) == {"math": 5, "qa": 5, "code": 10}
    weights = {name: entry["weight"] for name, entry in info["domains"].items()}
    assert weights == {"math": 1, "qa": 1, "code": 2}


def test_a_preset_that_is_not_prepared_is_prepared_first(prepared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = ["steps=2", "prompts_per_step=4", "seed=0", "out=rows.jsonl"]
    words = ["data=plan-c", f"data.root={prepared / 'root'}", *sizes]
    assert data.main(["draw", *words]) == 0
    assert "prepared in data/plan-c first" in capsys.readouterr().err
    first = (tmp_path / "rows.jsonl").read_bytes()
    assert data.main(["draw", *words]) == 0
    assert (tmp_path / "rows.jsonl").read_bytes() == first
    assert capsys.readouterr().err == ""
    assert data.main(["draw", *words, "data.seed=3"]) == 2
    assert (
        "data/plan-c is already prepared, with other settings: data.seed=3"
        in capsys.readouterr().err
    )
    roots.make(tmp_path / "other")
    roots.lines(tmp_path / "other" / "gsm8k" / "train.jsonl", roots.gsm8k("other"))
    words[1] = f"data.root={tmp_path / 'other'}"
    assert data.main(["draw", *words]) == 2
    assert "gsm8k/train.jsonl has another sha256" in capsys.readouterr().err


def test_sets_of_a_draw_do_not_choose_what_is_prepared(prepared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = ["steps=2", "prompts_per_step=4", "out=rows.jsonl", "datasets=gsm8k"]
    assert data.main(["draw", "data=plan-c", f"data.root={prepared / 'root'}", *sizes]) == 0
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert {json.loads(line)["dataset"] for line in lines} == {"gsm8k"}
    whole, folder = open_table(prepared / "plan-c"), open_table(tmp_path / "data" / "plan-c")
    assert folder.counts == whole.counts and folder.manifest == whole.manifest


SIZES = ["steps=2", "prompts_per_step=4"]
WHOLE = ["out=rows.jsonl", *SIZES]


@pytest.mark.parametrize(
    "words, problem",
    [
        (SIZES, "draw needs out="),
        (["out=rows.jsonl", "prompts_per_step=4"], "needs steps="),
        (["out=rows.jsonl", "steps=2"], "needs prompts_per_step="),
        (["out=rows.jsonl", "steps=0", "prompts_per_step=4"], "steps=0 is not legal"),
        ([*WHOLE, "task.path=/nowhere"], "task.path= has no meaning with draw"),
        (["out=info.json", *SIZES], "is the name of the file of counts"),
        (["out=no/rows.jsonl", *SIZES], "there is no folder"),
        (["out=rows.jsonl", "steps=9999", "prompts_per_step=4"], "The run draws 39996 rows"),
        ([*WHOLE, "task.options.max_repeats=0"], "task.options.max_repeats=0 is not legal"),
        ([*WHOLE, "datasets=mmlu"], "has training rows of"),
    ],
)
def test_bad_input_is_one_paragraph_and_writes_nothing(
    prepared, tmp_path, monkeypatch, capsys, words, problem
):
    monkeypatch.chdir(tmp_path)
    assert data.main(["draw", f"path={prepared / 'plan-c'}", *words]) == 2
    printed = capsys.readouterr()
    assert problem in printed.err and not printed.out
    assert len(printed.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
