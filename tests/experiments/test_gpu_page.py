"""`make gpu`: its page by parts that are fakes, and its real parts where they run without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import cells, colocate, outcome
from benchmarks.gpu.models import SIZES, make_model
from benchmarks.gpu.outcome import ABSENT, FAILED, PASSED, Outcome, run_part
from benchmarks.gpu.parts import PARTS, Part
from experiments.plan.memory import read_shape
from experiments.sweep import cells_of
from experiments.trainer import vllm
from tests.conftest import ROOT, run_alone
from tests.experiments.test_generate import single
from tests.waiting import alive, wait_for

FAKES = {
    "passes": "print('chatter')\nprint('ratio: 3.1')\n",
    "breaks": "raise AssertionError('gradients differ by 2')\n",
    "lacks": "print('ratio: none')\nimport no_such_library.inner\n",
    "own": "import benchmarks.no_such_file\n",
    "hangs": (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(600)\n"
    ),
}


@pytest.fixture
def fakes(tmp_path, monkeypatch) -> dict[str, Part]:
    """Parts of which one ends in each way."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    for name, text in FAKES.items():
        (folder / f"fake_{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
    parts = [Part(name, (f"fake_{name}",), None, ("json",), shows="ratio|^[0-9]") for name in FAKES]
    parts += [
        Part("two", ("fake_passes",), None, ("json",), gpus=2),
        Part("library", ("fake_passes",), None, ("json", "no_such_library")),
        Part("program", ("fake_passes",), None, ("json",), programs=("no-such-program",)),
        Part("rehearsed", ("fake_breaks",), ("fake_passes",), ("json",), shows="ratio"),
    ]
    return {part.name: part for part in parts}


def test_a_page_has_a_line_for_each_part_however_it_ends(
    fakes, tmp_path, monkeypatch, capsys, gpus_here
) -> None:
    gpus_here(1)
    several = [part for part in fakes.values() if part.name != "hangs"]
    monkeypatch.setattr(gpu, "PARTS", several)
    monkeypatch.setattr(gpu, "LOGS", tmp_path / "logs")
    out = tmp_path / "gpu.json"
    assert gpu.main([f"out={out}"]) == 1  # some failed
    page = capsys.readouterr().out
    content = json.loads(out.read_text())
    found = {each["part"]: (each["outcome"], each["reason"]) for each in content["parts"]}
    assert found["passes"] == (PASSED, "")
    assert found["breaks"][0] == FAILED and "gradients differ by 2" in found["breaks"][1]
    assert found["lacks"] == (ABSENT, "there is no no_such_library")
    assert found["own"][0] == FAILED  # ours, so it is no lack of the machine's
    assert found["two"] == (ABSENT, "it needs 2 GPUs, and this process may use 1")
    assert found["library"] == (ABSENT, "there is no no_such_library")
    assert found["program"] == (ABSENT, "there is no command no-such-program")
    assert found["rehearsed"][0] == FAILED
    for name, (ended, _) in found.items():
        assert sum(line.startswith(f"{ended:<19}{name}") for line in page.splitlines()) == 1
    assert "chatter" not in page and page.count("ratio: 3.1") == 1
    assert content["machine"]["gpus"] == [{"model": "NVIDIA H200", "gib": 140.4}]
    assert content["machine"]["packages"]["torch"] and content["command"].startswith("make gpu")
    assert gpu.main([f"out={out}", "part=passes,two"]) == 0


def test_without_a_gpu_nothing_is_tried_or_written(tmp_path, capsys, gpus_here) -> None:
    gpus_here(0)
    out = tmp_path / "gpu.json"
    assert gpu.main([f"out={out}"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "WORDS=device=cpu" in said.err
    assert not out.exists()


def test_the_page_needs_python_alone() -> None:
    """A machine with a GPU may lack all that the parts need."""
    loaded = run_alone(
        "import sys; sys.modules |= dict.fromkeys(['torch', 'yaml', 'numpy', 'omegaconf']);"
        "from benchmarks.gpu.__main__ import main; print(main(['device=cuda', 'part=flex']))"
    )
    assert loaded.strip() == "2"


@pytest.mark.parametrize(
    "words",
    [["part=no"], ["speed=2"], ["device=tpu"], ["minutes=x"], ["checkpoint=here"], ["part=ifeval"]],
)
def test_a_wrong_word_is_answered_with_what_is_legal(words, capsys, gpus_here) -> None:
    gpus_here(1)
    assert gpu.main(words) == 2
    assert "legal" in (said := capsys.readouterr().err) or "takes run=" in said


def test_what_hangs_is_ended_with_all_that_it_started(fakes, tmp_path) -> None:
    ended = run_part(fakes["hangs"], 1, False, tmp_path / "logs", left_s=4)
    assert ended.outcome == FAILED and ended.reason.startswith("no end after 4 s")
    child = int(ended.lines[0])
    wait_for(lambda: not alive(child), "its child has ended, too")
    over = run_part(fakes["passes"], 1, False, tmp_path / "logs", left_s=0)
    assert over.outcome == ABSENT and "minutes=" in over.reason


def test_a_rehearsal_takes_other_words_and_writes_no_page_of_a_gpu(
    fakes, tmp_path, monkeypatch, gpus_here
) -> None:
    gpus_here(0)
    monkeypatch.setattr(gpu, "PARTS", [fakes["rehearsed"], fakes["passes"]])
    monkeypatch.setattr(gpu, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(gpu, "OUT", tmp_path / "gpu.json")
    assert gpu.main(["device=cpu"]) == 0
    assert not (tmp_path / "gpu.json").exists()
    assert outcome.lacking(fakes["passes"], 0, cpu=True) == "it has no rehearsal on a CPU"


def test_ifeval_takes_a_path_only() -> None:
    words = gpu.read_words(["checkpoint=model=/models/mine"])
    (*others, last) = gpu.chosen(words)
    assert [part.name for part in others] == [part.name for part in PARTS]
    assert last.name == "ifeval" and "model=/models/mine" in last.command


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A random model of the smallest size."""
    return make_model(tmp_path_factory.mktemp("models") / "policy", "tiny")


def test_a_random_model_takes_any_text_and_says_text(model) -> None:
    from experiments.evaluation.generate import source_of
    from experiments.evaluation.options import Options

    source = source_of(Options(model=str(model), max_tokens=6))
    assert source is not None and source.tokenizer is not None
    tokenizer = source.tokenizer()
    for text in ("Größe: 5 µm <b>", "1, 2\n\t3"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer) == SIZES["tiny"]["vocab_size"]
    rows: list[Any] = []
    source.answer(single("What is 2 + 2?"), rows.append)
    assert rows[0]["response"] and rows[0]["tokens"] == 6
    shape = read_shape(model)
    assert shape is not None and shape.layers == 2


@pytest.mark.parametrize("kind", ["bf16", "fsdp", "zero3", "server", "leases"])
def test_the_words_of_a_cell_compose(kind, tmp_path, gpus_here) -> None:
    gpus_here(2)
    (cell,) = cells_of(cells.settings(kind, tmp_path, cpu=True))
    config = cell.config
    assert (config.trainer.steps, config.policy.path) == (cells.STEPS, str(tmp_path / "policy"))
    assert config.trainer.prompts_per_step * config.trainer.group_size == cells.ROLLOUTS
    if kind == "server":
        assert vllm.command(config) == f"trl vllm-serve --model {tmp_path}/policy --port 8765"
    if kind == "leases":
        assert config.judge.serve.auto and config.sweep.gpus_per_cell == 0.5
    if kind == "zero3":
        on_gpus = cells.accelerate_file(kind, tmp_path, cpu=False).read_text()
        assert "num_processes: 2\n" in on_gpus and "zero_stage: 3" in on_gpus


def test_the_words_of_colocate_compose_to_the_rollouts_that_are_checked() -> None:
    (cell,) = cells_of([*colocate.SETTINGS, "policy.path=x"])
    trainer = cell.config.trainer
    assert trainer.steps * trainer.prompts_per_step * trainer.group_size == colocate.ROLLOUTS
    assert trainer.vllm.mode == "colocate"


ENGINES = colocate.Engines([0.9, 0.9, 1.26], [0.04, 0.05, 0.05])
GOOD = colocate.Proof(ENGINES, 0.9, 0.7, 0.8, 0.3, 1.0, colocate.ROLLOUTS)


@pytest.mark.parametrize(
    "fault",
    [
        {"engines": colocate.Engines([1.26, 1.26, 1.26], ENGINES.differences)},
        {"engines": colocate.Engines(ENGINES.ratios, [0.04, 0.05, 0.2])},
        {"moved": 0.0},
        {"returned": 0.3},
        {"rollouts": 23},
        {"same": 0.4},
        {"same_after": 0.3},
    ],
)
def test_weights_that_do_not_arrive_are_seen(fault) -> None:
    GOOD.check()
    with pytest.raises(AssertionError):
        colocate.Proof(**{**vars(GOOD), **fault}).check()


def test_a_step_that_says_nothing_of_vllm_is_no_agreement() -> None:
    whole = {"policy/vllm_ratio": 1.0, "policy/vllm_logp_difference": 0.05}
    assert colocate.Engines.of([whole, whole]) == colocate.Engines([1.0, 1.0], [0.05, 0.05])
    for steps in ([], [whole, {**whole, "policy/vllm_logp_difference": None}]):
        with pytest.raises(AssertionError, match="not in every step"):
            colocate.Engines.of(steps)


def test_flex_is_plain_attention_without_a_gpu(monkeypatch, capsys) -> None:
    from benchmarks.gpu import flex

    monkeypatch.setattr("sys.argv", ["flex", "device=cpu"])
    flex.main()
    assert "149 tokens, torch.float32: result" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("name", [part.name for part in PARTS if part.on_cpu])
def test_every_part_is_rehearsed_on_a_cpu(name, tmp_path) -> None:
    part = next(part for part in PARTS if part.name == name)
    ended: Outcome = run_part(part, 0, True, tmp_path, left_s=part.limit_s)
    assert ended.outcome == PASSED, ended.text
    assert ended.lines
