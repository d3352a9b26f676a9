"""``python -m experiments.workflow overrides``: published keys as ours; the rest, and secrets."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from experiments.config import __main__ as config
from experiments.config.__main__ import READERS
from experiments.config.overrides import TABLE, WORDS, main, overrides
from experiments.sweep import cells_of
from study.config.identity import flatten
from study.config.schema import Study

PUBLISHED = Path(__file__).with_name("published_training.yaml").read_text()
MEANT = {
    "study": "workflows", "policy.name": "qwen25-7b", "policy.lora.r": 64,
    "policy.lora.dropout": 0.05, "policy.dtype": "bfloat16", "trainer.steps": 500,
    "trainer.eval_steps": 10, "trainer.group_size": 6, "trainer.prompts_per_step": 4,
    "trainer.learning_rate": 1e-5, "trainer.beta": 0.001, "trainer.epsilon": 0.2,
    "trainer.temperature": 0.3, "trainer.top_p": 0.95, "trainer.top_k": 50,
    "trainer.max_completion_length": 4096, "task.options.domains.math": 0.4, "device": "cuda:2",
}  # fmt: skip
LLM = {
    "api_type": "openai", "base_url": "http://localhost:8002/v1", "api_key": "sk-dummy",
    "model_name": "/models/gpt-oss-120b", "temperature": 0, "top_p": 1,
    "no_proxy": "localhost,127.0.0.1",
}  # fmt: skip
SECRET = "sk-proj-0123456789abcdefghij"


def written(folder, content, name="training.yaml"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


@pytest.fixture
def uncomposed(monkeypatch):
    """Settings are not composed: that is for the published file above all."""
    monkeypatch.setattr(config, "check_composes", lambda *_: None)


def settings(lines):
    return [line for line in lines if not line.startswith("#")]


def test_the_published_file_is_mapped(tmp_path):
    lines = overrides(written(tmp_path, PUBLISHED))
    operators = "workflow.operators=[Custom,AnswerGenerate,Programmer,ScEnsemble,Test]"
    assert {"executor=gpt-oss-120b", operators, "reward=seed-additive"} <= set(lines)
    (cell,) = cells_of([f"experiment={WORDS.experiment}", *settings(lines)])
    flat = flatten(cell.data)
    assert {key: flat[key] for key in MEANT} == MEANT
    whys = [line for line in lines if line.startswith("# ")]
    for key in (
        *("execution_timeout", "experience_buffer", "temperature_schedule", "train_dataset"),
        *("aflow_config_path", "response_max_length", "device_mapping", "gamma", "warmup_steps"),
    ):
        assert any(key in line.partition(":")[0] for line in whys), key


def test_the_keys_that_the_sources_name(tmp_path, monkeypatch):
    """Of both sources, each alone, flat or in a section; what they become is composed at once."""
    keys = {
        "strategy_model": "Qwen2.5-7B-Instruct", "model_name": "qwen3-8b",
        "aflow_executor_model": "gpt-oss-120b", "train_dataset": "a.jsonl",
        "val_dataset": "b.jsonl", "physical_gpus": [0], "lora_rank": 64, "lora_alpha": 64,
        "rollout_batch_size": 4, "num_return_sequences_in_group": 6, "ppo_epochs": 1,
        "learning_rate": 5e-6,
    }  # fmt: skip
    lines = []
    with monkeypatch.context() as patched:
        patched.setattr(config, "check_composes", lambda *_: None)
        for key, value in keys.items():
            flat = overrides(written(tmp_path, {key: value}))
            within = overrides(written(tmp_path, {"training": {key: value}}))
            assert flat and [line.replace("training.", "") for line in within] == flat, key
            lines += settings(flat)
    policies = [line for line in lines if line.startswith("policy=")]
    assert policies == ["policy=qwen25-7b", "policy=qwen3-8b"]
    composed = [line for line in lines if line != policies[0]]
    (cell,) = cells_of([f"experiment={WORDS.experiment}", *composed])
    flat = flatten(cell.data)
    expected = {"policy.lora.r": 64, "trainer.prompts_per_step": 4, "trainer.group_size": 6}
    expected |= {"trainer.learning_rate": 5e-6, "policy.name": "qwen3-8b", "device": "cuda:0"}
    assert {key: flat[key] for key in expected} == expected
    lines = overrides(written(tmp_path, {"executor": {"model": "GPT-OSS-120B"}}))
    assert lines == ["executor=gpt-oss-120b"]
    lines = overrides(written(tmp_path, {"aflow_executor_model": "gpt-4o-mini"}))
    assert lines == ["executor=openai-compatible", "executor.endpoint.model=gpt-4o-mini"]


def test_the_executors_file_says_where_it_is(tmp_path, uncomposed):
    file = written(tmp_path, {"aflow_executor_model": "gpt-oss-120b"})
    models = {"models": {"gpt-oss-120b": LLM, "another": {"base_url": "http://x"}}}
    lines = overrides(file, written(tmp_path, models, "llm.yaml"))
    assert settings(lines) == [
        "executor=gpt-oss-120b",
        "executor.endpoint.model=/models/gpt-oss-120b",
        "executor.endpoint.url=http://localhost:8002/v1",
        "executor.sampling.temperature=0",
        "executor.sampling.top_p=1",
    ]
    assert any("api_key: a placeholder" in line for line in lines)
    alone = overrides(written(tmp_path, {"seed": 1}), written(tmp_path, {"mine": LLM}, "llm.yaml"))
    assert "executor=openai-compatible" in alone
    named = {"aflow_executor_model": "mine"}
    lines = overrides(written(tmp_path, named), written(tmp_path, {"mine": LLM}, "llm.yaml"))
    (model,) = (line for line in lines if "endpoint.model" in line)
    assert model == "executor.endpoint.model=/models/gpt-oss-120b"
    both = {"aflow_executor_model": "gpt-oss-120b", "judge_model": "gpt-oss-120b"}
    assert "allow_same_model=true" in overrides(written(tmp_path, both))[-1]


def test_other_weights_are_no_reward(tmp_path, uncomposed):
    weights = {"reward": {"weights": {"correctness": 0.7, "efficiency": 0.2, "simplicity": 0.1}}}
    (line,) = overrides(written(tmp_path, weights))
    assert line.startswith("# reward") and "workflow-gated" in line


@pytest.mark.parametrize("name", ["file", "llm"])
@pytest.mark.parametrize(
    "secret",
    [
        {"models": {"a": {"base_url": "http://x", "api_key": SECRET}}},
        {"wandb_api_key": "0123456789abcdef0123456789abcdef01234567"},
        {"judge": {"base_url": f"http://x/v1?api_key={SECRET}"}},
        {"notes": SECRET},
    ],
)
def test_a_file_that_holds_a_key_is_refused(tmp_path, capsys, name, secret):
    files = {"file": {"seed": 1}, "llm": {"models": {"a": {"base_url": "http://x"}}}}
    files[name] = secret
    words = [f"{key}={written(tmp_path, content, f'{key}.yaml')}" for key, content in files.items()]
    assert main(["overrides", *words]) == 2
    captured = capsys.readouterr()
    assert "looks like it holds" in captured.err and captured.err.count("\n") == 1
    assert SECRET not in captured.err and "0123456789abcdef" not in captured.err
    assert not captured.out


@pytest.mark.parametrize("held", ["sk-dummy", "EMPTY", "", "None"])
def test_a_placeholder_is_no_key(tmp_path, uncomposed, held):
    assert overrides(written(tmp_path, {"openai_api_key": held, "seed": 1}))[0] == "seed=1"


@pytest.mark.parametrize(
    ("content", "llm", "said"),
    [
        ({"learning_rat": 1, "wibble": 2}, None, "learning_rat (did you mean learning_rate?), w"),
        ({"aflow_operators": ["Custom", "SelfAsk"]}, None, "names SelfAsk"),
        ({"reward_weights": 3}, None, "a table of correctness"),
        ({"reward_weights": {"correctness": "much"}}, None, "A weight is a number"),
        ({"rollout_batch_size": 0}, None, "prompts_per_step"),
        ("a: [\n", None, "is not YAML"),
        ({"seed": 1}, {"models": {"a": {"base_ur": 1}}}, "unknown keys: base_ur"),
        ({"seed": 1}, {"models": {"a": 3}}, "should be a table"),
        ({"seed": 1}, {"models": {}}, "has no models"),
        ({"seed": 1}, {"models": {"a": {}, "b": {}}}, "the executor is not named"),
        ({"aflow_executor_model": "c"}, {"models": {"a": {}, "b": {}}}, "the executor is c"),
        ({"seed": 1}, {"models": {"a": {"base_url": ["x"]}}}, "one plain value"),
    ],
)
def test_files_that_do_not_fit(tmp_path, capsys, content, llm, said):
    words = [f"file={written(tmp_path, content)}"]
    words += [f"llm={written(tmp_path, llm, 'llm.yaml')}"] if llm else []
    assert main(["overrides", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["overrides", f"file={tmp_path / 'none.yaml'}"]) == 2
    assert "file=" in capsys.readouterr().err
    file = written(tmp_path, {"seed": 1})
    assert main(["overrides", f"file={file}", f"llm={tmp_path / 'none.yaml'}"]) == 2
    assert "llm=" in capsys.readouterr().err
    assert main(["overrides", f"file={file}"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "seed=1",
        "# for the lines above: python -m experiments.sweep experiment=workflow-full SETTINGS"
        " plan=true",
    ]


def test_the_table_names_settings_and_readers_that_there_are():
    flat = flatten(dataclasses.asdict(Study()))
    for name, meaning in TABLE["keys"].items():
        assert name == name.lower() and {"to", "as", "why"} & meaning.keys()
        if "as" in meaning:
            assert meaning["as"] in WORDS.readers and meaning["as"] not in READERS
        if "to" in meaning:
            assert meaning["to"] in flat
