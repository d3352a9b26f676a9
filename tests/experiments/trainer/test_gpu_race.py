"""The race for GPUs runs its every line on a CPU, and counts operations as PyTorch does."""

import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.trainer import gpu
from benchmarks.trainer.gpu import by_segment, operations
from benchmarks.trainer.peers import make_batch, make_trainer, qwen25
from benchmarks.trainer.update import update
from experiments.plan.memory import read_shape
from experiments.trainer import prefix


def test_every_line_that_can_runs_on_a_cpu(monkeypatch, capsys) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as the race sets it
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(sys, "argv", ["gpu", "shape=tiny", "device=cpu", "rounds=2"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gpu.main()
    said = capsys.readouterr().out
    for line in (
        "layout: by size",
        "update, TRL as it is: gradients differ by",
        "update, TRL without checkpointing: gradients differ by",
        "update, TRL's packed forward: gradients differ by",
        " TFLOP/s, ",
        "generation: 16 of 16 rows alike",
    ):
        assert line in said
    assert said.count("ratio: median") == 4


@pytest.mark.parametrize("words", [["shape=3B"], ["device=cuda"], ["speed=x"], ["rounds=1"]])
def test_what_it_cannot_race_is_said(words, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu", *words])
    with pytest.raises(SystemExit, match=r"legal are|no GPU here"):
        gpu.main()


def test_operations_are_those_that_pytorch_counts(tmp_path: Path) -> None:
    """Its counter leaves attention out on a CPU, so few tokens stand beside many weights."""
    trainer = make_trainer(qwen25("tiny"), rank=4, rows=16, beta=0.0)
    batch = make_batch(trainer, prompt=8, mean=4, longest=6, prompts=2)
    trainer._checked, trainer._layouts = {True, False}, [prefix.Loop]
    with FlopCounterMode(display=False) as counter:
        update(trainer, batch, True)
    trainer.model.config.save_pretrained(tmp_path)
    shape = read_shape(tmp_path)
    assert shape is not None
    assert operations(shape, batch, 4) == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_segments_see_their_path_and_themselves() -> None:
    """Against one row whose mask says the same."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 5, 2, 4)
    path = torch.tensor([0, 1, *(0, 1, 2), *(0, 1, 3, 4)])  # a prompt of two tokens, two answers
    ends_q, ends_k = torch.tensor([0, 2, 3, 5]), torch.tensor([0, 2, 5, 9])
    out = by_segment(q, k[path], v[path], ends_q, ends_k, softmax_scale=None)
    sees = torch.tensor(
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 1, 1]]
    ).bool()
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), attn_mask=sees
    )[0].transpose(0, 1)
    torch.testing.assert_close(out, expected)
