"""Signs of life: written at most as often as asked for, by themselves only while others work."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from study.cell.folder import CellFolder
from study.cell.heartbeat import Heartbeat
from study.system.files import read_json
from tests.waiting import wait_for

FAST_S = 0.01


def until(folder: Path, **wanted):
    """The status once it says that."""

    def says_that():
        status = CellFolder(folder).status()
        return status if all(status.get(key) == wanted[key] for key in wanted) else None

    return wait_for(says_that, str(wanted))


def goes_round(heart: Heartbeat, times: int) -> None:
    """Let its thread look so many times whether there is something to write."""
    rounds, wait = [], heart._ended.wait

    def counted(seconds):
        rounds.append(seconds)
        return wait(seconds)

    heart._ended.wait = counted
    wait_for(lambda: len(rounds) > times)
    heart._ended.wait = wait


def test_what_an_endpoint_holds_back_is_said_while_it_does(tmp_path):
    words = "throttled by the endpoint: 6 of 50 calls a second"
    with Heartbeat(CellFolder(tmp_path), every_s=FAST_S) as heart:
        heart.beat()
        heart.throttled = lambda: words
        until(tmp_path, throttled=words)
        heart.throttled = str
        until(tmp_path, throttled="")


@pytest.fixture
def written(monkeypatch):
    """The signs of every write of a status."""
    signs_of = []
    monkeypatch.setattr(CellFolder, "set_status", lambda folder, **signs: signs_of.append(signs))
    return signs_of


def test_phase_beat_and_tokens_stand_beside_what_was_there(tmp_path):
    CellFolder(tmp_path).set_status(state="running", step=3)
    before = time.time()
    with Heartbeat(CellFolder(tmp_path), tokens=100, every_s=FAST_S) as heart:
        heart.phase("generating")
        heart.beat(7)
        heart.beat(5)
        status = until(tmp_path, phase="generating", tokens=112)
        assert (status["state"], status["step"]) == ("running", 3)
        assert before <= status["beat"] <= time.time()
        heart.phase("updating")
        assert until(tmp_path, phase="updating")["beat"] >= status["beat"]


def test_it_beats_by_itself_only_while_it_waits(tmp_path):
    with Heartbeat(CellFolder(tmp_path), every_s=FAST_S) as heart:
        with heart.waiting("judging"):
            first = until(tmp_path, phase="judging")["beat"]
            wait_for(lambda: CellFolder(tmp_path).status()["beat"] > first)
        heart.phase("updating")
        last = until(tmp_path, phase="updating")["beat"]
        goes_round(heart, 20)
        assert CellFolder(tmp_path).status()["beat"] == last


def test_what_says_nothing_new_writes_nothing(tmp_path, written):
    with Heartbeat(CellFolder(tmp_path), every_s=FAST_S) as heart:
        goes_round(heart, 20)
        assert written == []
        for _ in range(1000):
            heart.beat(1)
        wait_for(lambda: written and written[-1]["tokens"] == 1000)
        goes_round(heart, 20)
    tokens = [signs["tokens"] for signs in written]
    assert tokens == sorted(set(tokens)), "each says something new"


def test_many_beats_between_two_looks_are_one_write(tmp_path, written):
    with Heartbeat(CellFolder(tmp_path), every_s=3600.0) as heart:
        for _ in range(1000):
            heart.beat(1)
    assert [signs["tokens"] for signs in written] == [1000]


def test_it_ends_with_the_block_and_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Heartbeat() as heart, heart.waiting("judging"):
        heart.beat(3)
    with pytest.raises(KeyError), Heartbeat(CellFolder(tmp_path / "cell"), every_s=FAST_S):
        raise KeyError
    assert [thread for thread in threading.enumerate() if thread.name == "heartbeat"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_nothing_does_not_end_the_run(tmp_path, monkeypatch):
    tries = []

    def full(folder, **signs):
        tries.append(signs)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CellFolder, "set_status", full)
    with Heartbeat(CellFolder(tmp_path), every_s=FAST_S) as heart:
        for count in (1, 2):
            heart.beat(1)
            wait_for(lambda count=count: len(tries) >= count)


def test_two_threads_lose_nothing_of_each_other(tmp_path):
    def count(name):
        for number in range(50):
            CellFolder(tmp_path).set_status(**{name: number})

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(count, ("tokens", "step")))
    assert read_json(tmp_path / "status.json").items() >= {"tokens": 49, "step": 49}.items()


@pytest.mark.parametrize(
    "wrong", [{"beat": "now"}, {"tokens": True}, {"phase": 3}, {"beat": float("1e300")}]
)
def test_signs_that_are_none_are_said_and_left_out(tmp_path, wrong):
    CellFolder(tmp_path).set_status(state="running", step=2, **wrong)
    problems: list[str] = []
    status = CellFolder(tmp_path).status(problems)
    assert status["state"] == "running" and not wrong.keys() & status.keys()
    assert len(problems) == 1 and next(iter(wrong)) in problems[0]
