"""A merged folder answers as base and adapter do together, and is written whole or not at all."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from experiments.merge import NOTE, main


@pytest.fixture(scope="module")
def cell(little, tmp_path_factory):
    """A run of a small real model: two adapters, with the tokenizer of their training."""
    torch.manual_seed(0)
    lora = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    run = tmp_path_factory.mktemp("study") / "cell"
    tokenizer = AutoTokenizer.from_pretrained(little)
    tokenizer.chat_template = "{{ messages[0].content }}?"
    for name in ("policy", "checkpoints/checkpoint-2"):
        model = get_peft_model(LlamaForCausalLM.from_pretrained(little), lora)
        model.save_pretrained(str(run / name))
        tokenizer.save_pretrained(run / name)
    judge, task = "{name: sim-fair, endpoint: {model: ''}}", "{name: instruct-mini}"
    policy = f"{{path: {little}, dtype: float32}}"
    (run / "config.yaml").write_text(f"policy: {policy}\njudge: {judge}\ntask: {task}\n")
    return run


def logits(model):
    with torch.no_grad():
        return model(torch.arange(12)[None]).logits


def test_merged_is_base_and_adapter(cell, little, tmp_path, capsys):
    out = tmp_path / "merged"
    assert main([f"run={cell}", f"out={out}", "checkpoint=2"]) == 0
    assert f"vllm serve {out}" in capsys.readouterr().out
    base = AutoModelForCausalLM.from_pretrained(little)
    plain = logits(base)
    adapted = PeftModel.from_pretrained(base, str(cell / "checkpoints" / "checkpoint-2"))
    merged = logits(AutoModelForCausalLM.from_pretrained(out))
    assert torch.allclose(merged, logits(adapted), atol=1e-5)
    assert not torch.allclose(merged, plain, atol=1e-2)


def test_the_folder_is_all_that_a_server_needs(cell, tmp_path):
    out = tmp_path / "merged"
    assert main([f"run={cell}", f"out={out}"]) == 0
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "model.safetensors", "generation_config.json"} <= names
    assert "adapter_config.json" not in names
    assert AutoTokenizer.from_pretrained(out).chat_template == "{{ messages[0].content }}?"
    note = json.loads((out / NOTE).read_text())
    assert note["folder"] == "policy"
    assert (note["training"]["judge"], note["training"]["task"]) == ("sim-fair", "instruct-mini")
    assert out.stat().st_mode & 0o055 == 0o055  # a server that is somebody else can read it
    assert list(tmp_path.iterdir()) == [out]  # nothing half-written beside it


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "needs run= ("),
        (["run={cell}"], "needs out= ("),
        (["run={cell}", "out={out}", "checkpoint=last"], "checkpoint=last is not legal"),
        (["run={cell}", "out={out}", "checkpoint=7"], "does not exist"),
        (["run={out}", "out={out}"], "is not a cell"),
        (["run={cell}", "out={cell}"], "is not an empty folder"),
        (["run={cell}", "out={out}", "model=another"], "and model=another"),
    ],
)
def test_wrong_commands_write_nothing(cell, tmp_path, words, said, capsys):
    out = tmp_path / "merged"
    assert main([word.format(cell=cell, out=out) for word in words]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_base_that_has_moved_can_be_named(cell, little, tmp_path):
    moved = shutil.copytree(little, tmp_path / "elsewhere" / "little")
    assert main([f"run={cell}", f"out={tmp_path / 'm'}", f"model={moved}"]) == 0


def test_a_checkpoint_of_another_base_is_refused(cell, tmp_path, capsys):
    """The run's config names one base and the adapter another."""
    run = shutil.copytree(cell, tmp_path / "cell")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("/little,", "/large,"))
    assert main([f"run={run}", f"out={tmp_path / 'm'}"]) == 2
    assert "large" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_weights_that_do_not_fit_leave_nothing_behind(cell, tmp_path, capsys):
    """A base of the same name and another shape."""
    config = LlamaConfig(vocab_size=40, hidden_size=8, num_hidden_layers=1, intermediate_size=8,
                         num_attention_heads=2, num_key_value_heads=2)  # fmt: skip
    wrong = tmp_path / "other" / "little"
    LlamaForCausalLM(config).save_pretrained(wrong)
    assert main([f"run={cell}", f"out={tmp_path / 'm'}", f"model={wrong}"]) == 2
    assert "does not fit" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
