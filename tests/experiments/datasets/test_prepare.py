"""Both presets prepared from rows in our own words, leaks planted, runs killed."""

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pyarrow as pa
import pytest

from experiments.data import __main__ as data
from experiments.data import split
from experiments.data.verify import verify
from study.system import locks
from study.tasks.datasets import sets
from study.tasks.datasets.table import SPLITS, open_table
from study.tasks.where import data_folder
from tests.conftest import ROOT
from tests.study.tasks.datasets import roots
from tests.waiting import wait_for

SHARED = data_folder()


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """A set that has no file is not fetched."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


needs_rows = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no data folder {SHARED}")


def run(capsys, *words) -> dict:
    """The manifest that a command of experiments.data prints."""
    assert data.main([*words]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *words) -> str:
    assert data.main([*words]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    return printed.err


def frame(folder) -> list[dict]:
    with pa.memory_map(str(folder / "rows.arrow")) as file:
        return pa.ipc.open_file(file).read_all().to_pylist()


def digest(folder) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("preset", ["official", "plan-c"])
def test_a_preset_is_prepared_and_verified(preset, root, tmp_path, capsys):
    out = tmp_path / "rows"
    words = [f"data={preset}", f"data.root={root}", f"out={out}"]
    manifest = run(capsys, "prepare", *words)
    assert run(capsys, "verify", *words) == manifest == run(capsys, "verify", f"path={out}")
    rows = frame(out)
    keys = [(row["split"], row["dataset"], row["row"]) for row in rows]
    assert keys == sorted(keys) and len(keys) == len(set(keys)) == manifest["rows"]["n"]
    tally = Counter((row["dataset"], row["split"]) for row in rows)
    assert manifest["counts"] == {
        name: {split: tally[name, split] for split in SPLITS} for name in manifest["datasets"]
    }
    splits = {}
    for row in rows:
        splits.setdefault(row["group_key"], set()).add(row["split"])
    assert all(len(names) == 1 for names in splits.values())
    assert set(tally) >= {(name, "test") for name in manifest["datasets"]}
    index = json.loads((out / "test" / "test_index.json").read_text())["datasets"]
    for name, entry in index.items():
        short = [json.loads(line) for line in (out / entry["file"]).read_text().splitlines()]
        assert [row["id"] for row in short] == [
            row["id"] for row in rows if (row["dataset"], row["split"]) == (name, "test")
        ]
        assert all({"problem", "answer", "type"} <= row.keys() for row in short)
    for name, entry in manifest["datasets"].items():
        assert entry["licence"] and entry["revision"] and entry["prompts"]
        for file in entry["files"].values():
            assert file["sha256"] == hashlib.sha256((root / file["name"]).read_bytes()).hexdigest()
        assert (entry["cut_from"] is None) == (preset == "official")
        read = sum(entry["rows"][split] for split in SPLITS) + sum(entry["left_out"].values())
        assert read == entry["rows"]["read"], name


def test_official_tests_on_official_rows(root, tmp_path, capsys):
    manifest = run(capsys, "prepare", "data=official", f"data.root={root}", f"out={tmp_path / 'o'}")
    counts = manifest["counts"]
    sizes = {"gsm8k": 20, "math": 20, "squad2": 24, "hotpotqa": 20, "humaneval": 12, "mbpp": 4}
    assert {name: splits["test"] for name, splits in counts.items()} == sizes
    assert counts["humaneval"] == {"test": 12, "train": 0, "validation": 0}
    assert counts["mbpp"]["train"] + counts["mbpp"]["validation"] == 10
    tasks = [row["id"] for row in frame(tmp_path / "o") if row["dataset"] == "mbpp"]
    assert {name.split(":")[1] for name in tasks} == {"prompt", "test", "validation", "train"}


def test_plan_c_cuts_the_train_file_or_what_is_there(root, tmp_path, capsys):
    words = ["data=plan-c", "datasets=gsm8k,humaneval,mbpp", f"data.root={root}"]
    manifest = run(capsys, "prepare", *words, f"out={tmp_path / 'rows'}")
    assert manifest["counts"] == {
        "gsm8k": {"test": 3, "train": 17, "validation": 0},
        "humaneval": {"test": 2, "train": 10, "validation": 0},
        "mbpp": {"test": 2, "train": 9, "validation": 0},
    }
    cuts = {name: entry["cut_from"] for name, entry in manifest["datasets"].items()}
    assert cuts == {"gsm8k": "train", "humaneval": "test", "mbpp": "all"}
    assert manifest["datasets"]["mbpp"]["left_out"] == {"not_sanitised": 3}


def test_few_short_train_rows_are_chosen_and_the_others_counted(root, tmp_path, capsys):
    words = ["data=small-real", "datasets=gsm8k,mbpp", f"data.root={root}"]
    words += ["data.choose=4", f"out={tmp_path / 'rows'}"]
    whole = run(capsys, "prepare", "data=plan-c", *words[1:3], f"out={tmp_path / 'whole'}")
    lengths = [len(row["prompt"]) for row in frame(tmp_path / "whole") if row["split"] == "train"]
    longest = sorted(lengths)[len(lengths) // 2]
    manifest = run(capsys, "prepare", *words, f"data.max_prompt_chars={longest}")
    assert run(capsys, "verify", f"path={tmp_path / 'rows'}") == manifest
    train = [row for row in frame(tmp_path / "rows") if row["split"] == "train"]
    assert max(Counter(row["dataset"] for row in train).values()) == 4
    assert all(len(row["prompt"]) <= longest for row in train)
    not_chosen = 0
    for name in ("gsm8k", "mbpp"):
        left_out = Counter(manifest["datasets"][name]["left_out"])
        lost = left_out["too_long"] + left_out["not_chosen"]
        before = whole["counts"][name]
        assert manifest["counts"][name] == {**before, "train": before["train"] - lost}
        not_chosen += left_out["not_chosen"]
    assert not_chosen > 0


@pytest.fixture
def copy(root, tmp_path):
    """A data folder of one's own to plant rows in."""
    folder = tmp_path / "copy"
    roots.make(folder)
    return folder


def test_train_copies_of_test_rows_are_left_out_and_counted(copy, tmp_path, capsys):
    test, train = roots.gsm8k("test"), roots.gsm8k("train")
    near = test[1] | {"question": test[1]["question"].lower().replace("?", " ?!")}
    other = test[2] | {"question": test[2]["question"].replace("packs", "hides")}
    numbers = {"question": test[3]["question"].replace("6", "8"), "answer": "#### 999"}
    roots.lines(copy / "gsm8k" / "train.jsonl", [*train, test[0], near, other, numbers, train[4]])
    words = ["data=official", "datasets=gsm8k", f"data.root={copy}", f"out={tmp_path / 'rows'}"]
    manifest = run(capsys, "prepare", *words, "data.validation_share=0")
    kept = {row["row"] for row in frame(tmp_path / "rows") if row["split"] == "train"}
    assert kept == {*range(20), 23}
    assert manifest["datasets"]["gsm8k"]["left_out"] == {"near_duplicates": 3, "repeated": 1}
    likes = {pair["left_out"]: pair["like"] for pair in manifest["near_duplicates"]["examples"]}
    assert likes == {f"gsm8k:train:{20 + row}": f"gsm8k:test:{row}" for row in range(3)}
    run(capsys, "verify", *words)


def test_a_passage_and_titles_of_the_test_rows_are_not_trained_on(copy, tmp_path, capsys):
    squad, dev = roots.squad2("train"), roots.squad2("dev")
    moved = json.loads(json.dumps(dev["data"][0]["paragraphs"][0]))
    for place, question in enumerate(moved["qas"]):
        question |= {"id": f"moved-{place}", "question": f"What else is told, number {place}?"}
    squad["data"].append({"title": "Another", "paragraphs": [moved]})
    roots.whole(copy / "squad2" / "train-v2.0.json", squad)
    hotpot = roots.hotpotqa("train")
    hotpot[0]["supporting_facts"] = roots.hotpotqa("dev")[0]["supporting_facts"]
    roots.whole(copy / "hotpotqa" / "hotpot_train_v1.1.json", hotpot)
    words = ["data=official", "datasets=squad2,hotpotqa", f"data.root={copy}"]
    manifest = run(capsys, "prepare", *words, f"out={tmp_path / 'rows'}")
    assert manifest["datasets"]["squad2"]["left_out"] == {"context_in_test": 2}
    assert manifest["datasets"]["hotpotqa"]["left_out"] == {"group_in_test": 1}


def test_an_own_id_that_a_train_row_repeats_is_the_test_rows(copy, tmp_path, capsys):
    squad = roots.squad2("train")
    squad["data"][1]["paragraphs"][0]["qas"][1]["id"] = "dev-0-0-a"
    roots.whole(copy / "squad2" / "train-v2.0.json", squad)
    words = ["data=official", "datasets=squad2", f"data.root={copy}", f"out={tmp_path / 'rows'}"]
    run(capsys, "prepare", *words)
    assert sum(row["alias"] == "dev-0-0-a" for row in frame(tmp_path / "rows")) == 2
    assert open_table(tmp_path / "rows").by_id("dev-0-0-a").id == "squad2:dev:0"


def test_a_row_stays_that_repeats_only_one_that_is_left_out(copy, tmp_path, capsys):
    dev, train = roots.hotpotqa("dev"), roots.hotpotqa("train")
    train[0] |= {"supporting_facts": dev[0]["supporting_facts"], "answer": "the same"}
    train[1] |= {"question": f"{train[0]['question']} Please", "answer": "the same"}
    roots.whole(copy / "hotpotqa" / "hotpot_train_v1.1.json", train)
    groups = ("hotpotqa:dev Ada | dev apples", "hotpotqa:train Bo | train boats")
    seed = next(
        n for n in range(99) if split.rank(groups[0], n) < 2**63 <= split.rank(groups[1], n)
    )
    words = ["data=official", "datasets=hotpotqa", f"data.root={copy}", f"out={tmp_path / 'rows'}"]
    words += ["data.validation_share=0.5", f"data.seed={seed}"]
    manifest = run(capsys, "prepare", *words)
    assert manifest["datasets"]["hotpotqa"]["left_out"] == {"group_in_test": 1}
    assert run(capsys, "verify", *words) == manifest


def test_plan_c_keeps_near_duplicates_on_one_side(copy, tmp_path, capsys):
    rows = roots.gsm8k("train")
    again = [row | {"question": row["question"].replace("many", "MANY")} for row in rows]
    roots.lines(copy / "gsm8k" / "train.jsonl", [*rows, *again])
    words = ["data=plan-c", "datasets=gsm8k", f"data.root={copy}", f"out={tmp_path / 'rows'}"]
    manifest = run(capsys, "prepare", *words)
    assert manifest["counts"]["gsm8k"]["test"] == 6
    assert manifest["near_duplicates"]["joined"] == 0
    again = [row | {"question": f"{row['question']} Tell."} for row in rows]
    roots.lines(copy / "gsm8k" / "train.jsonl", [*rows, *again])
    manifest = run(capsys, "prepare", *words)
    assert manifest["near_duplicates"]["joined"] == 20
    by_row = {row["row"]: row["split"] for row in frame(tmp_path / "rows")}
    assert all(by_row[row] == by_row[row + 20] for row in range(20) if row + 20 in by_row)


BROKEN = {
    "unknown set": (["datasets=gsm9k"], "Did you mean gsm8k?"),
    "unknown preset": (["data=plan-d"], "Did you mean plan-c?"),
    "unknown key": (["data.rood=x"], "The settings do not fit"),
    "wrong value": (["data.validation_share=2"], "data.validation_share=2.0 is not legal"),
    "no such domain": (["data.domains.maths=5"], "data.domains=maths is not legal: it must be one"),
    "no weight": (
        ["data.domains={math: 0, qa: 0, code: 0}"],
        "a weight above 0 for one domain or more",
    ),
    "half a cut": (["data.cut=[5]"], "data.cut=[5] is not legal"),
    "no folder": (["data.root=/nowhere"], "data.root=/nowhere is not a folder"),
    "both": (["task=prompts"], "task= and data= name different kinds of rows"),
    "a task's setting": (["task.path=x"], "Settings start with data."),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_prepared_is_said(case, root, tmp_path, capsys):
    words, said = BROKEN[case]
    usual = {"data": "data=official", "data.root": f"data.root={root}"}
    typed = {word.partition("=")[0]: word for word in words}
    out = tmp_path / "rows"
    assert said in refused(capsys, "prepare", *(usual | typed).values(), f"out={out}")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_row_leaves_nothing_half_written(copy, tmp_path, capsys):
    path = copy / "gsm8k" / "train.jsonl"
    path.write_text(path.read_text() + '{"question": "\\ud800", "answer": "#### 1"}\n')
    words = ["data=official", "datasets=gsm8k", f"data.root={copy}", f"out={tmp_path / 'rows'}"]
    before = set(tmp_path.iterdir())
    assert f"{path}, line 21: found a text that is not Unicode" in refused(
        capsys, "prepare", *words
    )
    path.unlink()
    (copy / "gsm8k" / "test.jsonl").unlink()
    assert "holds no file of gsm8k" in refused(capsys, "prepare", *words)
    roots.lines(path, roots.gsm8k("train"))
    assert "has no test split of gsm8k" in refused(capsys, "prepare", *words)
    assert set(tmp_path.iterdir()) == before


def test_what_is_no_prepared_folder_is_not_overwritten(root, tmp_path, capsys):
    words = ["data=official", "datasets=mbpp", f"data.root={root}", f"out={tmp_path}"]
    (tmp_path / "mine.txt").write_text("mine")
    assert "is not a prepared folder" in refused(capsys, "prepare", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_place_that_cannot_be_written_is_said(root, tmp_path, capsys):
    (tmp_path / "file").touch()
    words = ["data=official", "datasets=mbpp", f"data.root={root}"]
    said = refused(capsys, "prepare", *words, f"out={tmp_path / 'file' / 'rows'}")
    assert "cannot be written" in said and said.count("\n") == 1


def test_two_at_once_do_not_meet(root, tmp_path, capsys):
    words = ["data=official", "datasets=mbpp", f"data.root={root}", f"out={tmp_path / 'rows'}"]
    with locks.held(tmp_path / ".rows.lock"):
        assert "is being prepared by another process" in refused(capsys, "prepare", *words)
    run(capsys, "prepare", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


DAMAGE = {
    "rows": ("rows.arrow", "rows.arrow has another sha256"),
    "test": ("test/gsm8k_test.jsonl", "test/gsm8k_test.jsonl has another sha256"),
    "counts": ("manifest.json", "gsm8k has 20 test rows and not 21"),
    "keys": ("manifest.json", "manifest.json is not whole (KeyError('sha256')"),
    "sets": ("manifest.json", "manifest.json is not whole (KeyError('rows')"),
}


@pytest.fixture(scope="module")
def prepared(root, tmp_path_factory):
    """GSM8K as it is prepared from the small rows."""
    out = tmp_path_factory.mktemp("prepared") / "rows"
    words = ["data=official", f"data.root={root}", f"out={out}", "datasets=gsm8k"]
    assert data.main(["prepare", *words]) == 0
    return out


@pytest.mark.parametrize("case", DAMAGE)
def test_what_was_changed_is_said(case, root, prepared, tmp_path, capsys):
    out = shutil.copytree(prepared, tmp_path / "rows")
    words = ["data=official", f"data.root={root}", f"out={out}"]
    file, said = DAMAGE[case]
    manifest = json.loads((out / "manifest.json").read_text())
    if case == "counts":
        manifest["counts"]["gsm8k"]["test"] = 21
    if case == "keys":
        del manifest["rows"]["sha256"]
    if case == "sets":
        del manifest["datasets"]["gsm8k"]["rows"]
    if file == "manifest.json":
        (out / file).write_text(json.dumps(manifest))
    else:
        content = (out / file).read_bytes()
        changed = content.replace(b"boats", b"goats", 1)
        assert changed != content
        (out / file).write_bytes(changed)
    assert said in refused(capsys, "verify", *words)
    if case == "rows":
        assert "it has no math" in refused(capsys, "verify", *words, "datasets=gsm8k,math")


def test_the_remedy_makes_the_same_folder_again(root, tmp_path, capsys):
    out = tmp_path / "rows of mine"
    typed = ["datasets=gsm8k,mbpp", f"data.root={root}", "data.cut=[2,1]"]
    manifest = run(capsys, "prepare", "data=plan-c", *typed, f"out={out}")
    assert str(root) not in json.dumps(manifest)
    (out / "test" / "gsm8k_test.jsonl").unlink()
    said = refused(capsys, "verify", f"path={out}", f"data.root={root}")
    words = shlex.split(said.partition("Type: python -m experiments.data ")[2])
    assert run(capsys, *words) == manifest == run(capsys, "verify", f"path={out}")


def test_a_fault_of_ours_is_not_told_as_a_damaged_manifest(root, tmp_path, capsys, monkeypatch):
    words = ["data=official", "datasets=mbpp", f"data.root={root}", f"out={tmp_path / 'rows'}"]
    run(capsys, "prepare", *words)
    monkeypatch.setattr("experiments.data.near.crossing", lambda sides: sides["none"])
    with pytest.raises(KeyError, match="none"):
        verify(tmp_path / "rows")


def test_a_folder_without_a_manifest_is_made_of_the_preset_that_names_it(tmp_path, capsys):
    (tmp_path / "plan-c").mkdir()
    said = refused(capsys, "verify", f"path={tmp_path / 'plan-c'}")
    assert f"prepare data=plan-c out={tmp_path / 'plan-c'}" in said
    (tmp_path / "mine").mkdir()
    said = refused(capsys, "verify", f"path={tmp_path / 'mine'}")
    assert "prepare data=PRESET out=" in said and "(PRESET: official, plan-c, small-real)" in said


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param((0.0, 0.05), id="twice"),
        pytest.param((0.0, 0.02, 0.05, 0.1, 0.2), marks=pytest.mark.long, id="often"),
    ],
)
def test_a_killed_run_leaves_what_the_next_one_mends(root, tmp_path, capsys, waits):
    """Killed at many places; the folder is whole or not there, and the same command ends it."""
    words = ["data=official", f"data.root={root}"]
    run(capsys, "prepare", *words, f"out={tmp_path / 'whole'}")
    command = [sys.executable, "-m", "experiments.data", "prepare", *words]
    command.append(f"out={tmp_path / 'rows'}")
    killed = 0
    for wait in waits:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        partial = tmp_path / ".rows.partial"
        wait_for(lambda run=process, file=partial: run.poll() is not None or file.exists())
        time.sleep(wait)  # any place will do
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        if (tmp_path / "rows").exists():
            assert digest(tmp_path / "rows") == digest(tmp_path / "whole")
    assert killed
    run(capsys, "prepare", *words, f"out={tmp_path / 'rows'}")
    assert digest(tmp_path / "rows") == digest(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"rows", "whole"}


def test_a_closed_pipe_ends_quietly(root, tmp_path):
    words = f"prepare data=official data.root={root} out={tmp_path / 'rows'}"
    done = subprocess.run(
        f"{sys.executable} -m experiments.data {words} | true",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert done.returncode == 0 and done.stderr == "" and (tmp_path / "rows").is_dir()


@pytest.mark.long
@needs_rows
def test_real_rows_are_cut_as_the_source_counts_them(tmp_path, capsys):
    words = ["data=plan-c", "datasets=gsm8k,humaneval,mbpp", f"data.root={SHARED}"]
    counts = run(capsys, "prepare", *words, f"out={tmp_path / 'rows'}")["counts"].items()
    cut = {name: (splits["train"], splits["test"]) for name, splits in counts}
    assert cut == {"gsm8k": (6227, 1246), "humaneval": (137, 27), "mbpp": (356, 71)}
    table = open_table(tmp_path / "rows")
    tasks = {item.meta["task_id"] for split in SPLITS for item in table.rows(split, "mbpp")}
    assert len(tasks) == 427


@pytest.mark.long
@needs_rows
def test_the_reported_rows_of_the_literature_are_all_there(tmp_path, capsys):
    words = ["data=official", "datasets=gsm8k,math500,humaneval,mbpp", f"data.root={SHARED}"]
    manifest = run(capsys, "prepare", *words, f"out={tmp_path / 'rows'}")
    tests = {name: splits["test"] for name, splits in manifest["counts"].items()}
    assert tests == {"gsm8k": 1319, "math500": 500, "humaneval": 164, "mbpp": 500}
    assert set(tests) <= set(sets.SETS)
