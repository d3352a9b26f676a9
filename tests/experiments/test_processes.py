"""A cell with several processes is the cell with one."""

import contextlib
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from safetensors.torch import load_file
from transformers import Qwen2Config

from experiments.plan import memory
from experiments.plan.memory import read_shape, step_memory
from experiments.plan.preflight import check_names
from experiments.policies import checkpoints
from experiments.trainer import processes
from experiments.trainer.grpo import grpo_config
from experiments.trainer.processes import check_batch, check_processes, processes_of
from study.cell.folder import CellFolder, study_cells
from study.config.presets import SHIPPED
from study.config.schema import Lora, Policy, Study, Sweep, Task, Trainer
from study.errors import UserError
from study.finding import stop_at_problem
from study.system.files import write_text
from tests.commands import start
from tests.conftest import RECORDS_ONLY, SLOWLY
from tests.experiments.test_memory import QWEN2_7B
from tests.faults import lives
from tests.waiting import GENEROUS_S, wait_for

ACCELERATE = SHIPPED / "accelerate"
CPU = ACCELERATE / "ddp-cpu.yaml"


def by(file: Path | str, **settings: Any) -> Study:
    return Study(sweep=Sweep(accelerate=str(file)), **settings)


@pytest.mark.parametrize("file", sorted(ACCELERATE.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_shipped_file_is_read_as_accelerate_reads_it(file) -> None:
    asked, theirs = processes_of(by(file)), load_config_from_file(str(file))
    assert asked.count == theirs.num_processes
    assert asked.kind == theirs.distributed_type.value
    assert asked.on_cpu == theirs.use_cpu == (file == CPU)
    assert asked.zero_stage == {"zero2": 2, "zero3": 3}.get(file.stem, 0)


GOOD = "distributed_type: FSDP\nnum_processes: 4\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is not a file. Presets are"),
        ("- 1\n", "holds no keys and values"),
        ("num_processes: 4\n", "has distributed_type: None, which must be one of MULTI_GPU"),
        (GOOD.replace("4", "1"), "has num_processes: 1, which must be a whole number from 2"),
        (GOOD.replace("4", "yes"), "has num_processes: True"),
        (GOOD + "num_machines: 2\n", "has num_machines: 2, which must be 1"),
        (
            "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {zero_stage: 9}\n",
            "has deepspeed_config.zero_stage: 9",
        ),
    ],
)
def test_a_file_that_cannot_train_a_cell_is_refused(tmp_path, text, said) -> None:
    file = tmp_path / "asked.yaml"
    if text is not None:
        write_text(file, text)
    with pytest.raises(UserError) as refused:
        processes_of(by(file))
    assert said in str(refused.value) and "Type sweep.accelerate=FILE" in str(refused.value)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((3, 3, 9), "The 2 processes of sweep.accelerate do not divide the 9 rollouts"),
        ((4, 6, 8), "does not divide the 12 rollouts that each of the 2 processes takes"),
    ],
)
def test_rollouts_that_cannot_be_shared_are_refused(batch, said) -> None:
    prompts, group, rows = batch
    trainer = Trainer(prompts_per_step=prompts, group_size=group, micro_batch=rows)
    check_batch(trainer)
    with pytest.raises(UserError, match=said):
        check_batch(trainer, 2)


def test_the_plan_counts_the_processes_and_one_needs_no_file() -> None:
    trainer = Trainer(prompts_per_step=3, group_size=3, micro_batch=9)
    with pytest.raises(UserError, match=r"task\.name"):
        stop_at_problem(check_names(by(CPU, trainer=trainer)))
    with pytest.raises(UserError, match="do not divide the 9 rollouts"):
        stop_at_problem(check_names(by(CPU, trainer=trainer, task=Task(name="instruct-mini"))))
    assert processes_of(Study()).count == 1


def test_a_step_stays_a_step(tmp_path, monkeypatch) -> None:
    """Rollouts of a generation and of an update are those of one process, shared out."""
    config = Study(trainer=Trainer(prompts_per_step=4, group_size=4, micro_batch=4))
    alone = grpo_config(config, tmp_path)
    monkeypatch.setattr(processes, "count", lambda: 2)
    ours = grpo_config(config, tmp_path)
    assert alone.generation_batch_size == ours.generation_batch_size == 16
    assert (alone.gradient_accumulation_steps, ours.gradient_accumulation_steps) == (4, 2)
    assert ours.per_device_train_batch_size == alone.per_device_train_batch_size == 4
    whole = Study(trainer=Trainer(prompts_per_step=4, group_size=4, micro_batch=16))
    assert grpo_config(whole, tmp_path).per_device_train_batch_size == 8


def test_memory_is_that_of_one_process(tmp_path) -> None:
    Qwen2Config(**QWEN2_7B).save_pretrained(tmp_path)
    shape = read_shape(tmp_path)
    assert shape is not None
    policy = Policy(path=str(tmp_path), dtype="bfloat16", lora=Lora(r=64))
    alone = step_memory(shape, Study(policy=policy))
    cut = {"ddp-cpu": (1, 1), "fsdp": (8, 8), "zero2": (1, 8), "zero3": (8, 8)}
    for name, (weights, training) in cut.items():
        parts = step_memory(shape, by(ACCELERATE / f"{name}.yaml", policy=policy))
        assert parts["weights"] == alone["weights"] // weights
        assert parts["training"] == alone["training"] // training


def test_gpus_and_deepspeed_are_there_before_launch(tmp_path, monkeypatch, gpus_here) -> None:
    def cell(name: str) -> Any:
        return SimpleNamespace(config=by(ACCELERATE / f"{name}.yaml"))

    gpus_here(2)
    assert memory._device(Study())[0] == "the GPU NVIDIA H200"
    stop_at_problem(check_processes([cell("ddp-cpu")]))
    with pytest.raises(UserError, match=r"asks for 8 processes with a GPU each, .* has 2"):
        stop_at_problem(check_processes([cell("ddp-cpu"), cell("fsdp")]))
    gpus_here(8)
    stop_at_problem(check_processes([cell("fsdp")]))
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed/__init__.py").touch()
    with monkeypatch.context() as patched:
        patched.syspath_prepend(tmp_path)
        stop_at_problem(check_processes([cell("zero3")]))
    with pytest.raises(UserError, match="needs DeepSpeed"):
        stop_at_problem(check_processes([cell("zero3")]))


def test_parts_of_other_processes_are_no_policy() -> None:
    sharded = ("pytorch_model_fsdp.bin", "optimizer_0/__0_0.distcp", "global_step2/mp_rank_00.pt")
    for name in (*sharded, "latest", "zero_to_fp32.py", "rng_state_1.pth"):
        assert name.startswith(checkpoints.FOR_TRAINING)
    assert not "adapter_model.safetensors".startswith(checkpoints.FOR_TRAINING)


WORDS = (*RECORDS_ONLY, *lives.FLAKY, f"sweep.accelerate={CPU}", "sweep.threads=2")
"""One of the cells of `small_study`, by two processes."""


@pytest.fixture(scope="module")
def ours(trained, tmp_path_factory) -> Path:
    """The cell as two processes made it."""
    runs_dir = tmp_path_factory.mktemp("pair")
    done = trained(runs_dir, *WORDS)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = study_cells(runs_dir / "debug")
    return folder.path


@pytest.mark.slow
def test_two_processes_make_the_cell_of_one(small_study, ours) -> None:
    whole = small_study / ours.name  # the same hash
    log = (ours / "log.txt").read_text()
    assert "step 2/2" in log and log.count("step 1/2") == 1
    for row, other in zip(*(lives.parts(f, "rollouts") for f in (ours, whole)), strict=True):
        assert row.keys() == other.keys()
        for name, value in row.items():
            wanted = other[name]
            if isinstance(value, float):
                wanted = pytest.approx(wanted, rel=1e-3, abs=1e-4)
            assert value == wanted
    mine, theirs = lives.content(ours), lives.content(whole)
    assert mine["verdicts"] == theirs["verdicts"]
    assert (mine["state"], mine["DONE"], mine["policy"]) == ("done", True, theirs["policy"])
    for line, other in zip(CellFolder(ours).lines(), CellFolder(whole).lines(), strict=True):
        assert line["metrics"].keys() == other["metrics"].keys()
        assert line["metrics"]["trainer/shared_prefix"] == 1.0
        for name in ("policy/loss", "policy/entropy", "policy/grad_norm", "reward/mean"):
            near = pytest.approx(other["metrics"][name], rel=1e-3, abs=1e-5)
            assert line["metrics"][name] == near
    weights, others = (load_file(f / "policy/adapter_model.safetensors") for f in (ours, whole))
    for name, weight in weights.items():
        # Adam's first steps have the size of the learning rate, whatever the gradient's
        torch.testing.assert_close(weight, others[name], rtol=1e-3, atol=1e-4)
    files = {path.name for path in (ours / "checkpoints/checkpoint-2").iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth", checkpoints.COMPLETE} <= files


@pytest.mark.long
@pytest.mark.slow
def test_processes_that_are_stopped_leave_nobody_behind_and_go_on(ours, trained, warmed, tmp_path):
    words = (f"runs_dir={warmed(tmp_path)}", *WORDS, SLOWLY)
    quiet = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    child = start("experiments.sweep", *words, real=True, **quiet)

    def has_step() -> bool:
        assert child.poll() is None
        return any(tmp_path.glob("debug/*/checkpoints/checkpoint-1/COMPLETE"))

    wait_for(has_step)
    child.send_signal(signal.SIGTERM)
    child.wait(GENEROUS_S)
    (folder,) = study_cells(tmp_path / "debug")
    assert folder.state() == "killed"
    wait_for(lambda: not processes_with(str(folder)), "none of its processes is left")
    assert max(line["step"] for line in folder.lines()) == 1
    done = trained(tmp_path, *WORDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 1/2" not in (folder / "log.txt").read_text().rpartition("---\n")[2]
    assert lives.differences(folder.path, ours) == []


def processes_with(word: str) -> list[str]:
    """Command lines of the processes that name ``word``."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode())
    return [line for line in lines if word in line]
