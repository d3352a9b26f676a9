"""Cells as jobs: by submitit's executor for one machine, and on a real cluster of one node."""

import json
import os
import re
import signal
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.waiting import GENEROUS_S, alive, wait_for

pytest.importorskip("submitit", reason="needs the extra: pip install -e .[slurm]")

from experiments.launch import slurm, slurm_job
from experiments.launch.node import describe
from experiments.launch.pool import take_up
from experiments.plan.needs import check_engine
from experiments.slurm import jobs
from experiments.train import PACKAGES
from study.cell import cells
from study.config.schema import Slurm
from study.errors import UserError
from study.finding import stop_at_problem
from study.system.files import write_json
from tests.experiments import fake_cells
from tests.experiments.fake_cells import LASTS, laid, ran
from tests.experiments.slurm_cluster import cluster

LOCAL = {"engine": "slurm", "slurm": Slurm(cluster="local")}


@pytest.fixture
def start():
    """`fake_cells.start`; a sweep that a test leaves is ended with it."""
    begun = []

    def begin(*arguments, **variables):
        begun.append(fake_cells.start(*arguments, **variables))
        return begun[-1]

    yield begin
    for child in begun:
        child.kill()
        child.communicate()


def lives(cell) -> list[int]:
    """Processes that ran the cell, one after the other."""
    file = cell.folder / "lives"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def ledger(cell) -> dict:
    return json.loads((cell.folder.study_dir / slurm.FOLDER / slurm.LEDGER).read_text())


def test_cells_run_as_jobs_and_lost_ones_are_submitted_again(start, tmp_path) -> None:
    """One job is killed once, one fails before its cell is heard of, each time."""
    good, killed, failing = todo = laid(tmp_path / "runs", 3, workers=3, retries=1, **LOCAL)
    (failing.folder / fake_cells.FAILS).touch()
    driver = start(tmp_path, todo, **{LASTS: str(tmp_path / "go")})
    wait_for(lambda: lives(good) and lives(killed))
    os.kill(lives(killed)[0], signal.SIGKILL)
    (tmp_path / "go").touch()
    out, _ = driver.communicate(timeout=GENEROUS_S)
    assert driver.returncode == 0, out
    assert [cell.folder.state() for cell in todo] == ["done", "done", "new"]
    assert [len(lives(cell)) for cell in todo] == [1, 2, 0]
    for cell in (killed, failing):
        said = rf"{cell.name}: its job \d+ was lost \(gone\); it is submitted again, 1 of 1 times"
        assert len(re.findall(said, out)) == 1
    assert ran(killed)["threads"] == 1
    assert ledger(killed) == {}
    left = [*(killed.folder.study_dir / slurm.FOLDER).glob("*_submitted.pkl")]
    assert len(left) == 3  # of those that were lost, which can be looked into
    (log,) = [line for line in out.splitlines() if "its last job's output is in" in line]
    assert fake_cells.FAILS in Path(log.rpartition(" in ")[2]).read_text()


def test_jobs_are_found_again_after_the_sweep_was_killed(start, tmp_path) -> None:
    todo = laid(tmp_path / "runs", 2, workers=2, **LOCAL)
    first = start(tmp_path, todo, **{LASTS: str(tmp_path / "go")})
    wait_for(lambda: all(lives(cell) for cell in todo))
    with pytest.raises(UserError, match=f"is in use: process {first.pid} on"), take_up(todo):
        pass
    first.kill()
    first.wait(GENEROUS_S)
    again = start(tmp_path, todo)
    assert again.stdout is not None
    said = again.stdout.readline()
    (tmp_path / "go").touch()
    assert "2 cells to run as jobs of local, 2 of them submitted earlier" in said
    out, _ = again.communicate(timeout=GENEROUS_S)
    assert again.returncode == 0, out
    assert [len(lives(cell)) for cell in todo] == [1, 1]  # nothing was submitted twice
    first.communicate(timeout=GENEROUS_S)


def test_what_is_stopped_is_cancelled(start, tmp_path) -> None:
    todo = laid(tmp_path / "runs", 2, workers=1, **LOCAL)
    driver = start(tmp_path, todo, **{LASTS: "3600"})
    wait_for(lambda: any(lives(cell) for cell in todo))
    driver.send_signal(signal.SIGINT)
    out, _ = driver.communicate(timeout=GENEROUS_S)
    assert driver.returncode != 0
    pids = [pid for cell in todo for pid in lives(cell)]
    wait_for(lambda: not any(map(alive, pids)))
    assert ledger(todo[0]) == {}, out
    assert len(pids) == 1


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ({"gpus_per_cell": 0.5}, "Slurm gives each job whole ones"),
        ({"slurm": Slurm(cluster="local", more={"colour": "red"})}, "colour"),
    ],
)
def test_settings_that_it_does_not_take_are_refused(tmp_path, sweep, said) -> None:
    with pytest.raises(UserError, match=said):
        stop_at_problem(check_engine(laid(tmp_path / "runs", 1, **(LOCAL | sweep))))


def test_what_is_not_installed_is_named(tmp_path, monkeypatch) -> None:
    todo = laid(tmp_path / "runs", 1, engine="slurm")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"sbatch, which is not on the PATH .*cluster=local"):
        stop_at_problem(check_engine(todo))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs submitit.* pip install -e '\.\[slurm\]'"):
        stop_at_problem(check_engine(todo))


def test_an_earlier_end_is_not_taken_for_this_jobs(tmp_path) -> None:
    (cell,) = laid(tmp_path / "runs", 1)
    cell.folder.set_status(state="failed", exit_code=1, ended=100.0)
    before = slurm.Job("7", 1, cell.folder.status()["ended"])
    assert slurm._code(cell.folder, before) is None
    cell.folder.set_status(ended=200.0)
    assert slurm._code(cell.folder, before) == 1
    cell.folder.set_status(exit_code=cells.STOPPED)
    assert slurm._code(cell.folder, before) is None
    (cell.folder / "DONE").touch()
    assert slurm._code(cell.folder, before) == 0


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def real(variables, monkeypatch) -> None:
    """A cluster that commands of this test ask."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_a_real_cluster_runs_cells_and_a_killed_one_again(start, real, tmp_path) -> None:
    """Five cells on arrays of three jobs at most; one job is killed, one is put back by Slurm, and
    one is cancelled, which stands."""
    todo = laid(tmp_path / "runs", 5, engine="slurm", retries=1)
    stop_at_problem(check_engine(todo))
    driver = start(tmp_path, todo, **{LASTS: str(tmp_path / "go")})
    wait_for(lambda: sum(bool(lives(cell)) for cell in todo) == 4)  # CPUs of the node
    job_of = {cell.name: ledger(cell)[cell.name]["id"] for cell in todo}
    assert len({id.partition("_")[0] for id in job_of.values()}) == 2
    killed, requeued, cancelled, *_ = [cell for cell in todo if lives(cell)]
    os.kill(lives(killed)[0], signal.SIGKILL)
    subprocess.run(["scontrol", "requeue", job_of[requeued.name]], check=True)
    subprocess.run(["scancel", job_of[cancelled.name]], check=True)
    ended = (killed, requeued, cancelled)
    wait_for(lambda: not any(alive(lives(cell)[0]) for cell in ended))
    (tmp_path / "go").touch()
    out, _ = driver.communicate(timeout=GENEROUS_S)
    assert driver.returncode == 0, out
    states = {cell.name: cell.folder.state() for cell in todo}
    assert states.pop(cancelled.name) == "killed" and {*states.values()} == {"done"}
    assert [len(lives(cell)) for cell in ended] == [2, 2, 1]
    assert sum(len(lives(cell)) for cell in todo) == 7
    assert out.count("it is submitted again") == 1 and f"{killed.name}: its job" in out


@pytest.mark.slow
def test_a_real_cluster_is_told_when_the_sweep_ends(start, real, tmp_path) -> None:
    todo = laid(tmp_path / "runs", 2, engine="slurm")
    driver = start(tmp_path, todo, **{LASTS: "3600"})
    wait_for(lambda: all(lives(cell) for cell in todo))
    driver.send_signal(signal.SIGTERM)  # as at the end of a job that is the sweep
    out, _ = driver.communicate(timeout=GENEROUS_S)
    assert "2 jobs are still with Slurm" in out
    driver = start(tmp_path, todo)
    assert driver.stdout is not None and "2 of them submitted earlier" in driver.stdout.readline()
    ids = [ledger(cell)[cell.name]["id"] for cell in todo]
    driver.send_signal(signal.SIGINT)
    out, _ = driver.communicate(timeout=GENEROUS_S)
    assert driver.returncode != 0 and "Traceback" in out
    states = jobs.states(ids, False).of
    assert [len(lives(cell)) for cell in todo] == [1, 1]
    assert {states.get(id, jobs.GONE) for id in ids} <= {jobs.CANCELLED, jobs.GONE, "COMPLETING"}
    refused = laid(tmp_path / "other", 1, engine="slurm", slurm=Slurm(partition="nowhere"))
    driver = start(tmp_path, refused)
    out, _ = driver.communicate(timeout=GENEROUS_S)
    assert "Slurm does not take 1 cells" in out and "partition" in out


def test_a_node_of_another_environment_is_refused(tmp_path, monkeypatch) -> None:
    (cell,) = laid(tmp_path / "runs", 1)
    jobs_dir = cell.folder.study_dir / slurm_job.FOLDER
    jobs_dir.mkdir()
    (jobs_dir / slurm_job.SWEEP).write_text("process 7 on login")
    here = describe(PACKAGES, str(jobs_dir / slurm_job.SWEEP))
    here["packages"]["torch"] = "0.4"
    write_json(jobs_dir / slurm_job.ENVIRONMENT, here)
    monkeypatch.setattr(os, "umask", lambda mask: 0)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        assert slurm_job.job(cell.folder, 1) == 2
        status = cell.folder.status()
        assert status["state"] == "failed" and status["exit_code"] == 2
        assert "and 0.4 here" in status["error"]
        assert slurm._code(cell.folder, slurm.Job("7", 1, 0.0)) == 2  # which is not tried again
        here["packages"]["torch"] = version("torch")
        write_json(jobs_dir / slurm_job.ENVIRONMENT, here | {"clock": (-8.0, 0.1)})
        assert slurm_job.job(cell.folder, 1) == 2
        assert "is 8.0 s behind the sweep's" in cell.folder.status()["error"]
        write_json(jobs_dir / slurm_job.ENVIRONMENT, here | {"clock": (-4.5, 0.1)})
        monkeypatch.setattr(slurm_job, "run_task", lambda folder, threads, variables: 2)
        assert slurm_job.job(cell.folder, 1) == 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
