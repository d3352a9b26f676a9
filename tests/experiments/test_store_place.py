"""A sweep whose store would lie on a network file system is refused before anything is made."""

from pathlib import Path

import pytest

from experiments.launch.ready import check_machine
from experiments.plan.preflight import check_configs
from judges.ask import connections
from study.config.schema import VerdictStore
from study.errors import UserError
from study.finding import stop_at_problem
from tests.experiments.mlflow_runs import cell_of


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs that counts as one on a network file system."""
    folder = tmp_path / "shared"
    monkeypatch.setattr(
        connections, "network_kind", lambda path: "nfs4" if path.is_relative_to(folder) else ""
    )
    return folder


@pytest.mark.parametrize(
    "place", ["/somewhere/local", "$A_VARIABLE_OF_THE_NODES/judgedrift"], ids=["path", "variable"]
)
def test_runs_on_a_network_disk_want_a_store_elsewhere(shared: Path, place: str) -> None:
    with pytest.raises(UserError, match=r"nfs4.*store\.dir=/var/tmp/judgedrift"):
        stop_at_problem(check_configs([cell_of(shared)]))
    stop_at_problem(check_configs([cell_of(shared, store=VerdictStore(dir=place))]))
    assert not (shared / "verdicts.db").exists()


def test_a_merged_store_that_is_not_there_is_told_before_training(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, store=VerdictStore(beside=[str(tmp_path / "all.db")]))
    with pytest.raises(UserError, match=r"no reply store .*all\.db"):
        stop_at_problem(check_machine([cell], elsewhere=False))
    stop_at_problem(check_machine([cell], elsewhere=True))
