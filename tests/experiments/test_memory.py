"""The memory of a step is counted as the libraries count it; what does not fit is said."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from experiments.plan import memory, preflight
from experiments.plan.memory import GIB, check_memory, peak, read_shape, step_memory
from experiments.sweep import cells_of
from experiments.trainer import fast, prefix
from study.config.schema import Lora, Policy, Study, Sweep, Trainer
from study.config.vllm import Vllm
from study.errors import UserError
from study.finding import note, problem, stop_at_problem
from study.system import files, machine
from tests.experiments.trainer.conftest import make_batch, make_model, whole

QWEN2_7B = {
    "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
}  # fmt: skip


def study(path: Path, lora: Lora | None = None, dtype: str = "bfloat16", **trainer) -> Study:
    policy = Policy(name="policy", path=str(path), dtype=dtype, lora=lora)
    return Study(policy=policy, trainer=Trainer(**trainer))


def cell(config: Study) -> SimpleNamespace:
    return SimpleNamespace(config=config, data=dataclasses.asdict(config))


@pytest.fixture
def the_gpu_has(tmp_path, monkeypatch) -> Callable[[float], None]:
    """Let a GPU have so many bytes, for a policy of 7B in the test's folder."""
    Qwen2Config(**QWEN2_7B).save_pretrained(tmp_path)
    monkeypatch.setattr(files, "PRINTED_LINES", set())
    return lambda size: monkeypatch.setattr(memory, "_device", lambda _: ("the GPU TEST", size))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        (LlamaConfig, {"tie_word_embeddings": True, "head_dim": 64}),
        (Qwen2Config, {}),
        (Qwen3Config, {"head_dim": 128, "tie_word_embeddings": True}),
    ],
)
def test_weights_are_those_of_the_model(tmp_path, family, settings) -> None:
    config = family(**QWEN2_7B, **settings)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        lora = LoraConfig(r=64, target_modules="all-linear", task_type="CAUSAL_LM")
        adapted = get_peft_model(model, lora)
    trained, everything = adapted.get_nb_trainable_parameters()
    shape = read_shape(tmp_path)
    # norms and biases are not counted
    assert shape.weights == pytest.approx(everything - trained, rel=1e-3)
    assert shape.adapter(64) == trained


@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_backward_keeps_is_what_autograd_keeps(tmp_path, checkpointing) -> None:
    """Bytes of the tensors that autograd saves for one packed batch; weights do not count."""
    model = make_model("llama")
    model.config.save_pretrained(tmp_path)
    shape = read_shape(tmp_path)
    model.train()
    for weight in model.parameters():
        weight.requires_grad_(False)
    model.get_input_embeddings().weight.requires_grad_(True)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach(), requires_grad=False)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    fast.install(model, 1.0)
    ids, mask, keep = whole(make_batch([100], [[60] * 8]))
    weights = {weight.data_ptr() for weight in model.parameters()}
    saved: dict[int, int] = {}

    def keep_track(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep_track, lambda tensor: tensor):
        fast.logprobs(model, ids, mask, keep, 1, prefix.Dense)
    tokens = 100 + 8 * 59
    counted = tokens * memory._kept_per_token(shape, checkpointing) * 4
    if checkpointing:  # inputs of the layers and of the head; one layer's rest is kept in backward
        counted = tokens * (shape.layers + 1) * shape.hidden * 4
    assert 0.6 < sum(saved.values()) / counted < 1.6


def test_parts_by_hand(tmp_path) -> None:
    LlamaConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=16, vocab_size=10, tie_word_embeddings=True,
    ).save_pretrained(tmp_path)  # fmt: skip
    shape = read_shape(tmp_path)
    linear = 2 * (2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16)
    assert (shape.linear, shape.weights) == (linear, linear + 80)
    config = study(tmp_path, dtype="float32", beta=0.1, prompts_per_step=1, group_size=2)
    full = step_memory(shape, config, 5)
    assert full["weights"] == 2 * 4 * shape.weights  # the reference is a copy
    assert full["training"] == 4 * shape.weights * 3  # gradient and two moments
    assert full["generation"] == (5 + 32) * 2 * 2 * 4 * 4  # a row at least
    assert peak(full) == full["weights"] + full["training"] + full["update"]


@pytest.mark.parametrize("text", [None, "{", "[]", '{"hidden_size": 8}', '{"hidden_size": "x"}'])
def test_a_config_that_does_not_say_its_shape_is_not_judged(tmp_path, text) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert read_shape(tmp_path) is None
    stop_at_problem(check_memory([cell(study(tmp_path))]))


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"lora": Lora(r=64), "micro_batch": 64}, "trainer.gradient_checkpointing=true"),
        (
            {"lora": Lora(r=64), "micro_batch": 8, "gradient_checkpointing": True}
            | {"max_completion_length": 4096, "prompts_per_step": 64, "group_size": 8}
            | {"fast": False},
            "trainer.prompts_per_step=32",
        ),
        (
            {"lora": Lora(r=64), "micro_batch": 1, "gradient_checkpointing": True}
            | {"max_completion_length": 100_000, "prompts_per_step": 1, "group_size": 2},
            "trainer.max_completion_length=50000",
        ),
    ],
)
def test_what_may_not_fit_is_said_with_what_to_lower(
    tmp_path, the_gpu_has, capsys, settings, remedy
) -> None:
    cells = [cell(study(tmp_path, **settings))]
    the_gpu_has(4000 * GIB)
    stop_at_problem(check_memory(cells))
    assert capsys.readouterr().err == ""
    the_gpu_has(24 * GIB)
    stop_at_problem(check_memory(cells))
    said = capsys.readouterr().err
    assert "the GPU TEST has 24.0 GiB" in said and remedy in said


def test_weights_that_cannot_fit_are_refused(tmp_path, the_gpu_has, capsys) -> None:
    the_gpu_has(24 * GIB)
    with pytest.raises(UserError, match=r"the GPU TEST has 24\.0 GiB.*policy\.lora\.r=64"):
        stop_at_problem(check_memory([cell(study(tmp_path))]))
    assert capsys.readouterr().err == ""


def test_a_plan_says_what_a_sweep_refuses(monkeypatch) -> None:
    small = problem("memory", "The weights do not fit. Type policy.lora.r=64")
    monkeypatch.setattr(preflight, "check_memory", lambda new: [small])
    absent = problem("vLLM", "There is no GPU. Type trainer.vllm.mode=none")
    monkeypatch.setattr(preflight, "check_installed", lambda new, elsewhere: [absent] * len(new))
    for words, said in (([], problem), (["plan=true"], note)):
        todo = cells_of(["judge=sim-fair", "seed=0", "study=never-run", *words])
        expected = [said(found.what, found.message) for found in (absent, small)]
        assert list(preflight.check_sweep(todo)) == expected


def test_what_vllm_takes_is_not_there(tmp_path, the_gpu_has, capsys) -> None:
    settings = {"lora": Lora(r=64), "micro_batch": 8, "gradient_checkpointing": True}
    the_gpu_has(24 * GIB)
    stop_at_problem(
        check_memory([cell(study(tmp_path, **settings, vllm=Vllm("server", "http://a:1")))])
    )
    assert capsys.readouterr().err == ""
    with pytest.raises(UserError, match=r"has 24\.0 GiB, of which vLLM takes 12\.0\."):
        stop_at_problem(
            check_memory([cell(study(tmp_path, **settings, vllm=Vllm("colocate", gpu_memory=0.5)))])
        )


def test_the_memory_of_this_process_is_its_groups(tmp_path) -> None:
    (tmp_path / "proc").mkdir()
    assert machine.memory(tmp_path) == 0
    text = "MemTotal:       2048 kB\nMemFree:  1 kB\nMemAvailable:  7 kB\n"
    (tmp_path / "proc/meminfo").write_text(text)
    assert machine.memory(tmp_path) == 2048 * 1024
    assert machine.free_memory(tmp_path) == 7 * 1024
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert machine.memory(tmp_path) == 2048 * 1024
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{2**20}\n")
    assert machine.memory(tmp_path) == 2**20
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/slurm/job_7\n")
    (tmp_path / "sys/fs/cgroup/slurm/job_7").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/slurm/memory.max").write_text(f"{2**19}\n")
    assert machine.memory(tmp_path) == 2**19


def test_a_gpu_is_asked_where_there_is_one(tmp_path, monkeypatch) -> None:
    """And one too small is refused in one paragraph, by the share of it that a cell has."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    h200, l4 = ("the GPU NVIDIA H200", 143771 * 2**20), ("the GPU NVIDIA L4", 23034 * 2**20)
    assert memory._device(Study()) == h200
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771'\necho 'NVIDIA L4, 23034'\n")
    assert memory._device(Study(device="cuda:1")) == l4
    assert memory._device(Study(device="cuda:0")) == h200
    assert memory._device(Study()) == l4  # a cell may get either
    shared = Study(device="cuda:0", sweep=Sweep(gpus_per_cell=0.25))
    assert memory._device(shared) == ("a share of 0.25 of the GPU NVIDIA H200", 143771 * 2**18)
    assert memory._device(Study(device="cpu")) == ("this machine", machine.memory())
    for script in ("#!/bin/sh\nexit 9\n", "no interpreter is named here"):
        tool.write_text(script)
        assert memory._device(Study()) == ("this machine", machine.memory())
    tool.write_text("#!/bin/sh\necho 'NVIDIA L40S, 46068'\n")
    Qwen2Config(**QWEN2_7B).save_pretrained(tmp_path)
    fits = study(tmp_path, Lora(r=64), gradient_checkpointing=True)
    stop_at_problem(check_memory([cell(fits)]))
    with pytest.raises(UserError) as refused:
        stop_at_problem(
            check_memory([cell(dataclasses.replace(fits, sweep=Sweep(gpus_per_cell=0.25)))])
        )
    said = str(refused.value)
    assert "takes about" in said and "a share of 0.25 of the GPU NVIDIA L40S has 11.2 GiB" in said
    assert "\n" not in said and "Type " in said


def test_the_plans_own_policies_say_their_shape(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_7B))
    assert read_shape(tmp_path).weights == 7_615_283_200  # Qwen2.5-7B without norms, biases


def test_a_copy_that_does_not_fit_can_be_left_out(tmp_path, the_gpu_has) -> None:
    """All weights are trained without a penalty: the initial ones are kept to be measured."""
    settings = {"micro_batch": 8, "gradient_checkpointing": True}
    without = peak(step_memory(read_shape(tmp_path), study(tmp_path, reference=0.0, **settings)))
    the_gpu_has(without + GIB)
    stop_at_problem(check_memory([cell(study(tmp_path, reference=0.0, **settings))]))
    (finding,) = check_memory([cell(study(tmp_path, **settings))])
    assert finding.message.endswith(
        "Type trainer.reference=0 to keep no copy of the initial weights"
    )
