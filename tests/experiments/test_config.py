"""Files in the style of the sources become settings that compose."""

import dataclasses
import shlex
from pathlib import Path

import pytest
import yaml

from experiments.config import __main__ as config
from experiments.config.__main__ import KEYS, READERS, SECTIONS, imported, main
from experiments.sweep import cells_of
from study.config.identity import flatten
from study.config.schema import Study
from study.errors import UserError

SOURCE = {
    "exp_name": "grpo-mixed", "seed": 42, "physical_gpus": [2],
    "model_name": "Qwen2.5-7B-Instruct", "bf16": True,
    "lora_rank": 32, "lora_alpha": 48, "lora_target_modules": "q_proj,k_proj",
    "rollout_batch_size": 4, "num_return_sequences_in_group": 6, "ppo_epochs": 1,
    "learning_rate": "5e-6",  # as YAML reads a number without a point
    "kl_loss_coef": 0.002, "clip_range": 0.1, "max_steps": 300, "gradient_checkpointing": True,
    "temperature": 0.3, "top_p": 0.95, "top_k": 50, "max_new_tokens": 512,
    "judge_model": "gpt-oss-120b", "judge_temperature": 0.5,
    "domain_ratios": {"math": 0.4, "qa": 0.3, "code": 0.3},
}  # fmt: skip
NESTED = {
    "experiment": {"exp_name": "grpo-mixed", "seed": 42},
    "model": {"name": "Qwen2.5-7B-Instruct", "bf16": True},
    "lora": {"rank": 32, "alpha": 48, "target_modules": ["q_proj", "k_proj"]},
    "training": {
        "rollout_batch_size": 4, "num_return_sequences_in_group": 6, "ppo_epochs": 1,
        "max_steps": 300, "gradient_checkpointing": True,
        "optimizer": {"learning_rate": 5.0e-6},
        "grpo": {"clip_range": 0.1, "kl_loss_coef": 0.002},
    },
    "generation": {"temperature": 0.3, "top_p": 0.95, "top_k": 50, "max_new_tokens": 512},
    "judge": {"model": "gpt-oss-120b", "temperature": 0.5},
    "data": {"domain_ratios": {"math": 0.4, "qa": 0.3, "code": 0.3}},
    "hardware": {"physical_gpus": [2]},
}  # fmt: skip
MEANT = {
    "study": "grpo-mixed", "seed": 42, "device": "cuda:2",
    "policy.name": "qwen25-7b", "policy.path": "Qwen/Qwen2.5-7B-Instruct",
    "policy.dtype": "bfloat16", "policy.lora.r": 32, "policy.lora.alpha": 48,
    "policy.lora.target_modules": ".*q_proj|.*k_proj",
    "trainer.prompts_per_step": 4, "trainer.group_size": 6, "trainer.micro_batch": 6,
    "trainer.learning_rate": 5e-6, "trainer.beta": 0.002, "trainer.epsilon": 0.1,
    "trainer.steps": 300, "trainer.gradient_checkpointing": True,
    "trainer.temperature": 0.3, "trainer.top_p": 0.95, "trainer.top_k": 50,
    "trainer.max_completion_length": 512,
    "judge.name": "gpt-oss-120b", "judge.sampling.temperature": 0.5,
    "task.name": "mixed", "task.options.domains.math": 0.4,
    "task.options.domains.qa": 0.3, "task.options.domains.code": 0.3,
}  # fmt: skip


def written(folder: Path, content: object) -> Path:
    path = folder / "training.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def composed(lines: list[str]) -> dict[str, object]:
    """The flat config of the one cell that these settings make."""
    settings = [line for line in lines if not line.startswith("#")]
    (cell,) = cells_of(["experiment=mixed-full", *settings])
    return flatten(cell.data)


@pytest.mark.parametrize("content", [SOURCE, NESTED], ids=["flat", "nested"])
def test_what_is_printed_composes_to_what_the_file_says(tmp_path, capsys, content):
    assert main([f"import={written(tmp_path, content)}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    flat = composed(lines)
    assert {key: flat[key] for key in MEANT} == MEANT
    typed = shlex.split("\n".join(line for line in lines if not line.startswith("#")))
    assert composed(typed) == flat  # as a shell passes the same lines on


def test_what_has_no_counterpart_is_said_with_its_reason(tmp_path):
    content = {
        "ppo_epochs": 4, "physical_gpus": "0,1", "warmup_steps": None,
        "train_dataset": "data/mixed/train_mixed.jsonl", "aflow_executor_model": "gpt-oss-120b",
        "experience_buffer": {"buffer_size": 100, "reward_threshold": 8.0},
        "reward": {"weights": {"correctness": 0.65}},
    }  # fmt: skip
    lines = imported(written(tmp_path, content))
    assert all(line.startswith("# ") for line in lines)
    for key in ("ppo_epochs", "train_dataset", "aflow_executor_model", "physical_gpus", "reward"):
        assert any(line.startswith(f"# {key}: ") for line in lines)
    assert any("experience_buffer" in line for line in lines)


def test_unknown_keys_are_each_named_with_the_nearest_one(tmp_path, capsys):
    content = {"learning_rat": 1, "lora": {"rnk": 3}, "wibble": {"wobble": 2}, "seed": 1}
    assert main([f"import={written(tmp_path, content)}"]) == 2
    captured = capsys.readouterr()
    for said in ("learning_rat (did you mean learning_rate?)", "lora.rnk", "wibble.wobble"):
        assert said in captured.err
    assert not captured.out and captured.err.count("\n") == 1


def test_a_switch_switches_off_what_belongs_to_it(tmp_path):
    content = {"lora_rank": 8, "use_lora": False, "kl_coef": 0.1, "use_kl_loss": False}
    lines = imported(written(tmp_path, content))
    flat = composed(lines)
    assert flat["policy.lora"] is None and flat["trainer.beta"] == 0
    assert "# lora_rank: use_lora switches it off" in lines


def test_models_are_known_by_several_names(tmp_path, monkeypatch):
    seven = ("qwen25-7b", "Qwen/Qwen2.5-7B-Instruct", "/models/Qwen2.5-7B")
    eight = ("Qwen-3-8B", "Qwen/Qwen3-8B")
    names = dict.fromkeys(seven, "qwen25-7b") | dict.fromkeys(eight, "qwen3-8b")
    with monkeypatch.context() as patched:
        patched.setattr(config, "check_composes", lambda *_: None)  # the presets are composed below
        for name, preset in names.items():
            assert imported(written(tmp_path, {"strategy_model": name})) == [f"policy={preset}"]
    assert composed(["policy=qwen25-7b"])["policy.name"] == "qwen25-7b"
    for content, name, place in (
        ({"model": {"name": "qwen3-8b", "path": "/models/mine"}}, "qwen3-8b", "/models/mine"),
        ({"model_name": "someone/Other-1B"}, "Other-1B", "someone/Other-1B"),
    ):
        flat = composed(imported(written(tmp_path, content)))
        assert (flat["policy.name"], flat["policy.path"]) == (name, place)
    (line,) = imported(written(tmp_path, {"judge": "another-judge"}))
    assert line.startswith("# judge: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"rollout_batch_size": [4]}, "one plain value"),
        ({"rollout_batch_size": 0}, "prompts_per_step"),
        ({"rollout_batch_size": 4, "batch_size": 8}, "Leave one of them"),
        ({"domain_ratios": [4, 3, 3]}, "a table of math, qa, code"),
        ({"domain_ratios": "4:3:3"}, "a table of math, qa, code"),
        ({"domain_ratios": {"math": 4, "chemistry": 3}}, "chemistry"),
        ({"domain_ratios": {"math": 4, "qa": 0, "code": 1}}, "above 0"),
        ({"domain_ratios": {"math": 4, "qa": float("nan"), "code": 1}}, "above 0"),
        ({"device": "tpu"}, "cpu or cuda:N"),
        ({"physical_gpus": ["a"]}, "numbers of GPUs"),
        ({"use_lora": "yes please"}, "true or false"),
        ({"adv_estimator": "gae"}, "grpo"),
        ({"lora_target_modules": "a b"}, "names of layers"),
        ({"exp_name": "../up"}, "a plain name"),
        ({"exp_name": "a' b"}, "one plain value"),
        ({f"key_{n}": n for n in range(1001)}, "not a training.yaml"),
        ("- a\n- b\n", "holds no keys and values"),
        ("a: [\n", "is not YAML"),
        ("", "is empty"),
    ],
)
def test_bad_files_are_refused_in_a_paragraph(tmp_path, content, said):
    path = written(tmp_path, content)
    with pytest.raises(UserError) as refusal:
        imported(path)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"import=.*nothing\.yaml does not exist"):
        imported(tmp_path / "nothing.yaml")


def test_a_key_in_the_file_is_never_printed(tmp_path, capsys):
    content = {"judge": {"api_key": "sk-proj-0123456789abcdefghij"}, "seed": 1}
    assert main([f"import={written(tmp_path, content)}"]) == 0
    captured = capsys.readouterr()
    assert "sk-proj" not in captured.out + captured.err and "judge.api_key" in captured.out


def test_the_table_names_settings_and_readers_that_there_are():
    lora = {"r", "alpha", "dropout", "target_modules"}
    flat = set(flatten(dataclasses.asdict(Study()))) | {"task.options.max_repeats"}
    for name, meaning in KEYS.items():
        assert name == name.lower()
        (kind,) = {"to", "as", "why"} & meaning.keys()
        if kind == "as":
            assert meaning["as"] in READERS
        if kind == "to" and not meaning["to"].startswith("policy.lora."):
            assert meaning["to"] in flat, name
        elif kind == "to":
            assert meaning["to"].rpartition(".")[2] in lora
    assert not set(SECTIONS) & {name for name, meaning in KEYS.items() if "to" in meaning}
