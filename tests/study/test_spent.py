"""Accounts of time: every second is in one of them, and they go on from process to process."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.cell.timing import SWEEPS, add_sweep, sweeps_of
from study.system import clock
from study.system.spent import Account, Spent, accounts_of, cost_of_a_turn


@pytest.fixture
def at(monkeypatch):
    """Clocks that stand until they are moved."""
    now = {"wall": 100.0, "cpu": 0.0}
    monkeypatch.setattr(clock, "now", lambda: now["wall"])
    monkeypatch.setattr("study.system.spent._age_s", lambda: 3.0)
    monkeypatch.setattr(time, "process_time", lambda: now["cpu"])

    def move(wall, cpu):
        now["wall"] += wall
        now["cpu"] += cpu

    return move


def test_time_goes_to_what_is_done(at):
    spent = Spent("starting")
    at(1.0, 0.5)
    spent.turn("generating")
    at(4.0, 3.0)
    with spent.within("recording"):
        at(0.5, 0.25)
    at(1.0, 1.0)
    spent.turn("generating")
    assert spent.accounts() == {
        "starting": Account(4.0, 0.5, 1),  # three seconds before it was asked
        "generating": Account(5.0, 4.0, 2),
        "recording": Account(0.5, 0.25, 1),
    }
    at(9.0, 9.0)
    assert spent.accounts()["generating"].seconds == 5.0  # what is under way is not in it


def test_what_fails_within_is_counted_and_the_former_goes_on(at):
    spent = Spent("judging")
    with pytest.raises(KeyError), spent.within("recording"):
        at(2.0, 1.0)
        raise KeyError
    at(1.0, 1.0)
    spent.turn("saving")
    assert spent.accounts()["recording"] == Account(2.0, 1.0, 1)
    assert spent.accounts()["judging"].seconds == 4.0


def test_a_run_goes_on_from_the_accounts_of_its_status(at):
    first = Spent("starting")
    at(2.0, 1.0)
    first.turn("generating")
    again = Spent("starting", first.plain())
    at(1.0, 1.0)
    again.turn("generating")
    assert again.accounts()["starting"] == Account(5.0 + 4.0, 1.0 + 2.0, 2)


def test_the_sweeps_of_a_study_are_added_up(at, tmp_path, capsys):
    for _ in range(2):  # as two in one process
        spent = Spent("starting", from_start=False)
        at(1.0, 0.5)
        spent.turn("waiting")
        at(4.0, 0.25)
        spent.turn("done")
        add_sweep(tmp_path, spent)
    assert sweeps_of(tmp_path) == {
        "starting": Account(2.0, 1.0, 2),
        "waiting": Account(8.0, 0.5, 2),
    }
    (tmp_path / SWEEPS).write_text('{"waiting": "long"}')
    assert sweeps_of(tmp_path) == {}
    (tmp_path / SWEEPS).write_text("{")
    assert sweeps_of(tmp_path) == {}
    assert "what its sweeps took is left out" in " ".join(capsys.readouterr().err.split())


@given(
    st.dictionaries(
        st.text(max_size=3),
        st.none()
        | st.integers()
        | st.text(max_size=3)
        | st.lists(st.none() | st.floats(), max_size=4),
    )
)
def test_what_is_no_account_is_left_out(plain):
    for account in accounts_of(plain).values():
        assert account.seconds >= 0 and account.cpu_s >= 0 and account.times >= 0


def test_others_may_read_while_one_turns():
    spent, done = Spent("a"), threading.Event()

    def read():
        while not done.is_set():
            assert set(spent.plain()) <= set(map(str, range(2000))) | {"a"}

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2000):
        spent.turn(str(number))
    done.set()
    reader.join()
    assert len(spent.accounts()) == 2000


def test_a_turn_costs_something():
    assert cost_of_a_turn() > 0
