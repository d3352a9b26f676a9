"""Presets of one's own, as ``judgedrift new`` writes them: each composes, each reads its judge."""

import json
from collections.abc import Iterator

import pytest

from experiments.sweep import cells_of
from judgedrift.new import main
from study.config.compose import load_judge
from study.config.presets import WRITTEN
from tests.web_server import Handler, serving

FORMS = {
    "[[85]]": "likert",
    "Yes": "soft_choice",
    "The same. [[1]]": "likert",
    '{"1": "met", "2": "not_met"}': "rubric_batch",
    "Good. Score: **8** / 10": "likert",
    "Good.": "",
}
"""What an endpoint replies -> the grading that reads it; empty for none."""


class Endpoint(Handler):
    """Lists one model, and replies what is put into ``reply``."""

    def do_GET(self) -> None:
        self.answer(json.dumps({"data": [{"id": "grader {7b}"}]}).encode())

    def do_POST(self) -> None:
        message = {"role": "assistant", "content": vars(self.server)["reply"][0]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        model = json.loads(self.body())["model"]
        self.answer(json.dumps({"model": model, "choices": [choice]}).encode())


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[str]]]:
    """Its address, and the reply in a list."""
    reply = [""]
    with serving(Endpoint, reply=reply) as url:
        yield f"{url}/v1", reply


@pytest.mark.parametrize("reply", FORMS)
def test_a_judge_is_written_with_the_grading_that_reads_its_reply(
    reply: str, endpoint: tuple[str, list[str]], tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    url, replies = endpoint
    replies[0] = reply
    assert main(["judge", "mine", f"url={url}"]) == (not FORMS[reply]), capsys.readouterr()
    judge = load_judge("mine")
    assert (judge.endpoint.url, judge.endpoint.model) == (url, "grader {7b}")
    assert judge.grading.name == (FORMS[reply] or "likert")
    assert reply in (tmp_path / "conf" / "judge" / "mine.yaml").read_text()


def test_what_a_judge_replies_stays_in_its_comment(endpoint, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    url, replies = endpoint
    replies[0] = "\n".join(["[[85]]", "price: {input: 9}", "\u2028size: 9B", "{name}"])
    assert main(["judge", "mine", f"url={url}"]) == 0
    judge = load_judge("mine")
    assert (judge.price.input, judge.size) == (0.0, "")


def test_every_preset_composes_and_none_is_overwritten(tmp_path, monkeypatch, capsys) -> None:
    """In the folder that config_dir= names; a name that ships or is there is refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a?", "reference": "b"}\n' * 2)
    for group in WRITTEN:
        assert main([group, "mine", "config_dir=own"]) == 0
        text = (tmp_path / "own" / group / "mine.yaml").read_text()
        assert "{" not in text.replace('{"prompt"', "").replace("{soft", "")
        assert main([group, "mine", "config_dir=own"]) == 2
        assert "is there already, and nothing is written" in capsys.readouterr().err
        assert (tmp_path / "own" / group / "mine.yaml").read_text() == text
    words = ["experiment=mine", "task=mine", "reward=mine", "config_dir=own"]
    assert len(cells_of(words)) == 6
    assert (
        main(["judge", "sim-fair"]) == main(["task", "a/b"]) == main(["judge", "x", "model=y"]) == 2
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "prompts.jsonl"]


def test_an_endpoint_that_does_not_answer_leaves_no_file(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["judge", "mine", "url=http://127.0.0.1:1/v1"]) == 2
    assert "does not answer" in capsys.readouterr().err and not list(tmp_path.iterdir())
