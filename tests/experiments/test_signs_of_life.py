"""What a cell says of itself while it runs, and when it has ended."""

import shutil

import pytest

from experiments import train
from study.cell.folder import CellFolder, study_cells
from study.cell.heartbeat import Heartbeat
from study.cell.parts import read_part
from study.system.files import read_json
from tests.conftest import in_parts
from tests.invariants import test_grpo


class Spy(Heartbeat):
    """Notes the phases, and how many beats there were in each."""

    def __init__(self) -> None:
        super().__init__()
        self.phases: list[tuple[str, int]] = []
        self.tokens = 0

    def phase(self, name: str) -> None:
        self.phases.append((name, 0))
        super().phase(name)

    def beat(self, tokens: int = 0) -> None:
        super().beat(tokens)
        self.tokens += tokens
        if self.phases:
            name, beats = self.phases[-1]
            self.phases[-1] = (name, beats + 1)


@pytest.mark.parametrize("fast", [True, False])
def test_each_step_says_what_it_is_at_and_goes_on_saying_that_it_lives(tmp_path, cache, fast):
    spy = Spy()
    done = test_grpo.run(test_grpo.study(steps=2, fast=fast), tmp_path, cache, heart=spy)
    assert [name for name, _ in spy.phases] == 2 * ["generating", "judging", "updating", "saving"]
    drawn = [beats for name, beats in spy.phases if name == "generating"]
    assert all(beats >= 4 for beats in drawn)  # at least one a token, and the phase's own
    assert all(beats >= 2 for name, beats in spy.phases if name in ("judging", "updating"))
    assert spy.tokens == sum(record["tokens"] for record in done.records)


@pytest.fixture(scope="module")
def whole(small_study):
    return next(cell.path for cell in study_cells(small_study) if "sim-fair" in cell.name)


def test_a_cell_that_has_ended_says_how_and_how_much_it_drew(whole):
    status = CellFolder(whole).status()
    assert (status["phase"], status["state"]) == ("done", "done")
    assert status["started"] < status["beat"] == status["ended"]
    tokens = [
        sum(read_part(part)["tokens"].to_pylist()) for part in CellFolder(whole).parts("rollouts")
    ]
    assert status["tokens"] == sum(tokens) > 0


def test_a_cell_that_goes_on_counts_from_its_records(whole, tmp_path):
    cell = shutil.copytree(whole, tmp_path / whole.name)
    assert train._tokens_drawn(CellFolder(cell)) == read_json(whole / "status.json")["tokens"]
    first, second = CellFolder(in_parts(cell)).parts("rollouts")
    left = sum(read_part(first)["tokens"].to_pylist())
    second.path.write_bytes(second.path.read_bytes()[:-20])
    assert train._tokens_drawn(CellFolder(cell)) == left
