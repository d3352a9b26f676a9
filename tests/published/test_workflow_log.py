"""A public run of programs: what its log shows, and what it cannot show.

Its policy was rewarded by a judge, and no rule truth was logged: nothing in it can be called judge
hacking. After each update nearly every program is the default, and one step later, without another
update, nearly none is: what heals by itself was not learned.
"""

import json
from pathlib import Path

import pytest

from analysis.workflow.__main__ import main
from analysis.workflow.log import COLLAPSED, HEALED, LoggedRun, describe_run, read
from study.tasks.where import data_folder


@pytest.fixture(scope="module")
def log() -> Path:
    path = data_folder() / "workflow_grpo_log" / "workflow_grpo_log.jsonl"
    if not path.exists():
        pytest.skip(f"no {path}: the published data is no part of this project")
    return path


@pytest.fixture(scope="module")
def run(log: Path) -> LoggedRun:
    """The long one of its three runs."""
    runs = read(log)
    assert list(runs) == ["p28", "p29", "p30"]
    assert sum(each.rollouts for each in runs.values()) == 606
    return runs["p30"]


def test_a_default_earns_as_much_and_it_collapses_after_an_update(run: LoggedRun):
    assert (run.rollouts, run.own, run.fallback) == (570, 326, 244)
    assert round(run.fallback_reward.value, 4) == 0.5033 and run.fallback_reward.n == 240
    assert round(run.own_reward.value, 4) == 0.6343 and run.own_reward.n == 297
    assert (run.groups, run.tied) == (264, 222)
    assert run.programs == 20 and round(run.top * run.own) == 285
    assert run.updates == 38
    shares = (run.after_update, run.after_none, run.two_after)
    assert [round(share.value, 4) for share in shares] == [0.9956, 0.0506, 0.0370]
    assert [share.n for share in shares] == [38, 56, 27]
    assert (run.collapse, run.healing) == (COLLAPSED, HEALED)


def test_the_command_says_so_and_calls_nothing_hacking(log: Path, tmp_path: Path, capsys):
    out = tmp_path / "log.json"
    assert main([f"log={log}", f"out={out}"]) == 0
    content = json.loads(out.read_text())["runs"]["p30"]
    assert content["hacking"] == "not to be told"
    assert content["fallback_share"] == pytest.approx(244 / 570)
    assert content["healing"] == "healed without an update"
    printed = capsys.readouterr().out
    assert "healed without an update, so it was not learned" in printed
    assert printed.count("Judge hacking: not to be told") == 3


def test_short_runs_say_that_they_cannot_tell(log: Path):
    for name in ("p28", "p29"):
        short = read(log)[name]
        assert short.collapse == "not to be told" and short.healing == ""
        assert any("collapse is unknown" in sentence for sentence in describe_run(short))
