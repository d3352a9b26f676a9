"""A prepared folder as a lazy table: the items that were written, found by place, id and prompt."""

import json
import os
import pickle
import random

import pytest

from experiments.data.parts import part
from experiments.data.prepare import prepare
from study.errors import UserError
from study.rows import prompt_id
from study.tasks.datasets import sets
from study.tasks.datasets.preset import load_data
from study.tasks.datasets.table import SPLITS, open_table
from tests.conftest import python
from tests.study.tasks.datasets import roots


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return roots.make(tmp_path_factory.mktemp("root"))


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
