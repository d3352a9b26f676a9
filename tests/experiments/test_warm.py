"""The tiny policy's warm-up beside the sweep's own start."""

from collections.abc import Callable
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from experiments.launch.warm import warming
from experiments.policies.load import cache_of
from experiments.policies.tiny import is_built, load_tiny
from study.cell.cells import Cell
from study.config.schema import Policy, Warmup
from tests.experiments.mlflow_runs import cell_of
from tests.waiting import wait_for

SMALL = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32}


def needing(runs_dir: Path, steps: int) -> Cell:
    warmup = Warmup(steps=steps, batch=4)
    policy = Policy(name="tiny", path="tiny", architecture=SMALL, warmup=warmup)
    return cell_of(runs_dir, policy=policy)


@pytest.fixture
def warming_up() -> Callable[[], list[BaseProcess]]:
    """Lists children, without those that other tests of this process have left."""
    others = {child.pid for child in active_children()}
    return lambda: [child for child in active_children() if child.pid not in others]


def weights(cell: Cell) -> list[bytes]:
    model, _ = load_tiny(cell.config.policy, cell.config.task, cache_of(cell))
    return [weight.detach().numpy().tobytes() for weight in model.parameters()]


def test_what_is_missing_is_warmed_up_apart_once_and_to_the_same_bits(tmp_path, warming_up):
    cells = [needing(tmp_path / "apart", 3), needing(tmp_path / "apart", 3)]
    with warming(cells):
        assert len(warming_up()) == 1
        wait_for(lambda: not warming_up())
    assert is_built(cells[0].config.policy, cells[0].config.task, cache_of(cells[0]))
    assert weights(cells[0]) == weights(needing(tmp_path / "here", 3))
    with warming(cells):
        assert warming_up() == []


def test_a_warm_up_ends_with_the_sweep_that_wanted_it(tmp_path, warming_up):
    with warming([needing(tmp_path, 10**6)]):
        log = cache_of(needing(tmp_path, 10**6)) / "log.txt"
        wait_for(log.exists)
    wait_for(lambda: not warming_up())
    assert [path.suffix for path in log.parent.iterdir() if path != log] in ([], [".lock"])


def test_a_warm_up_that_fails_leaves_the_building_to_the_cell(tmp_path, warming_up):
    cell = needing(tmp_path, 3)
    cache_of(cell).parent.mkdir()
    cache_of(cell).touch()
    with warming([cell]):
        wait_for(lambda: not warming_up())
    cache_of(cell).unlink()
    assert weights(cell)


def test_what_cannot_be_warmed_up_is_left_to_its_cell(tmp_path, warming_up):
    unknown = Policy(name="tiny", path="tiny", architecture={"depth": 3}, warmup=Warmup(steps=1))
    with warming([cell_of(tmp_path, policy=unknown), cell_of(tmp_path)]):
        assert warming_up() == []
