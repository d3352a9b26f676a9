"""Official files from a hub that answers, and from the data folder where it does not."""

import json
import os
import socket
import threading

import pytest
from datasets import Dataset

from experiments.data import __main__ as data
from experiments.data import download
from study.system import files
from study.tasks.datasets import sets
from tests.commands import run_program
from tests.study.tasks.datasets import roots
from tests.waiting import GENEROUS_S
from tests.web_server import Handler, serving


@pytest.fixture(autouse=True)
def unsaid(monkeypatch):
    monkeypatch.setattr(files, "PRINTED_LINES", set())


@pytest.fixture
def silent(monkeypatch):
    """A hub that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", address)
        monkeypatch.setattr(download, "HUB_SECONDS", 0.2)
        yield address


@pytest.mark.timeout(300)
def test_a_closed_hub_is_said_in_one_line_and_the_data_folder_is_used(
    silent, root, tmp_path, capsys
):
    words = ["data=official", "datasets=gsm8k,mbpp", f"data.root={root}", f"out={tmp_path}"]
    assert data.main(["download", *words]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("The hub does not answer (")
    assert f"data.root={root}" in printed.err
    taken = json.loads(printed.out)
    assert taken["gsm8k"]["files"]["test"]["path"] == str(root / "gsm8k" / "test.jsonl")
    assert list(tmp_path.iterdir()) == []


class HalfHub(Handler):
    """A hub that knows a repository's commit and never gives a file."""

    def do_GET(self):
        if "/api/datasets/" not in self.path or self.server.asked.is_set():
            self.server.stopped.wait(GENEROUS_S)
            return
        self.server.asked.set()
        found = {"id": "openai/gsm8k", "sha": "0" * 40, "siblings": []}
        self.answer(json.dumps(found).encode())

    do_HEAD = do_GET


IMPATIENT = """
import sys
from experiments.data import download
from experiments.data.__main__ import main
download.HUB_SECONDS = 1
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.timeout(300)
def test_a_hub_that_stops_half_way_is_given_up(root, tmp_path):
    asked, stopped = threading.Event(), threading.Event()
    with serving(HalfHub, asked=asked, stopped=stopped) as address:
        places = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path)}
        words = ["data=official", "datasets=gsm8k,mbpp", f"data.root={root}", f"out={tmp_path}"]
        done = run_program(IMPATIENT, "download", *words, env=os.environ | places)
        stopped.set()
    assert asked.is_set() and done.returncode == 0
    assert done.stderr == (
        f"The hub does not answer (no answer in 1 s): sets are taken from data.root={root}.\n"
    )
    assert json.loads(done.stdout).keys() == {"gsm8k", "mbpp"}


def test_a_hub_that_is_switched_off_is_not_asked(root, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    words = ["data=official", "datasets=gsm8k", f"data.root={root}", f"out={tmp_path}"]
    assert data.main(["download", *words]) == 0
    assert "The hub does not answer (HF_HUB_OFFLINE is set)" in capsys.readouterr().err


def test_neither_hub_nor_folder_is_said(silent, tmp_path, capsys):
    words = ["data=official", "datasets=gsm8k", f"data.root={tmp_path}", f"out={tmp_path}"]
    assert data.main(["download", *words]) == 2
    assert "holds no file of gsm8k" in capsys.readouterr().err


def columns(pairs: list[list], *names: str) -> dict[str, list]:
    """Pairs as the hub has them: a list for each name."""
    return {name: [pair[place] for pair in pairs] for place, name in enumerate(names)}


def hub_rows() -> dict[str, dict[str, list[dict]]]:
    """Rows of each set as the hub has them: by config, by split."""
    squad = [
        {
            **{key: question[key] for key in ("id", "question")},
            **{"title": article["title"], "context": paragraph["context"]},
            "answers": {
                key: [answer[key] for answer in question["answers"]]
                for key in ("text", "answer_start")
            },
        }
        for article in roots.squad2("dev")["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    hotpot = [
        {
            **{key: row[key] for key in ("question", "answer", "type", "level")},
            "id": row["_id"],
            "supporting_facts": columns(row["supporting_facts"], "title", "sent_id"),
            "context": columns(row["context"], "title", "sentences"),
        }
        for row in roots.hotpotqa("dev")
    ]
    return {
        "gsm8k": {"train": roots.gsm8k("train"), "test": roots.gsm8k("test")},
        "squad_v2": {"train": squad, "validation": squad},
        "hotpot_qa": {"train": hotpot, "validation": hotpot},
        "mbpp": {"prompt+test+validation+train": roots.mbpp()[::-1]},
    }


def hub(monkeypatch, without=""):
    """Replace the two calls of the hub; ``without`` is a split that it does not give."""
    rows = hub_rows()

    def load_dataset(repository, config, split, revision):
        if split == without:
            raise ConnectionError("closed half way")
        return Dataset.from_list(rows[repository.split("/")[1]][split])

    monkeypatch.setattr(download, "_revision", lambda repository: "c0ffee")
    monkeypatch.setattr("datasets.load_dataset", load_dataset)


def test_a_set_without_files_is_prepared_from_the_hub(tmp_path, monkeypatch, root, capsys):
    monkeypatch.chdir(tmp_path)
    hub(monkeypatch)
    roots.lines(tmp_path / "root" / "mbpp" / "mbpp.jsonl", roots.mbpp())
    assert data.main(["prepare", "data=plan-c", "datasets=gsm8k,mbpp", "data.root=root"]) == 0
    printed = capsys.readouterr()
    said = "root holds no file of gsm8k: the hub gives openai/gsm8k, into data/raw.\n"
    assert printed.err == said
    entries = json.loads(printed.out)["datasets"]
    assert (entries["gsm8k"]["revision"], entries["gsm8k"]["rows"]["train"]) == ("c0ffee", 17)
    assert entries["mbpp"]["revision"].startswith("sha256:")
    assert sets.reported("gsm8k", tmp_path / "data" / "raw") == sets.reported("gsm8k", root)


def test_a_set_that_neither_folder_nor_hub_has_is_one_paragraph(
    silent, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "root").mkdir()
    assert data.main(["prepare", "data=plan-c", "datasets=gsm8k", "data.root=root"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("root holds no file of gsm8k.") and said.count("\n") == 1
    assert "The hub did not give it either (no answer in 0.2 s)" in said
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_files_of_two_revisions_have_no_source(tmp_path, monkeypatch, root, capsys):
    words = ["download", "data=official", "datasets=gsm8k", f"data.root={root}", f"out={tmp_path}"]
    hub(monkeypatch)
    assert data.main(words) == 0
    source = tmp_path / "gsm8k" / "gsm8k.source.json"
    assert source.is_file()
    hub(monkeypatch, without="test")
    assert data.main(words) == 0
    assert "The hub does not answer (closed half way)" in capsys.readouterr().err
    assert not source.exists()


def test_what_the_hub_gives_is_laid_in_official_form(tmp_path, monkeypatch, root, capsys):
    """The hub itself stands outside: its two calls are replaced."""
    hub(monkeypatch)
    names = ["gsm8k", "squad2", "hotpotqa", "mbpp"]
    words = ["data=official", f"datasets={','.join(names)}"]
    assert data.main(["download", *words, f"out={tmp_path / 'raw'}"]) == 0
    capsys.readouterr()
    for name in names:
        assert sets.reported(name, tmp_path / "raw") == sets.reported(name, root)
    manifest = tmp_path / "rows" / "manifest.json"
    roots.whole(tmp_path / "raw" / "squad2" / "train-v2.0.json", roots.squad2("train"))
    words += [f"data.root={tmp_path / 'raw'}", f"out={manifest.parent}"]
    assert data.main(["prepare", *words]) == 0
    entry = json.loads(manifest.read_text())["datasets"]["gsm8k"]
    assert (entry["revision"], entry["origin"]) == ("c0ffee", "openai/gsm8k")


def test_what_was_downloaded_is_taken_before_the_data_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    raw = roots.make(tmp_path / "data" / "raw")
    (raw / "gsm8k" / "gsm8k.source.json").write_text("{}")
    assert data.main(["prepare", "data=plan-c", "datasets=gsm8k"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["gsm8k"]["train"] == 17
    assert (tmp_path / "data" / "plan-c" / "rows.arrow").is_file()
