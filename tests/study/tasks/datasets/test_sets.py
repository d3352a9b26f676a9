"""Every set from its files: rows, faults of files, and the table that serves them."""

import gzip
import json
import os
import pickle
import random
import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.data.parts import part
from experiments.data.prepare import prepare
from study.errors import UserError
from study.rows import prompt_id
from study.tasks import files
from study.tasks.datasets import prompt, sets
from study.tasks.datasets.code import called
from study.tasks.datasets.fields import address
from study.tasks.datasets.preset import load_data
from study.tasks.datasets.sets import SETS
from study.tasks.datasets.table import SPLITS, open_table
from study.tasks.where import data_folder
from tests.conftest import python
from tests.study.tasks.datasets import roots

SHARED = data_folder()
needs_rows = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no data folder {SHARED}")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return roots.make(tmp_path_factory.mktemp("root"))


def read(name, folder, split):
    return [item for _, item in sets.read(name, split, sets.located(name, folder))]


@pytest.mark.parametrize("name", SETS)
def test_every_set_is_read_in_its_official_form(name, root):
    items = sets.reported(name, root)
    ids = [f"{name}:{item.split}:{row}" for row, item in enumerate(items)]
    assert [item.id for item in items] == ids
    dataset = SETS[name]
    assert {item.split for item in items} <= {*dataset.test, *dataset.train}
    for item in items:
        assert item.dataset == name and item.domain == dataset.domain
        assert item.question.strip() in item.prompt and item.group_key.startswith(f"{name}:")
        assert bool(item.answers) == (item.domain != "code" and item.answerable)
        assert (item.domain == "code") == bool(item.tests and item.reference and item.entry_point)


def test_gold_answers_and_own_ids(root):
    first = {name: sets.reported(name, root)[0] for name in SETS}
    assert first["gsm8k"].answers == ("12",)
    assert first["math"].answers == ("\\frac{0}{2}",)
    assert first["math500"].answers == ("1/2",)
    assert first["squad2"].answers == ("Ada",) and first["squad2"].context in first["squad2"].prompt
    assert "dev Ada: Ada came. Twice.\n\ndev apples: They came." in first["hotpotqa"].context
    assert first["mmlu"].answers == ("A",) and first["mmlu"].choices[2] == ("C", "Ada")
    assert first["commonsenseqa"].choices[4] == ("E", "E eggs")
    assert first["mbpp"].entry_point == "weigh_apples"
    assert first["mbpp"].tests in first["mbpp"].prompt
    aliases = {name: item.alias for name, item in first.items() if item.alias}
    assert aliases == {
        "math500": "test/0.json", "squad2": "dev-0-0-a", "hotpotqa": "dev0000",
        "humaneval": "HumanEval/0", "commonsenseqa": "c000",
    }  # fmt: skip


def test_groups_are_articles_titles_and_functions(root):
    groups = {name: [item.group_key for item in sets.reported(name, root)] for name in SETS}
    assert Counter(groups["squad2"]) == {f"squad2:dev_{thing}": 4 for thing in roots.THINGS[10:16]}
    assert groups["hotpotqa"][0] == "hotpotqa:dev Ada | dev apples"
    assert groups["mbpp"][0] == "mbpp:weigh_apples"
    assert groups["humaneval"][1] == "humaneval:count_boats"


def test_mbpp_splits_are_its_papers_and_every_set_has_a_prompt_file(root):
    tally = Counter(item.split for item in sets.reported("mbpp", root))
    assert tally == {"prompt": 3, "test": 4, "validation": 3, "train": 4}
    program = "class Pair: pass\ndef helper(x): return x\ndef solve(a): return helper(a)"
    assert called(program, ["assert set(solve([Pair()])) == helper(1)"], "f") == "solve"
    for name in SETS:
        for file, digest in prompt.hashes(name).items():
            assert re.fullmatch(r"[0-9a-f]{64}", digest) and file.startswith(name)


def test_braces_fill_no_slot_and_ten_choices_are_all_taken(tmp_path):
    row = {"question": "What is {context} or {question}?", "answer": "#### 1"}
    roots.lines(tmp_path / "gsm8k" / "test.jsonl", [row])
    (item,) = sets.reported("gsm8k", tmp_path)
    assert item.prompt.startswith("What is {context} or {question}?\n")
    row = CHOICE | {"choices": [str(number) for number in range(10)], "answer": 9}
    roots.lines(tmp_path / "mmlu" / "test.jsonl", [row])
    (item,) = sets.reported("mmlu", tmp_path)
    assert len(item.choices) == 10 and item.answers == ("J",) and "J. 9" in item.prompt


GSM8K = {"question": "How many?", "answer": "#### 3"}
SQUAD = {"question": "Who?", "id": "a", "answers": [{"text": "Bo"}], "is_impossible": False}
HOTPOT = roots.hotpotqa("dev", 1)[0]
MBPP = roots.mbpp()[0]
CHOICE = {"question": "Who?", "subject": "s", "choices": ["a", "b"], "answer": 0}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"
TORN = gzip.compress((json.dumps(GSM8K) + "\n").encode() * 2000)[:-9]
SQUADS, HOTPOTS = "squad2/dev-v2.0.json", "hotpotqa/hotpot_dev_distractor_v1.json"


def packed(*rows):
    return json.dumps(rows).encode()


WRONG = {
    "LFS pointer": ("gsm8k/test.jsonl", POINTER, "line 1: found a Git LFS pointer"),
    "LFS pointer as Parquet": ("mmlu/mmlu_sample.parquet", POINTER, "a Git LFS pointer"),
    "wrong columns": ("gsm8k/test.jsonl", [GSM8K, {"q": 1}], "line 2: found no field 'que"),
    "other encoding": ("gsm8k/test.jsonl", '{"question": "é"}'.encode("latin-1"), "line 1"),
    "UTF-16": ("gsm8k/test.jsonl", json.dumps(GSM8K).encode("utf-16"), "line 1: found a l"),
    "torn line": ("gsm8k/test.jsonl", [GSM8K, GSM8K, '{"question": "H'], "line 3: found no"),
    "torn .gz": ("gsm8k/test.jsonl.gz", TORN, "cannot be read as UTF-8 JSONL after row 2000: "),
    "gold without an answer": ("gsm8k/test.jsonl", [GSM8K | {"answer": "3"}], "line 1: fo"),
    "a number as text": ("gsm8k/test.jsonl", [GSM8K | {"question": 3}], "question that is 3"),
    "no rows": ("gsm8k/test.jsonl", b"\n", "holds no rows of gsm8k"),
    "null": ("gsm8k/test.jsonl", [GSM8K | {"answer": None}], "line 1: found no field 'answer'"),
    "no object": ("gsm8k/test.jsonl", ["[]"], "line 1: found []"),
    "too deep": ("gsm8k/test.jsonl", ["[" * 200_000], "line 1: found no JSON"),
    "no box": ("math/test.jsonl", [{"problem": "x", "solution": "y"}], "a gold without an a"),
    "SQuAD torn": (SQUADS, b'{"data": [', "no whole JSON"),
    "SQuAD without gold": (SQUADS, [SQUAD | {"answers": []}], "row 1: found"),
    "SQuAD with both": (SQUADS, [SQUAD | {"is_impossible": True}], "row 1"),
    "the id again": (SQUADS, [SQUAD, SQUAD], "row 2: found the id a again"),
    "Hotpot torn": (HOTPOTS, packed(HOTPOT, HOTPOT)[:-9], "row 2: found no JSON"),
    "Hotpot no list": (HOTPOTS, b'{"a": 1}', "row 1"),
    "Hotpot without context": (
        HOTPOTS,
        packed({**HOTPOT, "context": None}),
        "row 1: found no field 'context'",
    ),
    "Hotpot without gold": (HOTPOTS, packed({**HOTPOT, "answer": " "}), "row 1: found a gold with"),
    "task twice": ("mbpp/mbpp.jsonl", [MBPP, MBPP], "line 2: found the id 1 again"),
    "task out of range": ("mbpp/mbpp.jsonl", [MBPP | {"task_id": 975}], "task_id 975"),
    "no test": ("mbpp/mbpp.jsonl", [MBPP | {"test_list": []}], "test_list that is empty"),
    "no Python": ("mbpp/mbpp.jsonl", [MBPP | {"code": "def ("}], "is no Python"),
    "tests of nothing": ("mbpp/mbpp.jsonl", [MBPP | {"test_list": ["assert 1"]}], "call no"),
    "no such choice": ("mmlu/test.jsonl", [CHOICE | {"answer": 7}], "a gold without an answer"),
    "a list as gold": (
        "mmlu/test.jsonl",
        [CHOICE | {"answer": ["A"]}],
        "['A'] is not one of its ch",
    ),
    "too many choices": (
        "mmlu/test.jsonl",
        [CHOICE | {"choices": [str(number) for number in range(27)]}],
        "the choices",
    ),
    "labels without choices": (
        "mmlu/test.jsonl",
        [CHOICE | {"choices": {"label": ["A", "B", "C"], "text": ["x", "y"]}}],
        "line 1: found the choices",
    ),
    "gold that is no number": (
        "gsm8k/test.jsonl",
        [GSM8K, GSM8K | {"answer": "#### many"}],
        "line 2: found a gold without an answer",
    ),
    "two lists": (HOTPOTS, packed(HOTPOT) + b"\n" + packed(HOTPOT), "after the end of the list"),
    "text after no rows": (HOTPOTS, b"[] garbage", "row 1: found no JSON: 'garbage' after the end"),
    "one choice": ("mmlu/test.jsonl", [CHOICE | {"choices": ["a"]}], "the choices"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_row_is_refused_with_file_and_row(case, tmp_path):
    file, content, message = WRONG[case]
    path = tmp_path / file
    path.parent.mkdir()
    if isinstance(content, list) and file.endswith(".json"):
        qas = [{"context": "Bo.", "qas": content}]
        content = json.dumps({"data": [{"title": "t", "paragraphs": qas}]}).encode()
    if isinstance(content, list):
        rows = [row if isinstance(row, str) else json.dumps(row) for row in content]
        content = "\n".join(rows).encode()
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        sets.reported(file.partition("/")[0], tmp_path)
    assert message in str(caught.value) and str(path) in str(caught.value)


def test_no_file_and_no_test_split_are_said(root, tmp_path):
    with pytest.raises(
        UserError, match=r"holds no file of gsm8k. Expected is one of gsm8k/train.jsonl"
    ):
        sets.located("gsm8k", tmp_path)
    roots.lines(tmp_path / "gsm8k" / "train.jsonl", [GSM8K])
    with pytest.raises(UserError, match="has no test split of gsm8k: none of gsm8k"):
        sets.reported("gsm8k", tmp_path)
    with pytest.raises(UserError, match="it must be one of gsm8k, math"):
        sets.source("gsm9k")


def test_squad_reads_one_row_a_question_too(tmp_path):
    common = {"title": "t", "context": "Bo sat."}
    rows = [
        {"id": "a", "question": "Who?", "is_impossible": False, "answers": ["Bo", "Bo"], **common},
        {"id": "b", "question": "Why?", "is_impossible": True, "answers": [], **common},
    ]
    (tmp_path / "squad2").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "squad2" / "dev_half.parquet")
    first, second = sets.reported("squad2", tmp_path)
    assert first.answers == ("Bo",) and first.group_key == "squad2:t"
    assert second.answers == () and not second.answerable


def test_paragraphs_in_a_file_of_their_own_are_found_by_the_question(tmp_path):
    full, bare = roots.hotpotqa("dev", 2)
    titles, sentences = zip(*full["context"], strict=True)
    facts = {"title": [title for title, _ in full["supporting_facts"]], "sent_id": [0, 1]}
    context = {"title": list(titles), "sentences": list(sentences)}
    keys = ("question", "answer", "type")
    simple = [{key: row[key] for key in keys} for row in (full, bare)]
    roots.lines(tmp_path / "hotpotqa" / "dev_simplified.jsonl.gz", simple)
    roots.lines(
        tmp_path / "hotpotqa" / "dev_distractor_meve.jsonl",
        [simple[0] | {"supporting_facts": facts, "context": context}],
    )
    first, second = sets.reported("hotpotqa", tmp_path)
    assert first.group_key == "hotpotqa:dev Ada | dev apples" and "Ada came. Twice." in first.prompt
    assert second.context is None and "Passages" not in second.prompt
    assert second.group_key == f"hotpotqa:{address(bare['question'])}"


VALUES = st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists, max_leaves=5)


@settings(max_examples=50)
@given(st.lists(VALUES, max_size=6), st.integers(1, 9))
def test_a_list_is_read_in_pieces_of_any_size(tmp_path_factory, values, size):
    path = tmp_path_factory.getbasetemp() / "list.json"
    text = json.dumps(values, indent=size % 3 or None)
    path.write_text(text + " \n" * (size % 4), encoding="utf-8")
    before, files.CHUNK = files.CHUNK, size
    try:
        assert [value for _, value in files.elements(path)] == values
        path.write_text(text + "\n" * size + "]", encoding="utf-8")
        with pytest.raises(UserError, match="after the end of the list"):
            list(files.elements(path))
    finally:
        files.CHUNK = before


@needs_rows
@pytest.mark.parametrize(
    ("name", "rows"),
    {
        "gsm8k": 1319, "math": 5000, "math500": 500, "squad2": 6078, "hotpotqa": 7405,
        "humaneval": 164, "mbpp": 974, "mmlu": 1425, "commonsenseqa": 1221,
    }.items(),
)  # fmt: skip
def test_real_rows_are_all_of_their_form(name, rows):
    items = sets.reported(name, SHARED)
    assert len(items) == len({item.id for item in items}) == rows
    if name == "hotpotqa":
        assert sum(item.context is not None for item in items) == 100
    if name == "squad2":
        assert sum(not item.answerable for item in items) == 3168
    if name == "math500":
        whole = {item.question: item.answers for item in sets.reported("math", SHARED)}
        assert all(whole[item.question] == item.answers for item in items)


@pytest.fixture(scope="module")
def folder(root, tmp_path_factory):
    words = [f"data.root={root}", "data.validation_share=0.3"]
    data = load_data("official", words, list(sets.SETS))
    out = tmp_path_factory.mktemp("out") / "rows"
    prepare([part(name, data) for name in data.datasets], data, out)
    return out


def official(root):
    """Every item of every file, by id."""
    items = {}
    for name, dataset in sets.SETS.items():
        paths = sets.located(name, root)
        for split in dataset.files:
            if split in paths:
                items |= {item.id: item for _, item in sets.read(name, split, paths)}
    return items


def test_items_come_back_as_they_were_read(folder, root):
    table, items = open_table(folder), official(root)
    assert len(table) == sum(sum(names.values()) for names in table.counts.values()) > 100
    for place in range(len(table)):
        item = table.at(place)
        assert item == items[item.id] and item.meta == items[item.id].meta
        assert table.place(item.id) == place
        assert table.place_of_prompt(prompt_id(item.prompt)) == place
        if item.alias:
            assert table.by_id(item.alias) == item
    reported = {item.id for name in sets.SETS for item in sets.reported(name, root)}
    tests = {table.at(place).id for place in range(len(table)) if table.split_of(place) == "test"}
    assert tests == {name for name in reported if "mbpp" not in name or ":test:" in name}


def test_rows_of_a_set_in_a_split(folder):
    table = open_table(folder)
    for split in SPLITS:
        for name, number in table.counts[split].items():
            rows = table.rows(split, name)
            assert len(rows) == number == len(list(rows))
            assert {item.dataset for item in rows} == {name}
            indices = [int(item.id.rpartition(":")[2]) for item in rows]
            assert indices == sorted(indices)
            assert rows[-1] == list(rows)[-1] and rows[1:3] == list(rows)[1:3]
            with pytest.raises(IndexError):
                rows[number]
    assert len(table.rows("train", "humaneval")) == 0
    assert len(table.counts["validation"]) > 2


@pytest.mark.parametrize(
    "name",
    [
        *("", "gsm8k", "gsm8k:test", "gsm8k:test:999", "gsm8k:dev:0", "x:test:0", "HumanEval/99"),
        *("gsm8k:test:-1", "gsm8k:test:\u0663", "gsm8k:test:00", "gsm8k:test:" + "9" * 5000),
    ],
)
def test_an_unknown_id_is_not_there(folder, name):
    assert open_table(folder).by_id(name) is None


def test_an_unknown_prompt_is_not_there(folder):
    assert open_table(folder).place_of_prompt(prompt_id("nobody asked")) is None


def test_a_table_pickles_as_its_path_and_forks(folder):
    table = open_table(folder)
    packed = pickle.dumps(table)
    assert len(packed) < 500 and pickle.loads(packed).at(3) == table.at(3)
    child = os.fork()
    if not child:
        os._exit(0 if table.at(5) == open_table(folder).at(5) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest", "format", "counts"])
def test_a_folder_that_is_not_whole_is_refused(folder, tmp_path, damage):
    manifest = json.loads((folder / "manifest.json").read_text())
    rows = (folder / "rows.arrow").read_bytes()
    if damage == "format":
        manifest["format"] = 99
    if damage == "counts":
        manifest["datasets"]["gsm8k"]["rows"]["train"] += 1
    if damage != "manifest":
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    if damage != "gone":
        half = random.Random(0).randrange(len(rows))
        (tmp_path / "rows.arrow").write_bytes(rows[:half] if damage == "cut" else rows)
    with pytest.raises(UserError, match=r"experiments\.data prepare"):
        open_table(tmp_path)


READ_ALL = """
import random, sys
from pathlib import Path
from study.tasks.datasets.table import open_table

def mine():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

table = open_table(sys.argv[1])
table.at(0)
before, most = mine(), 0
for place in random.Random(0).sample(range(len(table)), len(table)):
    table.at(place)
    most = max(most, mine())
print(most - before)
"""


@pytest.mark.alone
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc")
def test_a_process_that_has_read_all_rows_does_not_hold_them(tmp_path):
    """Rows of 90 MB, in a process of their own."""
    rows = roots.hotpotqa("dev", 20)
    many = []
    for number in range(1500):
        texts = [random.Random(f"{number} {part}").randbytes(2500).hex() for part in range(6)]
        context = [[f"Title {part}", [text]] for part, text in enumerate(texts)]
        many.append(rows[number % 20] | {"_id": str(number), "context": context})
    roots.whole(tmp_path / "hotpotqa" / "hotpot_dev_distractor_v1.json", many)
    data = load_data("official", [f"data.root={tmp_path}"], ["hotpotqa"])
    prepare([part(name, data) for name in data.datasets], data, tmp_path / "rows")
    assert (tmp_path / "rows" / "rows.arrow").stat().st_size > 80 << 20
    taken, _ = python(READ_ALL, tmp_path / "rows").communicate()
    assert int(taken) < 65 << 20
