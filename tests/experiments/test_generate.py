"""Responses that a model, a cell's adapter or an endpoint generates for the evaluations."""

import functools
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from experiments.evaluate import main
from experiments.evaluation import generate
from experiments.evaluation.collect import fill, read_responses
from experiments.evaluation.options import Options
from study.cell.folder import CellFolder
from study.config.schema import Endpoint
from study.errors import UserError
from tests.experiments.conftest import PROMPTS
from tests.web_server import Handler, serving


def single(*prompts: str) -> dict[str, list[dict[str, str]]]:
    """Each prompt as one user turn."""
    return {prompt: [{"role": "user", "content": prompt}] for prompt in prompts}


def made(**options: Any) -> generate.Source:
    if "run" in options:
        options["run"] = CellFolder(options["run"])
    source = generate.source_of(Options(**options))
    assert source is not None
    return source


def altered(source: Path, folder: Path, file: str = "config.json", **values: Any) -> Path:
    """A copy of a folder in whose JSON file these values are others."""
    shutil.copytree(source, folder)
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | values))
    return folder


def rows_of(source: generate.Source) -> list[dict]:
    """What a source answers to the four prompts."""
    rows: list[dict] = []
    source.answer(single(*PROMPTS), rows.append)
    return rows


@pytest.fixture(scope="session")
def adapter(little) -> Path:
    """A LoRA adapter of that model that does not leave it as it was."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    torch.manual_seed(1)
    lora = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    folder = little.parent / "adapter"
    get_peft_model(LlamaForCausalLM.from_pretrained(little), lora).save_pretrained(str(folder))
    return folder


def test_a_model_answers_and_a_second_call_asks_for_the_rest_only(root, tmp_path, little, capsys):
    out, kept = tmp_path / "o.json", tmp_path / "r.jsonl"
    command = ["ifeval", f"data.root={root}", f"model={little}", f"out={out}", "max_tokens=5"]
    command += [f"responses_out={kept}", "batch=2"]
    assert main([*command, "limit=3"]) == 0
    first = kept.read_text()
    assert json.loads(out.read_text())["n_missing"] == 1
    rows = [json.loads(line) for line in first.splitlines()]
    assert {row["prompt"] for row in rows} == set(list(PROMPTS)[:3])
    assert all(0 < row["tokens"] <= 5 and row["stop"] in ("stop", "length") for row in rows)
    kept.write_text(first + '{"prompt": "Draw a le')  # a killed writer leaves this
    assert main(command) == 0
    assert kept.read_text().startswith(first)
    found = json.loads(out.read_text())
    assert (found["n_missing"], found["n_prompts"]) == (0, 4)
    assert found["model"].startswith("little@") and found["generation"]["max_tokens"] == 5
    capsys.readouterr()
    assert main([*command, "temperature=1"]) == 2
    assert "was made with" in capsys.readouterr().err


def test_batches_and_sampling_do_not_change_what_they_should_not(tmp_path, little):
    def answers(batch: int, name: str, **decoding: Any) -> dict[str, str]:
        source = made(model=str(little), batch=batch, max_tokens=6, **decoding)
        fill(source, single(*PROMPTS), tmp_path / name)
        return {one.prompt: str(one.text) for one in read_responses(tmp_path / name)}

    greedy = answers(1, "one")
    assert greedy == answers(4, "four")  # padding is not read
    drawn = answers(2, "warm", temperature=1.0)
    assert drawn != greedy and drawn == answers(4, "again", temperature=1.0)
    assert drawn != answers(4, "other", temperature=1.0, seed=1)


def test_a_model_that_cannot_share_prefixes_answers_by_transformers(tmp_path, little):
    def answers(folder: Path, **decoding: Any) -> list[dict]:
        return rows_of(made(model=str(folder), max_tokens=6, **decoding))

    other = altered(little, tmp_path / "little", attention_dropout=0.1)
    assert answers(other) == answers(little)
    for folder in (other, little):  # each way of generation takes the likeliest token alone
        assert answers(folder, temperature=1.5, top_k=1) == answers(folder)
    drawn = answers(other, temperature=1.0)
    assert drawn != answers(other) and drawn == answers(other, temperature=1.0)


def test_a_prompt_longer_than_the_context_is_missing(tmp_path, little):
    fill(made(model=str(little), max_tokens=4), single("Zq " * 90), tmp_path / "r")
    (row,) = read_responses(tmp_path / "r")
    assert row.text is None and "context of 64" in row.fields["error"]


def test_an_adapter_answers_for_itself_and_for_its_own_base_only(tmp_path, little, adapter):
    jinja = tmp_path / "own.jinja"
    jinja.write_text("{{ messages[0]['content'] }}!")
    short: dict[str, Any] = {"max_tokens": 8, "dtype": "float32"}
    base = made(model=str(little), **short)
    tuned = made(adapter=adapter, **short)
    template = made(model=str(little), chat_template=jinja, **short)
    assert tuned.model.startswith(base.model + " + adapter@")
    untrained, trained = ([row["response"] for row in rows_of(each)] for each in (base, tuned))
    assert untrained != trained
    assert template.settings != base.settings
    with pytest.raises(UserError, match=r"was trained on .*little, but the model given is other"):
        made(model="other", adapter=adapter)
    wrong = altered(little, tmp_path / "wrong" / "little", num_hidden_layers=2)
    bad = altered(adapter, tmp_path / "bad", "adapter_config.json", r=4)
    source = made(model=str(wrong), adapter=bad, **short)
    with pytest.raises(UserError, match="does not fit"):
        rows_of(source)


def test_a_cell_answers_with_its_adapter_or_says_what_it_lacks(tmp_path, little, adapter):
    cell = tmp_path / "cell"
    for name in ("policy", "checkpoints/checkpoint-2"):
        shutil.copytree(adapter, cell / name)
    (cell / "config.yaml").write_text(f"policy: {{path: {little}, dtype: float32}}\n")
    last = made(run=cell)
    assert " + cell/policy@" in last.model and last.settings["dtype"] == "float32"
    assert " + cell/checkpoints/checkpoint-2@" in made(run=cell, checkpoint=2).model
    with pytest.raises(UserError, match="this run has checkpoint-2"):
        made(run=cell, checkpoint=3)
    words = f"policy: {{path: {little}, dtype: float32, chat_template: chatml}}"
    judge = "judge: {name: sim-fair, endpoint: {model: ''}}\ntask: {name: prompts}"
    (cell / "config.yaml").write_text(f"{words}\n{judge}\n")
    shutil.rmtree(cell / "policy")  # a run that has not ended has begun all the same
    before = made(run=cell, checkpoint=0)
    assert before.model == made(model=str(little)).model and " + " not in before.model
    assert len(before.settings["chat_template_sha256"]) == 64
    (cell / "config.yaml").write_text("policy: {path: tiny, dtype: float32}\n")
    with pytest.raises(UserError, match="is not a cell"):
        made(run=cell, checkpoint=0)
    shutil.copytree(adapter, cell / "policy")
    with pytest.raises(UserError, match="tiny policy"):
        made(run=cell)


class Server(Handler):
    """Chat completions by the prompt's first word: some at once, some late, some never."""

    asked: ClassVar[Counter[str]] = Counter()
    keys: ClassVar[set[str | None]] = set()
    bodies: ClassVar[list[dict]] = []

    def do_POST(self) -> None:
        body = json.loads(self.body())
        prompt = body["messages"][0]["content"]
        self.asked[prompt] += 1
        self.bodies.append(body)
        self.keys.add(self.headers["authorization"])
        status, message, finish = 200, {"content": f"re: {prompt}"}, "stop"
        if prompt.startswith("Quote") and self.asked[prompt] < 3:
            status = 503
        elif prompt.startswith("Give"):
            status = 400
        elif prompt.startswith("Echo"):
            message = {"content": f"You sent {dict(self.headers)}"}
            status = {"Echo": 200, "EchoError": 400, "EchoDown": 503}[prompt.split()[0]]
        elif prompt.startswith("Think"):
            message = message | {"reasoning_content": "hmm"}
        elif prompt.startswith("Draw"):
            message, finish = {"content": None, "reasoning_content": "hmm"}, "length"
        data = json.dumps({"choices": [{"message": message, "finish_reason": finish}]}).encode()
        if prompt.startswith("EchoError"):
            data = json.dumps({"error": {"message": f"bad request: {dict(self.headers)}"}}).encode()
        elif prompt.startswith("EchoDown"):
            data = f"down: {dict(self.headers)}".encode()
        self.answer(data, status)


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setattr(generate, "Endpoint", functools.partial(Endpoint, backoff_s=0.001))
    for kept in (Server.asked, Server.keys, Server.bodies):
        kept.clear()
    with serving(Server) as address:
        yield f"{address}/v1"


def test_an_endpoint_answers_fails_and_is_asked_again(
    root, tmp_path, endpoint, monkeypatch, capsys
):
    monkeypatch.setenv("MY_KEY", "s3cret")
    out = tmp_path / "o.json"
    command = ["ifeval", f"data.root={root}", f"endpoint={endpoint}", "model=m", f"out={out}"]
    command += ["api_key_env=MY_KEY"]
    assert main(command) == 2  # one prompt is refused for good: it is missing, not empty
    assert "3 of 4" in capsys.readouterr().err
    assert main([*command, "allow_missing=true"]) == 0
    found = json.loads(out.read_text())
    assert (found["n_missing"], found["n_failed_generation"], found["n_empty"]) == (1, 1, 0)
    assert (found["n_truncated_thinking"], found["n_truncated"]) == (1, 1)
    assert [Server.asked[prompt] for prompt in PROMPTS] == [1, 3, 2, 1]
    assert Server.keys == {"Bearer s3cret"}
    kept = (tmp_path / "o.responses.jsonl").read_text()
    assert "HTTP 400" in kept and "s3cret" not in kept + out.read_text()


def test_an_endpoint_that_echoes_the_headers_leaves_no_key_in_any_file(
    tmp_path, endpoint, monkeypatch, capsys
):
    """In an answer, in an error's message and in an error that is no JSON."""
    key = "a-key-like-no-other-77"
    monkeypatch.setenv("MY_KEY", key)
    prompts = ["Echo the headers", "EchoError them", "EchoDown them"]
    source = made(endpoint=endpoint, model="m", api_key_env="MY_KEY")
    fill(source, single(*prompts), tmp_path / "r.jsonl")
    assert Server.keys == {f"Bearer {key}"}  # it was sent, and echoed
    rows = {row.prompt: row for row in read_responses(tmp_path / "r.jsonl")}
    assert "You sent" in str(rows[prompts[0]].text)
    assert rows[prompts[1]].text is None and "HTTP 400" in rows[prompts[1]].fields["error"]
    assert rows[prompts[2]].text is None and "HTTP 503" in rows[prompts[2]].fields["error"]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert written and key.encode() not in written
    assert key not in "".join(capsys.readouterr())


def test_a_request_carries_the_decoding_and_nothing_else(tmp_path, endpoint):
    """Thinking is asked for by the switch of the chat template."""
    decoding: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 3}
    source = made(endpoint=endpoint, model="m", thinking=False, **decoding)
    fill(source, single("Hello"), tmp_path / "r.jsonl")
    wanted = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]} | decoding
    assert Server.bodies == [wanted | {"chat_template_kwargs": {"enable_thinking": False}}]
    assert "top_k" not in source.settings, "files of answers without it stay what they are"
    narrow = made(endpoint=endpoint, model="m", top_k=20, **decoding)
    fill(narrow, single("Hello"), tmp_path / "narrow.jsonl")
    assert Server.bodies[1]["top_k"] == narrow.settings["top_k"] == 20


def test_what_an_endpoint_thought_stands_beside_its_answer(tmp_path, endpoint):
    fill(made(endpoint=endpoint, model="m"), single("Think", "Hello"), tmp_path / "r.jsonl")
    rows = {row.prompt: row.fields for row in read_responses(tmp_path / "r.jsonl")}
    assert rows["Think"]["response"] == "re: Think" and rows["Think"]["thinking"] == "hmm"
    assert "thinking" not in rows["Hello"]


def test_an_endpoint_that_is_down_is_a_users_error(root, tmp_path, endpoint, capsys):
    command = ["ifeval", f"data.root={root}", "endpoint=http://127.0.0.1:9/v1", "model=m"]
    assert main([*command, f"out={tmp_path / 'o.json'}"]) == 2
    assert "does not answer for model=m" in capsys.readouterr().err
    assert not (tmp_path / "o.json").exists()
    assert main([*command, f"out={tmp_path / 'o.json'}", "api_key_env=NO_SUCH"]) == 2
    assert "export NO_SUCH" in capsys.readouterr().err
