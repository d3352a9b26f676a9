"""Cells of a rehearsal: what shrinks and by how much, and what is refused."""

import json
from pathlib import Path

import pytest

from experiments.rehearsal.__main__ import Options, work
from experiments.rehearsal.filler import phrases
from experiments.rehearsal.run import KEY, dummy_keys
from experiments.rehearsal.scale import (
    Full,
    Scale,
    check_scale,
    full_study,
    rehearsed_cells,
    settle,
)
from judges.ask.asker import request_keys
from study.config.endpoints import REHEARSED
from study.config.schema import ByAudit
from study.errors import UserError
from study.system import locks

WORDS = ("judge=qwen3-32b,qwq-plus", "seed=0,1,2", "task=mixed-mini")
SCALE = Scale(prompts=(1, 2, 3), steps=2, seeds=1, factor=5.0)


@pytest.fixture(scope="module")
def full() -> Full:
    return full_study("mixed-full", WORDS)


def cells_at(full: Full, prompts: int, folder: Path):
    return rehearsed_cells(
        full, SCALE, prompts, folder, folder / "policy", lambda model: f"http://here/{model.name}"
    )


def test_a_cell_shrinks_by_the_share_of_its_rollouts_and_its_times_by_the_factor(
    full, tmp_path
) -> None:
    qwen, qwq = cells_at(full, 1, tmp_path)  # 1 of 4 prompts, 1 of 3 seeds
    assert [cell.config.seed for cell in (qwen, qwq)] == [0, 0]
    assert qwen.config.trainer.prompts_per_step == 1 and qwen.config.trainer.steps == 2
    assert qwen.config.trainer.group_size == full.config.trainer.group_size == 6
    assert qwen.config.judge.endpoint.max_concurrency == 64 / 4
    assert qwq.config.judge.endpoint.max_concurrency == 16 / 4
    assert qwq.config.judge.endpoint.deadline_s == 600 / 5
    assert qwq.config.judge.endpoint.idle_timeout_s == 120 / 5
    assert qwen.config.judge.endpoint.deadline_s == 60.0  # 300 / 5, and never less
    assert qwq.config.judge.endpoint.backoff_s == pytest.approx(0.1)
    assert qwq.config.judge.endpoint.url == "http://here/qwq-plus"
    assert qwen.config.trainer.max_completion_length == 1024 // 16
    assert qwen.config.trainer.vllm.mode == "none" and qwen.config.device == "cpu"
    assert qwen.config.tracking.uri == f"sqlite:///{tmp_path / 'mlflow.db'}"
    (three, _) = cells_at(full, 3, tmp_path)
    assert three.config.judge.endpoint.max_concurrency == 48


def test_nothing_of_it_can_pass_for_the_real_judges(full, tmp_path) -> None:
    for cell in cells_at(full, 1, tmp_path):
        judge = cell.config.judge
        assert cell.config.study == "rehearsal-mixed-full"
        assert judge.name.startswith("simulated-") and judge.revision == REHEARSED
        assert cell.name.startswith("simulated-")
        real = next(c.config.judge for c in full.cells if judge.name.endswith(c.config.judge.name))
        body = {"model": judge.endpoint.model, "messages": []}
        assert judge.endpoint.model == real.endpoint.model
        assert request_keys(judge)(body, 0) != request_keys(real)(body, 0)
        assert judge.grading == real.grading and judge.price == real.price


def test_judges_that_audit_are_left_out_and_those_that_look_stay(tmp_path) -> None:
    words = ("judge=qwen3-32b", "seed=0", "shadow=[qwen3-8b]", "truth.audit=[qwq-plus]")
    audited = full_study("mixed-full", (*words, "task=mixed-mini", "truth.share=0.2"))
    (cell,) = cells_at(audited, 1, tmp_path)
    assert [judge.name for judge in cell.config.shadow_judges] == ["simulated-qwen3-8b"]
    assert cell.config.truth == ByAudit()


def test_rows_that_are_not_here_are_replaced_and_said_so(tmp_path) -> None:
    missing = full_study("mixed-full", ["judge=qwen3-32b", f"task.path={tmp_path}"])
    assert missing.config.task.name == "mixed-mini"
    assert "task=mixed are not here" in missing.notes[0]
    programs = full_study("workflow-full", ["judge=qwen3-32b"])
    assert programs.config.task.name == "workflow-mini" and programs.config.workflow.form == "dsl"
    assert "programs" in programs.notes[0]


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (Scale((1, 2), 2, 1, 5.0), r"prompts=1,2 must be three"),
        (Scale((1, 2, 2), 2, 1, 5.0), r"prompts=1,2,2 must be three"),
        (Scale((4, 2, 1), 2, 1, 5.0), r"smallest first"),
        (Scale((1, 2, 5), 2, 1, 5.0), r"more prompts a step than experiment=mixed-full"),
        (Scale((1, 2, 3), 501, 1, 5.0), r"steps=501 is more than the 500"),
    ],
    ids="two equal order many steps".split(),
)
def test_a_scale_that_says_nothing_of_full_size_is_refused(scale, words, full) -> None:
    with pytest.raises(UserError, match=words):
        check_scale(full, scale)


def test_as_many_steps_and_prompts_as_full_size_has_are_legal(full) -> None:
    check_scale(full, Scale((1, 2, 4), 500, 1, 5.0))


def test_a_folder_that_another_process_rehearses_in_is_left_alone(tmp_path) -> None:
    words = ["judge=qwen3-32b", "seed=0", "task=mixed-mini"]
    options = Options(
        experiment="mixed-full", settings=words, prompts=[1, 2, 3], steps=2, runs_dir=tmp_path
    )
    options.folder.mkdir(parents=True)
    lock = locks.take(options.folder / ".lock")
    assert lock is not None
    with lock, pytest.raises(UserError, match=r"Another process rehearses in .*mixed-full"):
        work(options)


def test_a_study_that_asks_nobody_is_refused() -> None:
    computed = full_study("quickstart", ["judge=sim-fair", "seed=0"])
    with pytest.raises(UserError, match=r"sim-fair, which is computed here"):
        check_scale(computed, SCALE)


def test_a_folder_holds_one_rehearsal(full, tmp_path) -> None:
    settle(tmp_path / "one", full, SCALE)
    settle(tmp_path / "one", full, SCALE)
    assert json.loads((tmp_path / "one" / "settings.json").read_text())["rehearsal"] == REHEARSED
    with pytest.raises(UserError, match=r"steps was 2, not 3.*runs_dir=ANOTHER_FOLDER"):
        settle(tmp_path / "one", full, Scale((1, 2, 3), 3, 1, 5.0))


def test_no_key_of_the_users_is_used(full, monkeypatch) -> None:
    monkeypatch.setenv("DASHSCOPE_API_KEY", "sk-the-real-one")
    import os

    with dummy_keys([cell.config.judge for cell in full.cells]):
        assert os.environ["DASHSCOPE_API_KEY"] == KEY
    assert os.environ["DASHSCOPE_API_KEY"] == "sk-the-real-one"
    monkeypatch.delenv("DASHSCOPE_API_KEY")
    with dummy_keys([cell.config.judge for cell in full.cells]):
        assert os.environ["DASHSCOPE_API_KEY"] == KEY
    assert "DASHSCOPE_API_KEY" not in os.environ


@pytest.mark.parametrize("most", [64, 256, 1000])
def test_lengths_that_are_cut_off_have_the_mean_that_a_plan_assumes(most) -> None:
    end = 1 / phrases(most)
    # P(length > k) = (1 - end)^k of a geometric length: the sum is the mean of what is cut off
    mean = sum((1 - end) ** k for k in range(most))
    assert mean / most == pytest.approx(0.4, rel=0.02)
