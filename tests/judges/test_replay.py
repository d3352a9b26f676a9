"""Replays: the same judge gives back what was recorded, others do not, and one that sees the answer
alone has no length to pay for."""

import json
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from analysis.records.replays import with_replays
from analysis.records.runs import read_study
from judges.fault_injection.server import choice, completion, whole
from judges.faults import FaultServer
from judges.replay import REPLAYED, main
from study.config.compose import load_presets
from study.tasks import mixed_mini
from tests import commands
from tests.conftest import free_port, run_alone
from tests.judges.answered_study import PLAIN, write_run
from tests.waiting import GENEROUS_S, wait_for


@pytest.fixture(scope="module")
def small_study(small_study, tmp_path_factory):
    """A copy with the store of verdicts: other tests read the study, and replays would be in it."""
    runs_dir = tmp_path_factory.mktemp("replays") / "runs"
    shutil.copytree(small_study.parent, runs_dir)
    return runs_dir / small_study.name


def replay(study, *arguments):
    assert main([f"study={study.name}", f"runs_dir={study.parent}", *arguments]) == 0


def rows(folder, kind="rollouts"):
    records = ds.dataset(folder / kind, format="parquet").to_table().to_pylist()
    return sorted(records, key=lambda row: row["rollout_id"])


def cells_of(study, name, judge):
    return sorted((study / "replays" / name).glob(f"{judge}-*"))


def test_the_own_judge_is_replayed_from_the_store_and_agrees(small_study, capsys):
    replay(small_study, "out=own")
    assert "0 judge calls made" in capsys.readouterr().out
    for judge in ("sim-fair", "sim-flaky"):
        for folder in cells_of(small_study, "own", judge):
            for row in rows(folder):
                assert row["judge_score"] == row["original_score"]
                assert row["reward"] == row["original_reward"]
                assert row["advantage"] == pytest.approx(row["original_advantage"], abs=2e-5)
    summary = json.loads((small_study / "replays" / "own" / "summary.json").read_text())
    assert len(summary) == 4
    assert all(line["sign_flips"] in (0.0, None) for line in summary)


def test_zero_instead_of_missing_is_a_treatment_that_shows(small_study):
    replay(small_study, "on_failure=zero", "out=zero")
    records = [row for folder in cells_of(small_study, "zero", "sim-flaky") for row in rows(folder)]
    missing = [row for row in records if row["judge_score"] is None]
    assert missing, "the flaky judge failed somewhere"
    assert all(row["reward"] == 0.0 and row["original_reward"] is None for row in missing)
    assert all(row["original_advantage"] == 0.0 for row in missing)


def test_another_judge_is_asked_and_its_verdicts_are_kept(small_study):
    replay(small_study, "judge=sim-lenient", "out=lenient")
    (first, *_) = cells_of(small_study, "lenient", "sim-fair")
    verdicts = rows(first, "verdicts")
    assert {row["judge"] for row in verdicts} == {"sim-lenient"}
    assert [row["rollout_id"] for row in verdicts] == [row["rollout_id"] for row in rows(first)]
    assert all(row["judge_score"] >= row["original_score"] for row in rows(first))


def test_a_judge_that_would_stop_a_run_leaves_the_unscored_unscored(small_study):
    replay(small_study, "judge=sim-flaky", "judge.on_failure=abort", "out=abort")
    (first, *_) = cells_of(small_study, "abort", "sim-fair")
    missing = [row for row in rows(first) if row["judge_score"] is None]
    assert missing and all(row["reward"] is None for row in missing)


def test_a_replay_that_was_stopped_goes_on(small_study):
    replay(small_study, "judge=sim-strict", "out=again")
    parts = sorted((small_study / "replays" / "again").glob("*/rollouts/*.parquet"))
    kept, lost = parts[0].stat().st_mtime_ns, parts[-1]
    lost.unlink()
    replay(small_study, "judge=sim-strict", "out=again")
    assert parts[0].stat().st_mtime_ns == kept and lost.exists()


def test_a_file_in_place_of_its_folder_is_named(small_study, capsys):
    replay(small_study, "judge=sim-strict", "out=there")
    (small_study / "replays" / "a-file").touch()
    arguments = [f"study={small_study.name}", f"runs_dir={small_study.parent}", "out=a-file"]
    assert main(arguments) == 2
    assert "a-file is a file, but should be the folder of replays." in capsys.readouterr().err


def test_neither_a_replay_nor_a_check_needs_torch(small_study):
    output = run_alone(
        "import sys; from judges import check, replay\n"
        f"words = ['study={small_study.name}', 'runs_dir={small_study.parent}', 'out=light']\n"
        "assert replay.main(words) == 0 and check.main(['judge=sim-fair']) == 0\n"
        "print('END', *{'torch', 'transformers', 'trl', 'mlflow'} & set(sys.modules))"
    )
    assert output.splitlines()[-1] == "END", output


@pytest.fixture
def served():
    """A simulated judge over a real socket, asked like any endpoint."""
    port = free_port()
    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = commands.start("judges.serve", "judge=sim-fair", f"port={port}", **nowhere)

    def answers():
        assert child.poll() is None
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
        except OSError:
            return False
        return True

    wait_for(answers)
    yield f"http://127.0.0.1:{port}/v1"
    child.terminate()
    child.wait(GENEROUS_S)


def test_completions_of_others_are_scored(small_study, served, tmp_path, capsys):
    (folder, *_) = sorted(small_study.glob("sim-fair-*"))
    records = rows(folder)[:8]
    path = tmp_path / "others.jsonl"
    lines = [
        {"prompt": row["prompt"], "response": row["completion"], "reward": row["judge_score"]}
        for row in records
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"prompt": "cut')
    out = tmp_path / "scored.parquet"
    words = [f"file={path}", f"out={out}", "judge=openai-compatible", "judge.grading.name=likert"]
    words += [f"judge.endpoint.url={served}", "judge.endpoint.model=sim-fair"]
    code = main(words)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert "8 completions read, 1 lost records" in printed.out
    scored = ds.dataset(out, format="parquet").to_table().to_pylist()
    by_place = sorted(scored, key=lambda row: int(row["rollout_id"]))
    for row, record in zip(by_place, records, strict=True):
        assert row["judge_score"] == pytest.approx(record["judge_score"], abs=1e-6)


def replay_file(tmp_path, server, path, records, *arguments):
    """The exit code for these records and the judge at ``path``; the rows, where it is 0."""
    file, out = tmp_path / "others.jsonl", tmp_path / "scored.parquet"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    url = f"judge.endpoint.url={server.url(path)}"
    named = ["judge=openai-compatible", url, "judge.endpoint.model=m"]
    code = main([f"file={file}", f"out={out}", *named, *arguments])
    read = ds.dataset(out, format="parquet").to_table().to_pylist() if code == 0 else []
    return code, sorted(read, key=lambda row: int(row["rollout_id"]))


def test_each_record_is_judged_by_its_own_criteria(tmp_path):
    async def good(body):
        met = b"Is red." in body
        return whole(completion(choice(json.dumps({"1": "met" if met else "not_met"}))))

    records = [
        {"prompt": "Name a color.", "response": response} | criteria
        for response, criteria in (
            ("none", {}),
            ("red", {"criteria": [{"criterion": "Is red."}]}),
            ("blue", {"criteria": [{"criterion": "Is blue."}]}),
        )
    ]
    with FaultServer(good) as server:
        grading = "judge.grading.name=rubric_batch"
        code, scored = replay_file(tmp_path, server, "mix_0", records, grading)
    assert code == 0
    assert [row["judge_score"] for row in scored] == [None, 1.0, 0.0]
    prompts = [body["messages"][-1]["content"] for body in server.bodies["mix_0"]]
    assert sorted(("Is red." in text, "Is blue." in text) for text in prompts) == [
        (False, True), (True, False)
    ]  # fmt: skip


def test_columns_are_filled_by_name(tmp_path, monkeypatch):
    async def good(body):
        return whole(completion(choice("[[80]]")))

    monkeypatch.setattr("judges.replay.REPLAYED", dict(reversed(REPLAYED.items())))
    records = [
        {"prompt": "Hi.", "response": text, "score": score, "advantage": advantage, "step": 7}
        for text, score, advantage in (("a", 0.25, -0.5), ("b", 0.75, 0.5))
    ]
    with FaultServer(good) as server:
        code, scored = replay_file(tmp_path, server, "mix_0", records)
    assert code == 0
    prompt_id = scored[0]["prompt_id"]
    assert len(prompt_id) == 16
    shared = {"step": 7, "prompt_id": prompt_id, "group": 0}
    new = {"judge_score": 0.8, "reward": 0.8, "advantage": 0.0}
    assert scored == [
        shared | new | {"rollout_id": str(place), "member": place, "original_score": score,
                        "original_reward": score, "original_advantage": advantage}
        for place, (score, advantage) in enumerate([(0.25, -0.5), (0.75, 0.5)])
    ]  # fmt: skip


def test_a_judge_that_refuses_is_not_asked_about_the_rest_of_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("judges.replay.AT_ONCE", 2)
    records = [{"prompt": f"Say {number}.", "response": "a"} for number in range(6)]
    with FaultServer(faults=[("forbidden_403", "forbidden_403")]) as server:
        code, _ = replay_file(tmp_path, server, "mix_1.0", records)
    assert code == 2 and "refuses every request" in capsys.readouterr().err
    assert len(server.bodies["mix_1.0"]) == 2


def test_a_group_of_one_is_refused_before_anything_is_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("judges.replay.AT_ONCE", 1)
    records = [{"prompt": prompt, "response": prompt[:2]} for prompt in ("Say", "Say", "Alone")]
    with FaultServer() as server:
        code, _ = replay_file(tmp_path, server, "mix_0", records, "judge.grading.name=pairwise")
    assert code == 2 and "needs a group" in capsys.readouterr().err
    assert "mix_0" not in server.bodies


def test_a_simulated_judge_knows_no_foreign_prompts(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "p", "response": "r"}\n')
    assert main([f"file={path}", "judge=sim-fair", f"out={tmp_path / 'o.parquet'}"]) == 2
    assert "of its own task's prompts only" in capsys.readouterr().err


def test_paths_are_paths():
    options = main.read(["study=s", "runs_dir=/r", "judge=j", "judge.sampling.votes=2"])
    assert str(options.runs_dir) == "/r"
    assert options.overrides == ["judge.sampling.votes=2"]


def replayed(study: Path, name: str, kind: str = "rollouts") -> list[dict]:
    (cell,) = (study / "replays" / name).glob("sim-*")
    return rows(cell, kind)


def test_the_answer_alone_has_no_length_to_pay_for(tmp_path, capsys):
    study = write_run(tmp_path / "runs")
    replay(study, "out=whole")
    replay(study, "out=alone", "canonical=true")
    whole, alone = ([row["judge_score"] for row in replayed(study, n)] for n in ("whole", "alone"))
    for group in range(3):
        bare, wordy = 3 * group, 3 * group + 1
        assert whole[wordy] > whole[bare], "the judge pays for length"
        assert alone[wordy] == alone[bare]
    (line,) = json.loads((study / "replays" / "alone" / "summary.json").read_text())
    # recorded: .9 - 1 and 1 - 1 for right answers, 0 - 0 where there is none
    assert line["original_gap"] == pytest.approx(-0.1 / 3)
    truths = [1.0, 1.0, 0.0] * 3
    expected = sum(s - t for s, t in zip(alone, truths, strict=True)) / 9
    assert line["gap"] == pytest.approx(expected)
    assert {name: each["n"] for name, each in line["domains"].items()} == dict.fromkeys(PLAIN, 3)
    assert "on the answers alone, -0.033 as recorded" in capsys.readouterr().out


def test_a_judge_of_answers_alone_is_another_judge(tmp_path):
    study = write_run(tmp_path / "runs")
    replay(study, "canonical=true")
    (folder,) = (study / "replays").iterdir()
    assert folder.name == "own-canonical"
    verdicts = replayed(study, folder.name, "verdicts")
    assert {row["judge"] for row in verdicts} == {"sim-verbose, answer alone"}
    runs, problems = with_replays(read_study(study).runs, study)
    assert problems == [] and list(runs[0].shadows) == ["sim-verbose, answer alone"]


def test_a_program_that_came_to_no_answer_is_not_asked_about(tmp_path):
    study = write_run(tmp_path / "runs", reward="judge-binary")
    replay(study, "out=alone", "canonical=true")
    rows = replayed(study, "alone")
    failed = [row for row in rows if row["member"] == 2]
    assert all(row["judge_score"] is None and row["reward"] == 0.0 for row in failed)
    judged_ids = {row["rollout_id"] for row in replayed(study, "alone", "verdicts")}
    assert judged_ids == {row["rollout_id"] for row in rows if row["member"] < 2}
    (line,) = json.loads((study / "replays" / "alone" / "summary.json").read_text())
    assert line["unscored"] == 0.0 and line["n"] == 9


@pytest.mark.parametrize("grading", ["pairwise", "listwise"])
def test_gradings_that_compare_see_the_answers_that_there_are(tmp_path, grading):
    study = write_run(tmp_path / "runs", reward="judge-binary")
    arguments = ("out=compared", "judge=sim-verbose", f"judge.grading.name={grading}")
    replay(study, *arguments)
    scores_of = [row["judge_score"] for row in replayed(study, "compared")]
    assert [score is None for score in scores_of] == [False, False, True] * 3


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["study=told", "canonical=true"], "no rule reads"),
        (["file=x.parquet", "judge=openai-compatible", "out=y.parquet", "canonical=true"], "file"),
    ],
)
def test_answers_that_no_rule_reads_are_refused(tmp_path, capsys, arguments, message):
    study = write_run(tmp_path / "runs", "instruct-mini")
    assert main([*arguments, f"runs_dir={study.parent}"]) == 2
    errors = capsys.readouterr().err
    assert message in errors and "canonical" in errors
    assert not list(study.glob("replays/*/*/rollouts/*.parquet"))


def test_the_recorded_answers_are_right_by_the_rules(tmp_path):
    (part,) = write_run(tmp_path / "runs").glob("*/rollouts/*.parquet")
    records = pq.read_table(part).to_pylist()
    _, task = load_presets("sim-verbose", "mixed-mini")
    by_prompt = {row.prompt_id: row for row in mixed_mini.TASK.rows(task, "train")}
    with_answer = [record for record in records if record["answer"] is not None]
    answers = [record["answer"] for record in with_answer]
    rows_of = [by_prompt[record["prompt_id"]] for record in with_answer]
    assert all(each.correct for each in mixed_mini.TASK.scores(rows_of, answers))
