"""The command that builds the bias set and fills its slots; nothing that was had is lost."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from analysis import preference
from experiments import probe
from experiments.data import bias_set
from experiments.data.__main__ import main
from judges.grading.delimiters import undelimit
from judges.probes import biasset
from study.tasks.where import FILES, VARIABLE
from tests.experiments.evaluation.answering import serving

WORDS = "It is 4 km off. In order to see it, walk north."
TRUTH = json.dumps({"checkers": ["[llm] Be kind."], "functions": ["pass"]})


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fifteen short prompts of each source, in the form of the published files."""
    folder = tmp_path / "data"
    monkeypatch.setenv(VARIABLE, str(folder))
    rubrics = [{"criterion": "Is right.", "points": 3, "tags": {"axis": "accuracy"}}]
    labels = {"healthbench": {"rubrics": rubrics}, "verinstruct-verif": {"ground_truth": TRUTH}}
    for task, label in labels.items():
        rows = [
            {"prompt": [{"role": "user", "content": f"{task} {n}?"}], "extra_info": {"index": n}}
            | {"ability": "x", "reward_model": label}
            for n in range(15)
        ]
        path = folder / FILES[task]
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), path)
    return folder


class Policy:
    """Thinks aloud, and breaks down after some answers; ``words`` let the command ask it."""

    left = 10**6
    bodies: list[dict[str, Any]]
    words: list[str]

    def __call__(self, body: dict[str, Any]) -> Any:
        self.left -= 1
        if self.left < 0:
            return None
        if body["messages"][-1]["content"].endswith("11?"):
            return "<think>never closed", "length"
        return f"<think>hm</think>{WORDS}"


@pytest.fixture
def policy() -> Iterator[Policy]:
    made = Policy()
    with serving(made) as (url, made.bodies):
        made.words = ["fill=ypolicy_raw", f"endpoint={url}", "model=m"]
        yield made


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_set_is_built_once_and_not_lost(data, tmp_path, policy, capsys):
    out = tmp_path / "b.jsonl"
    assert main(["biasset", "n=3", f"out={out}"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert counted["sources"] == {"healthbench": 3, "verinstruct_verif": 3}
    ids = [one["id"] for one in read(out)]
    assert ids == [f"healthbench:val:{n}" for n in biasset.drawn(15, 3, 101)] + [
        f"verinstruct_verif:val:{n}" for n in biasset.drawn(15, 3, 202)
    ]
    assert main(["biasset", "n=3", f"out={out}"]) == 0, "nothing is in it yet"
    assert main(["biasset", "n=4", f"out={out}"]) == 2
    assert "holds 6 other prompts than n=4 seed=0 draws" in capsys.readouterr().err
    assert main(["biasset", f"out={out}", *policy.words]) == 0
    filled = out.read_bytes()
    assert main(["biasset", "n=3", f"out={out}"]) == 2
    assert "with 6 slots filled" in capsys.readouterr().err and out.read_bytes() == filled
    assert main(["biasset", "n=3", f"out={out}", "overwrite=true"]) == 0
    assert {text for one in read(out) for text in one["responses"].values()} == {""}
    assert main(["biasset", "n=16", f"out={tmp_path / 'c.jsonl'}"]) == 2
    assert "its file has 15 rows" in capsys.readouterr().err


def test_the_same_command_goes_on_with_another_file_and_loses_none_of_its_texts(data, tmp_path):
    first, out = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    assert main(["biasset", "n=2", f"out={first}"]) == 0
    items = biasset.read(first)
    items[0]["responses"]["ycorrect"] = "It is 4 km off. In order to see it, walk north."
    biasset.write(first, items)
    again = ["biasset", f"path={first}", f"out={out}", "fill=variants", "rewriter=rules"]
    assert main(again) == 0
    filled = out.read_bytes()
    assert main(again) == 0 and out.read_bytes() == filled
    items[0]["responses"]["ycorrect"] = "It is 5 km off."
    biasset.write(first, items)
    assert main(again) == 2 and out.read_bytes() == filled, "a text of path= is not in out="


def test_a_policy_answers_and_its_thinking_is_kept_apart(data, tmp_path, policy):
    out = tmp_path / "b.jsonl"
    assert main(["biasset", "n=15", f"out={out}", *policy.words, "max_tokens=9", "seed=3"]) == 0
    assert read(out)[0]["id"] == f"healthbench:val:{biasset.drawn(15, 1, 104)[0]}"
    decoding = ("temperature", "top_p", "top_k", "max_tokens", "seed")
    asked = {tuple(body[name] for name in decoding) for body in policy.bodies}
    assert asked == {(0.7, 0.8, 20, 9, 3)}
    for one in read(out):
        made = one["made"]["ypolicy_raw"]
        if one["meta"]["row_index"] == 11:
            assert one["responses"]["ypolicy_raw"] is None
            assert (made["missing"], made["stop"]) == ("cut off while it thought", "length")
            assert made["thinking"] == "never closed"
        else:
            assert one["responses"]["ypolicy_raw"] == WORDS and made["thinking"] == "hm"
            assert made["sha256"] == biasset.digest(WORDS) and made["how"] == "policy"
            assert made["checks"] == {"meaning": None, "length": True, "format": None}
    asked = len(policy.bodies)
    before = out.read_bytes()
    assert main(["biasset", f"out={out}", *policy.words, "max_tokens=9", "seed=3"]) == 0
    assert len(policy.bodies) == asked and out.read_bytes() == before
    assert main(["biasset", f"out={out}", *policy.words, "max_tokens=9", "seed=4"]) == 2


def test_an_exception_loses_nothing(data, tmp_path, policy, monkeypatch, capsys):
    """Answers that were had before it stand in the set, and are not asked for again."""
    out, fill = tmp_path / "b.jsonl", bias_set.fill
    words = ["biasset", "n=3", f"out={out}", *policy.words]

    def breaks(source: Any, turns: Any, path: Path) -> None:
        fill(source, dict(list(turns.items())[:2]), path)
        raise MemoryError("no more room")

    monkeypatch.setattr(bias_set, "fill", breaks)
    with pytest.raises(MemoryError):
        main(words)
    assert [one["responses"]["ypolicy_raw"] for one in read(out)] == [WORDS, WORDS, "", "", "", ""]
    monkeypatch.setattr(bias_set, "fill", fill)
    policy.left = 2
    assert main(words) == 0
    counted = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert len(policy.bodies) == 6 and counted["slots"]["ypolicy_raw"]["missing"] == 2
    assert any("HTTP 400" in why for why in counted["slots"]["ypolicy_raw"]["reasons"])
    policy.left = 10**6
    assert main(words) == 0
    assert {one["responses"]["ypolicy_raw"] for one in read(out)} == {WORDS}
    assert len(policy.bodies) == 8, "only what is missing is asked for again"


def test_a_model_folder_answers_as_its_sampling_says(data, tmp_path, little):
    out = tmp_path / "b.jsonl"
    words = ["biasset", "n=2", f"out={out}", "fill=ypolicy_raw", f"model={little}", "max_tokens=4"]
    assert main(words) == 0
    for one in read(out):
        made = one["made"]["ypolicy_raw"]
        assert made["author"].startswith("little@") and made["settings"]["top_k"] == 20
        assert made["model"] == made["author"] and ("missing" in made) != ("sha256" in made)


def test_a_run_answers_under_the_name_of_its_policy(data, tmp_path, little):
    cell, out = tmp_path / "runs" / "study" / "cell", tmp_path / "b.jsonl"
    shutil.copytree(little, cell / "policy")
    config = {
        "judge": {"name": "sim-fair", "endpoint": {"model": ""}},
        "task": {"name": "prompts"},
        "policy": {"path": str(little), "dtype": "float32", "family": "llama"},
    }
    (cell / "config.yaml").write_text(yaml.safe_dump(config))
    (cell / "status.json").write_text(json.dumps({"step": 40}))
    words = ["biasset", "n=1", f"out={out}", "fill=ypolicy_raw", f"run={cell}", "max_tokens=3"]
    assert main(words) == 0
    for one in read(out):
        made = one["made"]["ypolicy_raw"]
        assert made["author"].startswith("cell/policy@")
        assert (made["family"], made["how"]) == ("llama", "policy")


def rewriter(body: dict[str, Any]) -> str:
    """A judge and writer: it likes what it wrote, which says "Verily"."""
    text = body["messages"][-1]["content"]
    before = undelimit("answer", text)
    if "[[SAME]]" in text:
        return "[[DIFFERENT]]" if "wrong" in text else "[[SAME]]"
    if "Reply with the answer and nothing" in text:
        return "Verily, it is 4 km off."
    if "few words" in text:
        return "Verily."
    if "three times as many" in text:
        return f"{before} Verily, " + "and so it is, " * 9
    if "Markdown" in text:
        return f"# Verily\n- {before}"
    if "praise" in text:
        return f"Verily a lovely question! {before}"
    if "make the main points wrong" in text:
        return "Verily wrong, it is 9 km off."
    return "[[90]]" if "Verily" in str(before) else "[[50]]"


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An endpoint for two judges, of which ``gpt-oss-20b`` does not care who wrote a text."""
    from starlette.responses import JSONResponse

    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            names = ("qwen3-8b", "gpt-oss-20b")
            reply: dict[str, Any] = {"object": "list", "data": [{"id": name} for name in names]}
        else:
            body = json.loads((await receive())["body"])
            asked.append(body["model"])
            fair = body["model"] == "gpt-oss-20b"
            message = {"content": "[[50]]" if fair else rewriter(body)}
            reply = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        await JSONResponse(reply)(scope, receive, send)

    monkeypatch.setattr("judges.ask.session._simulated", lambda *_: app)
    return asked


def test_a_judge_writes_the_six_slots_and_the_probe_makes_its_table(
    data, tmp_path, policy, judge, capsys
):
    out, runs = tmp_path / "b.jsonl", tmp_path / "runs"
    assert main(["biasset", "n=8", f"out={out}", *policy.words, "seed=5"]) == 0
    words = ["biasset", f"out={out}", "fill=variants", "rewriter=qwen3-8b", f"runs_dir={runs}"]
    words += ["judge.endpoint.url=asgi://x", "judge.endpoint.attempts=1"]
    assert main(words) == 0
    for one in read(out):
        for slot in biasset.VARIANTS:
            made = one["made"][slot]
            assert (made["author"], made["family"], made["how"]) == ("qwen3-8b", "qwen3", "model")
            assert made["sha256"] == biasset.digest(one["responses"][slot])
            assert made["from"] == (None if slot == "ycorrect" else "ycorrect")
            checked = dict.fromkeys(("meaning", "length", "format"), True)
            wanted = {"meaning": None} if slot == "ycorrect" else checked
            assert made["checks"] == wanted, slot
    asked, before = len(judge), out.read_bytes()
    assert main(words) == 0
    assert len(judge) == asked and out.read_bytes() == before, "nothing was left to write"
    assert main([*words[:3], "rewriter=rules"]) == 2
    said = capsys.readouterr().err
    assert "filled by an author other than rules" in said and "overwrite=true" in said

    probed = ["judge=qwen3-8b,gpt-oss-20b", f"set={out}", f"runs_dir={runs}", "repeats=0", "n=16"]
    assert probe.main([*probed, "judge.endpoint.url=asgi://x"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Slots of the set" in shown and "scores by judges of other families" in shown
    table = probe.profile(runs / "probes" / "b", 0.05, 0.5).slots.set_index(
        ["judge", "source", "slot"]
    )
    row = table.loc["qwen3-8b", "all", "ypolicy_raw"]
    assert row["score"] == pytest.approx(0.5) and row["author"].startswith("m at http")
    for slot in biasset.VARIANTS:
        assert table.loc["qwen3-8b", "all", slot]["score"] == pytest.approx(0.9)
        assert table.loc["gpt-oss-20b", "healthbench", slot]["score"] == pytest.approx(0.5)
        assert table.loc["qwen3-8b", "all", slot]["prompts"] == 16
    assert table.loc["gpt-oss-20b", "all", "yshort"][["low", "high"]].notna().all()
    assert table.loc["gpt-oss-20b", "healthbench", "yshort"]["note"].startswith("fewer than 10")

    result = tmp_path / "own.json"
    assert preference.main([str(runs / "probes" / "b"), f"out={result}"]) == 0
    numbers = json.loads(result.read_text())
    by = {(one["judge"], one["kind"]): one for one in numbers["preferences"]}
    assert numbers["quality_by"] == "other judges"
    assert by["qwen3-8b", "self"]["effect"] == pytest.approx(0.4)
    assert by["gpt-oss-20b", "self"]["note"] == "no answer is its own"


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "needs out="),
        (["out={0}/b.txt"], "must end in .jsonl"),
        (["out={0}/none/b.jsonl"], "mkdir -p"),
        (["out={0}/b.jsonl", "n=0"], "n=0"),
        (["out={0}/b.jsonl", "fill=all"], "fill=all"),
        (["out={0}/b.jsonl", "fill=variants"], "rewriter= writes no variants"),
        (["out={0}/b.jsonl", "fill=variants", "rewriter=nobody"], "rewriter=nobody writes no"),
        (["out={0}/b.jsonl", "fill=variants", "rewriter=sim-fair"], "no model and writes nothing"),
        (["out={0}/b.jsonl", "fill=variants", "rewriter=rules", "top_k=3"], "top_k= has no"),
        (["out={0}/b.jsonl", "fill=variants", "rewriter=rules"], "no prompt with a text to start"),
        (["out={0}/b.jsonl", "fill=ypolicy_raw"], "needs a policy that answers"),
        (["out={0}/b.jsonl", "fill=ypolicy_raw", "run={0}"], "is not a cell"),
        (["out={0}/b.jsonl", "fill=ypolicy_raw", "model=x", "rewriter=rules"], "rewriter= has no"),
        (["out={0}/b.jsonl", "fill=ypolicy_raw", "endpoint=http://127.0.0.1:9/v1", "model=m"],
         "does not answer for model=m"),
        (["out={0}/b.jsonl", "path={0}/p.jsonl"], "and needs fill="),
        (["out={0}/b.jsonl", "path={0}/p.jsonl", "fill=variants", "rewriter=rules"], "not a file"),
        (["out={0}/b.jsonl", "data=official"], "data= has no meaning"),
        (["out={0}/b.jsonl", "task.path=x"], "task.path=x has no meaning"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_and_leaves_nothing(data, tmp_path, words, said, capsys):
    few = [] if "n=0" in words or "path" in str(words) else ["n=3"]
    assert main(["biasset", *few, *(word.format(tmp_path) for word in words)]) == 2
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == 1
    assert not list(tmp_path.glob("*.jsonl"))
