"""What is said of a cell and of a study, from its records."""

import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.records.frames import runs_frame
from experiments.monitor.read import StudyReader, View, totals
from experiments.monitor.screen import summary
from study.cell.folder import CellFolder
from study.cell.records import METRICS
from study.errors import UserError
from tests.experiments.monitoring.conftest import ENDED, lay, record, run
from tests.plain_user import plain_user


def view_of(folder: CellFolder) -> View:
    return next(view for view in StudyReader(folder.study_dir).views() if view.folder == folder)


def test_a_running_cell(folder):
    began = time.time()
    run(folder, 12, silent_s=3)
    metrics = {"truth__mean": 0.5, "judge__mean": 0.75, "bias__judge_minus_truth": 0.25}
    shares = {"judge__unscored_frac": 0.125, "reward__frac_zero_std": 0.5}
    record(folder, 12, pause_s=4, policy__length_tokens=10.0, **metrics, **shares)
    view = view_of(folder)
    assert (view.arm, view.judge, view.seed, view.state) == ("fair", "fair", 0, "running")
    assert (view.phase, view.step, view.steps) == ("judging", 12, 40)
    assert view.s_per_step == pytest.approx(4.0) and view.eta_s == pytest.approx(28 * 4.0)
    assert view.tokens_per_s == pytest.approx(8 * 8 * 10 / 4)
    assert (view.truth, view.judge_mean, view.gap) == (0.5, 0.75, 0.25)
    assert (view.unscored, view.zero_std) == (0.125, 0.5)
    assert view.beat_age_s is not None and not view.stalled
    assert 3 - 1e-3 <= view.beat_age_s <= 3 + (time.time() - began) + 1e-3


def test_a_metric_that_the_last_step_does_not_have_is_not_that_of_an_earlier_one(folder):
    record(folder, 3, truth__mean=0.5, judge__mean=0.5)
    record(folder, range(4, 5), truth__mean=0.25)
    view = view_of(folder)
    assert (view.truth, view.judge_mean, view.unscored) == (0.25, None, None)


def test_domains_come_from_the_last_evaluation_and_the_last_steps(folder):
    record(folder, range(0, 1), **{"eval__averages__math": 0.5, "eval__averages__by_domain": 0.9})
    record(folder, range(1, 4), domain__qa__truth=0.25, domain__qa__tokens=7.0)
    record(folder, range(4, 6), domain__math__gap=0.5)
    domains = view_of(folder).domains
    assert list(domains) == ["math", "qa"]
    assert (domains["math"]["accuracy"], domains["math"]["accuracy_step"]) == (0.5, 0)
    assert (domains["math"]["gap"], domains["qa"]["truth"]) == (0.5, 0.25)
    assert domains["qa"]["accuracy"] is None and "tokens" not in domains["qa"]


@pytest.mark.parametrize("state", ["new", "failed", "killed", "done"])
def test_states_that_stand_in_the_records(folder, state):
    run(folder, 3, state=state)
    if state == "done":
        (folder / "DONE").touch()
    view = view_of(folder)
    assert view.state == folder.state() == state
    assert view.eta_s is view.beat_age_s is view.tokens_per_s is None


def test_a_cell_whose_process_is_gone_was_killed_though_it_beat_a_moment_ago(folder):
    run(folder, 3, pid=ENDED)
    assert view_of(folder).state == folder.state() == "killed"


def test_a_silent_cell_is_stalled_while_its_lock_is_held_and_killed_after(folder):
    run(folder, 3, silent_s=90)
    with folder.lock():  # ty: ignore[invalid-context-manager]
        view = view_of(folder)
        assert (view.state, view.stalled) == ("running", True)
        run(folder, 3, silent_s=50)
        assert not view_of(folder).stalled
    run(folder, 3, silent_s=90)
    assert view_of(folder).state == "killed"


def test_slow_steps_may_be_silent_for_longer(folder):
    record(folder, 5, pause_s=40.0, truth__mean=0.5)
    with folder.lock():  # ty: ignore[invalid-context-manager]
        run(folder, 5, silent_s=190)
        view = view_of(folder)
        assert view.silent_limit_s == pytest.approx(200) and not view.stalled
        run(folder, 5, silent_s=210)
        assert view_of(folder).stalled


def test_a_cell_of_another_host_is_taken_at_its_word(folder):
    run(folder, 3, pid=ENDED, host=f"not-{socket.gethostname()}")
    assert view_of(folder).state == "running"


def test_looking_does_not_take_the_lock_from_a_cell_that_starts(folder):
    run(folder, 3, silent_s=90)
    view_of(folder)
    held = folder.lock()
    assert held is not None
    held.close()


def test_damaged_files_are_one_line_each_and_the_other_cells_are_read(tmp_path):
    first, second, third = lay(tmp_path, "a", "b", "c")
    for folder in (first, second, third):
        run(folder, 2)
        record(folder, 2, truth__mean=0.5)
    (first / "status.json").write_text('{"state": "runn')
    (first / METRICS).write_bytes(b"\x00\xff\n" + (second / METRICS).read_bytes())
    (second / "config.yaml").write_text("judge: [")
    views = {view.folder: view for view in StudyReader(first.study_dir).views()}
    assert views[first].step == 2 and views[first].truth == 0.5
    assert (
        "status.json" in views[first].problem and "altered or damaged lines" in views[first].problem
    )
    assert "config.yaml" in views[second].problem and "\n" not in views[second].problem
    assert (views[second].judge, views[second].seed) == (None, None)
    assert views[third].problem == ""


def test_cells_that_are_added_while_one_looks(tmp_path):
    lay(tmp_path, "fair")
    reader = StudyReader(tmp_path / "mine")
    assert [view.arm for view in reader.views()] == ["fair"]
    (new,) = lay(tmp_path, "lenient")
    assert [view.arm for view in reader.views()] == ["fair", "lenient"]
    run(new, 7)
    assert {view.arm: view.step for view in reader.views()} == {"fair": 0, "lenient": 7}


def test_arms_are_called_as_the_report_calls_them(tmp_path):
    lay(tmp_path, "fair", "lenient")
    lay(tmp_path, "fair", seed=1, steps=20)
    arms = {view.cell: view.arm for view in StudyReader(tmp_path / "mine").views()}
    runs = runs_frame(tmp_path / "mine")
    assert arms == dict(zip(runs["cell"], runs["arm"], strict=True)) and len(arms) == 3


def test_a_folder_that_holds_no_study(tmp_path):
    (tmp_path / "probes").mkdir()
    with pytest.raises(UserError, match="holds no study"):
        StudyReader(tmp_path / "probes")


@pytest.mark.parametrize("mode", [0o000, 0o300], ids=["closed", "not to be listed"])
def test_a_folder_that_may_not_be_read(folder, mode):
    folder.study_dir.chmod(mode)
    try:
        with plain_user(), pytest.raises(UserError, match=r"cannot be read \(Permission denied\)"):
            StudyReader(folder.study_dir)
    finally:
        folder.study_dir.chmod(0o700)


def test_totals_of_a_study(tmp_path):
    first, second, third, _ = lay(tmp_path, "a", "b", "c", "d")
    for folder, step in ((first, 10), (second, 20)):
        run(folder, step)
        record(folder, step, pause_s=2.0, cost__usd=0.5, cost__calls=64.0)
    run(third, 40, state="done")
    (third / "DONE").touch()
    told = totals(StudyReader(first.study_dir).views())
    assert told.items() >= {"cells": 4, "new": 1, "running": 2, "done": 1, "failed": 0}.items()
    assert (told["step"], told["steps"]) == (70, 160)
    assert (told["usd"], told["calls"]) == (15.0, 30 * 64.0)
    # 30 + 20 steps of the running ones and 40 of the new one, two at a time
    assert told["eta_s"] == pytest.approx((30 + 20 + 40) * 2.0 / 2)


@pytest.mark.parametrize(
    ("phases", "path", "what"),
    [
        (("starting", "starting"), "tiny", "starting"),
        (("starting", "warming"), "tiny", "warming up the policy"),
        (("warming", "warming"), "Qwen/Qwen3-8B", "loading the policy"),
        (("warming", "judging"), "tiny", None),
    ],
)
def test_before_their_first_step_it_is_said_what_cells_do(tmp_path, phases, path, what):
    now = time.time()
    views = [
        View(name, folder, state="running", phase=phase, status={"started": now - ago})
        for name, folder, phase, ago in zip(
            "ab", lay(tmp_path, "a", "b"), phases, (12, 5), strict=True
        )
    ]
    for view in views:
        view.config["policy.path"] = path
    sums = totals(views)
    assert sums["start"] == what
    assert (f"{what}, " in summary(sums)) is (what is not None)
    assert (sums["start_s"] is None) if what is None else (sums["start_s"] >= 12)


@given(st.dictionaries(st.sampled_from(["state", "step", "beat", "pid", "host"]), st.text()))
def test_no_status_whatever_it_holds_stops_the_monitor(tmp_path_factory, content):
    (folder,) = lay(tmp_path_factory.mktemp("runs"), "fair")
    run(folder, 3)
    (folder / "status.json").write_text(str(content).replace("'", '"'))
    assert view_of(folder).state in ("new", "running", "done", "failed", "killed")


def test_what_the_monitor_needs_loads_nothing_heavy():
    program = (
        "import sys, experiments.monitor\n"
        "heavy = {'torch', 'transformers', 'mlflow', 'pandas', 'scipy', 'hydra', 'aiohttp'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_clock_that_went_back_is_no_negative_silence(folder):
    run(folder, 3, beat=time.time() + 500)
    assert view_of(folder).beat_age_s == 0
