"""What a plan refuses of its cells: arms that differ, and a store on a network file system."""

from pathlib import Path

import pytest

from experiments.launch.ready import check_machine
from experiments.plan.plan import design
from experiments.plan.preflight import check_arms, check_configs, check_looks, check_study
from judges.ask import connections
from study.cell.cells import make_cell
from study.cell.study_file import base, write_study
from study.config.schema import VerdictStore
from study.errors import UserError
from study.finding import stop_at_problem
from tests.experiments.mlflow_runs import cell_of


def cell(judge="a", seed=0, rate=0.1, votes=1):
    return make_cell(
        {
            "study": "s",
            "seed": seed,
            "judge": {"name": judge, "sampling": {"votes": votes}},
            "task": {"name": "instruct-mini", "train_rows": 64},
            "trainer": {"steps": 5, "learning_rate": rate},
        }
    )


def test_arms_differ_in_declared_factors_and_a_design_counts_them():
    stop_at_problem(check_arms([cell("a", 0), cell("b", 1, votes=2)], ["judge", "seed"]))
    with pytest.raises(UserError, match="seed"):
        stop_at_problem(check_arms([cell(seed=0), cell(seed=1)], ["judge", "see"]))
    with pytest.raises(UserError) as caught:
        stop_at_problem(check_arms([cell(rate=0.1), cell(rate=0.2)], ["judge", "seed"]))
    message = str(caught.value)
    assert "trainer.learning_rate = 0.1 | 0.2" in message
    assert "factors=[judge,seed,trainer.learning_rate]" in message
    assert "\n" not in message
    assert design([cell("a", 0), cell("a", 1), cell("a", 2), cell("b", 0), cell("b", 1)]) == (2, 2)
    assert design([cell("a", 0)]) == (1, 1)


def test_a_study_keeps_its_factors_and_its_base(tmp_path):
    factors = ["judge", "seed"]
    write_study(tmp_path, {"factors": factors, "base": base(cell(), factors)})
    stop_at_problem(check_study(tmp_path, [cell("z", 7)], ["seed", "judge"]))
    with pytest.raises(UserError, match=r"trainer\.learning_rate = 0\.1 \| 0\.2"):
        stop_at_problem(check_study(tmp_path, [cell(rate=0.2)], factors))
    with pytest.raises(UserError, match="declared the factors judge, seed"):
        stop_at_problem(check_study(tmp_path, [cell()], ["judge"]))


def test_looks_are_declared_before_there_are_results(tmp_path):
    for legal in ([], [6], [2, 3], [3, 4, 6]):
        stop_at_problem(check_looks(tmp_path, legal))
    for illegal in ([1, 3], [3, 3], [6, 3], [0], [-2, 4], [3, 1001]):
        with pytest.raises(UserError, match=r"Type for example: sweep\.looks=\[3,4,6\]"):
            stop_at_problem(check_looks(tmp_path, illegal))
    write_study(tmp_path, {"factors": ["seed"], "looks": [3, 6]})
    stop_at_problem(check_looks(tmp_path, [3, 4]))
    done = tmp_path / "a-s0-0123456789"
    done.mkdir()
    (done / "config.yaml").write_text("")
    (done / "DONE").write_text("")
    stop_at_problem(check_looks(tmp_path, [3, 6]))
    stop_at_problem(check_looks(tmp_path, []))
    with pytest.raises(UserError, match=r"begun with the looks \[3, 6\] and has results"):
        stop_at_problem(check_looks(tmp_path, [3, 4]))
    write_study(tmp_path, {"factors": ["seed"]})
    with pytest.raises(UserError, match="begun with no looks and has results"):
        stop_at_problem(check_looks(tmp_path, [3, 6]))


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
