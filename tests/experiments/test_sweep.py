"""The main job as a user runs it: plan, run, run again, refuse."""

import re
import subprocess
from pathlib import Path

import pyarrow.dataset as ds
import pytest
import yaml

from study.cell.folder import study_cells
from study.system.files import read_json
from tests.conftest import RECORDS_ONLY, SMALL_STUDY, run_alone, sweep

SIX = ("judge=sim-fair,sim-verbose", "seed=0,1,2")
ENDPOINT = "judge.endpoint.url=http://127.0.0.1:9/v1"


def rows(folder, kind):
    return ds.dataset(folder / kind, format="parquet").to_table().to_pylist()


def test_plan_prints_the_cells_and_writes_nothing(tmp_path):
    runs_dir = tmp_path / "runs"
    done = sweep(runs_dir, "plan=true", *SIX, real=True)
    assert done.returncode == 0, done.stderr
    assert "quickstart: 6 cells" in done.stdout and done.stdout.count("new") == 6
    assert not list(runs_dir.glob("quickstart/*"))


@pytest.mark.parametrize("words", [["plan=true", *SIX], ["--help"]], ids=["plan", "help"])
def test_what_trains_nothing_loads_no_heavy_package(words):
    said = run_alone(
        f"import sys; from experiments import sweep; sys.argv[1:] = {words}\n"
        "assert sweep.main() == 0\n"
        "heavy = {'torch', 'transformers', 'trl', 'mlflow', 'pandas', 'seaborn', 'submodlib', "
        "'statsmodels', 'IPython', 'aiohttp', 'starlette', 'scipy.stats', 'sklearn', "
        "'matplotlib', 'datasets', 'nltk', 'jinja2', 'httpx', 'sqlalchemy', 'fsspec', 'doctest'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))"
    )
    assert said.endswith("LOADED []\n"), said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["judge=sim-fairr"], "sim-fairr"),
        (["policy=huge"], "huge"),
        (["trainer.learning_rat=1"], "learning_rat"),
        (["+judge.simulated.domains.law.fpr=1"], "domains has no law; it has math, qa, code"),
        (["judge.on_failure=ignore"], "drop_group"),
        (["task.name=nothing"], "instruct-mini"),
        (["trainer.learning_rate=0.1,0.2"], "trainer.learning_rate = 0.1 | 0.2"),
        (["judge.endpoint.model=sk-test-0123456789abcdefghij"], "key"),
        (["tracking.uri=./mlruns"], "sqlite"),
        (["judge.name=''"], "judge.name is empty"),
        ([ENDPOINT, "judge.endpoint.model=m"], "127.0.0.1:9"),
        ([ENDPOINT, "judge.endpoint.api_key_env=NO_SUCH_KEY_VARIABLE"], "NO_SUCH_KEY_VARIABLE"),
    ],
)
def test_bad_input_is_one_paragraph_and_exit_2(trained, tmp_path, arguments, words):
    done = trained(tmp_path / "runs", "judge=sim-fair", "seed=0", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
    assert "sk-test-0123456789abcdefghij" not in done.stdout + done.stderr
    assert not list((tmp_path / "runs").glob("quickstart/*"))


def test_an_unwritable_runs_folder(tmp_path):
    (tmp_path / "file").touch()
    done = sweep(tmp_path / "file" / "runs", "judge=sim-fair", "seed=0")
    assert done.returncode == 2 and "runs_dir=" in done.stderr


def test_a_small_study_leaves_everything_on_record(small_study):
    folders = study_cells(small_study)
    assert len(folders) == 4
    for folder in folders:
        status = read_json(folder / "status.json")
        assert status["state"] == "done" and status["exit_code"] == 0 and (folder / "DONE").exists()
        assert read_json(folder / "environment.json")["git"].keys() >= {"commit", "dirty"}
        rollouts, verdicts = rows(folder, "rollouts"), rows(folder, "verdicts")
        names = {row["rollout_id"] for row in rollouts}
        assert len(names) == len(rollouts) == 2 * 2 * 4
        acting = {row["rollout_id"]: row for row in verdicts if row["role"] == "acting"}
        assert acting.keys() == names
        assert {row["judge"] for row in verdicts if row["role"] == "shadow"} == {"sim-verbose"}
        assert all(row["logprob_sum"] < 0 and row["truth"] is not None for row in rollouts)
        for row in rollouts:
            verdict = acting[row["rollout_id"]]
            assert row["judge_score"] == row["reward"] == verdict["score"]
            assert (verdict["outcome"] == "scored") == (verdict["score"] is not None)
            if row["reward"] is None:
                assert row["advantage"] == 0.0


def test_what_a_study_holds_is_for_the_eyes_of_its_owner(small_study):
    """Prompts, answers and what judges said of them; `cp -p` keeps the modes that a sweep gave."""
    open_to_others = [
        str(path.relative_to(small_study))
        for path in (small_study, *small_study.rglob("*"))
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]
    assert open_to_others == []


def test_arms_of_one_seed_share_their_first_rollouts(small_study):
    texts = {}
    for folder in study_cells(small_study):
        config = yaml.safe_load((folder / "config.yaml").read_text())
        first = [row for row in rows(folder, "rollouts") if row["step"] == 1]
        shown = [(row["prompt_id"], row["completion"]) for row in first]
        texts.setdefault(config["seed"], []).append(shown)
    one_seed, other_seed = texts.values()
    assert one_seed[0] == one_seed[1] != other_seed[0] == other_seed[1]


def test_truth_never_reached_a_judge(small_study):
    """The shadow judges and the rule truth leave the reward alone; specs stay at home."""
    database = (small_study.parent / "verdicts.db").read_bytes()
    assert b'"forbid"' not in database and b"spec" not in database


def test_running_again_skips_every_finished_cell(small_study):
    def marks():
        """When the records and the logs of the cells were written."""
        written = [*small_study.rglob("*.parquet"), *small_study.glob("*/log.txt")]
        return {path: path.stat().st_mtime_ns for path in written}

    before = marks()
    done = sweep(small_study.parent, *SMALL_STUDY)
    assert done.returncode == 0, done.stderr
    assert "All 4 cells of debug are done" in done.stdout
    assert "bias_report.html" in done.stdout and "python -m experiments.ui study=" in done.stdout
    assert marks() == before


def test_a_changed_base_is_refused_in_the_same_study(trained, small_study):
    words = ("debug=tiny", "judge=sim-fair", "seed=0", "trainer.temperature=0.5")
    done = trained(small_study.parent, *words)
    assert done.returncode == 2 and "trainer.temperature = 1.0 | 0.5" in done.stderr


CANARY = "CANARY-0123456789"
KEYED = ("judge.endpoint.api_key_env=JUDGE_KEY_FOR_TEST", "judge=sim-fair,sim-noisy", "seed=0")


@pytest.fixture(scope="module")
def launched(warmed, tmp_path_factory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A study of judges with a key by jobs in processes of joblib's, each with a child of its own,
    shadow judges composed there; its folder of studies."""
    runs_dir = warmed(tmp_path_factory.mktemp("launched"))
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "shadow=[sim-verbose]")
    words = ("debug=tiny", *KEYED, *launcher)
    return sweep(runs_dir, *words, JUDGE_KEY_FOR_TEST=CANARY), runs_dir


def finds_no_key(done: subprocess.CompletedProcess[str], runs_dir: Path) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert CANARY not in done.stdout + done.stderr
    files = [path for path in runs_dir.rglob("*") if path.is_file()]
    assert "bias_report.html" in {path.name for path in files}
    for path in files:
        assert CANARY.encode() not in path.read_bytes(), path


@pytest.mark.long
@pytest.mark.slow
def test_no_secret_lies_in_the_study(launched) -> None:
    finds_no_key(*launched)


@pytest.mark.long
def test_no_secret_lies_in_the_study_without_a_launcher(warmed, tmp_path) -> None:
    finds_no_key(sweep(warmed(tmp_path), "debug=tiny", *KEYED, JUDGE_KEY_FOR_TEST=CANARY), tmp_path)


@pytest.mark.long
@pytest.mark.slow
def test_another_launcher_runs_the_cells_and_the_sweep_ends_as_usual(launched) -> None:
    done, runs_dir = launched
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done (exit 0)") == 2 and "debug: 2 cells" in done.stdout
    for folder in study_cells(runs_dir / "debug"):
        assert folder.state() == "done"
        assert {row["role"] for row in rows(folder, "verdicts")} == {"acting", "shadow"}


def test_one_failed_cell_is_said_and_can_be_continued(trained, tmp_path):
    """A run without enough verdicts fails alone; the limit is no part of its identity."""
    arguments = (*RECORDS_ONLY, "judge=sim-fair,sim-flaky", "seed=3")
    first = trained(tmp_path, *arguments, "judge.max_unscored_frac=0")
    assert first.returncode == 1, first.stdout + first.stderr
    folders = study_cells(tmp_path / "debug")
    states = {folder.name.rsplit("-", 2)[0]: folder.state() for folder in folders}
    assert states == {"sim-fair": "done", "sim-flaky": "failed"}
    said = " ".join(first.stdout.split())
    assert "judge.max_unscored_frac=0" in said, said
    missing = re.findall(r"Of 8 verdicts of judge=sim-flaky: \d+ (\w+)", said)  # by the texts' hash
    assert missing and f"Against {missing[0]}: " in said, said
    assert "log.txt" in said and "Traceback" not in said
    failed = next((tmp_path / "debug").glob("sim-flaky-*"))
    assert not list(failed.glob("rollouts/*")) and not list(failed.glob("verdicts/*"))
    kept = list(failed.glob("missing/*/step-000001.parquet"))
    assert sorted(path.parent.name for path in kept) == ["rollouts", "verdicts"]
    assert "Traceback" not in (failed / "log.txt").read_text()
    again = trained(tmp_path, *arguments, "judge.max_unscored_frac=1")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 cell to run" in again.stdout
    assert len(rows(failed, "rollouts")) == 2 * 8  # two steps, none doubled
