"""A reference is asked about what was drawn, once; what it cannot say is missing."""

import contextlib
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pandas as pd
import pytest

from analysis.audit.__main__ import LOCK, main
from analysis.forecast.candidates import start_of_base
from analysis.forecast.estimate import ask
from analysis.records.frames import rollouts_frame
from analysis.records.runs import read_study
from analysis.report.writing import write_report
from experiments import records
from judges import replay
from judges.ask import audit as asking
from judges.fault_injection.server import choice, completion, whole
from judges.faults import FaultServer
from study.cell import audit as kept
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.cell.records import VERDICT, write_part
from study.errors import UserError
from study.system import locks
from tests import commands
from tests.judges.answered_study import write_run
from tests.waiting import GENEROUS_S

STEPS = 20


@pytest.fixture
def study(tmp_path):
    """Two runs of 20 steps of three groups, of which no rule knows the truth."""
    for seed in range(2):
        folder = write_run(tmp_path / "runs", steps=STEPS, truths=False, seed=seed)
    return folder


def audit(study, *arguments):
    return main([f"study={study.name}", f"runs_dir={study.parent}", *arguments])


@pytest.fixture
def refusal(capsys):
    """What an audit that is refused says."""

    def said(study, *arguments):
        assert audit(study, *arguments) == 2
        return " ".join(capsys.readouterr().err.split())

    return said


def verdicts(study):
    rows = []
    for cell in sorted((study / "replays" / "audit").glob("*/")):
        for _, table in CellFolder(cell).records("verdicts"):
            rows += [{"cell": cell.name, **row} for row in table.to_pylist()]
    return rows


def test_only_whole_drawn_groups_are_asked_about(study, capsys):
    assert audit(study, "by=sim-fair", "share=0.4") == 0
    said = capsys.readouterr().out
    drawn = kept.load(study)
    assert drawn is not None
    # 2 of a tenth's 6 groups at least, and .4 of 6 is 2.4: three of each of ten tenths, two runs
    assert len(drawn.groups) == 60
    assert "sim-fair says of 60 of 120 groups" in said
    rows = verdicts(study)
    assert len(rows) == 60 * 3
    assert {row["role"] for row in rows} == {"replay"}
    places = {(row["cell"], row["step"], int(row["rollout_id"][7:]) // 3) for row in rows}
    assert places == {(each.cell, each.step, each.group) for each in drawn.groups}


def test_what_was_asked_is_not_asked_again_and_a_larger_share_adds(study, capsys):
    audit(study, "by=sim-fair", "share=0.1")
    first = verdicts(study)
    audit(study, "by=sim-fair", "share=0.1")
    assert "0 judge calls made" in capsys.readouterr().out
    assert verdicts(study) == first
    audit(study, "by=sim-fair", "share=0.7")
    more = verdicts(study)
    assert len(more) == 100 * 3 > len(first)
    assert all(row in more for row in first)
    audit(study, "by=sim-fair", "share=0.2")  # a smaller share takes nothing back
    assert verdicts(study) == more


def test_the_reference_is_the_truth_of_the_audited_groups_and_of_no_others(study):
    audit(study, "by=sim-fair", "share=0.4")
    for run in read_study(study).runs:
        assert run.reference is not None
        asked = run.reference.asked_P
        assert asked.sum() == 30
        assert np.isnan(run.truth[~asked]).all()
        # the oracle of the task: right, right and wordy, and nothing
        assert run.truth[asked].tolist() == [[1.0, 1.0, 0.0]] * 30
        assert np.array_equal(run.truth, run.reference.score, equal_nan=True)


def test_answers_that_the_reference_cannot_judge_are_missing(study, capsys):
    async def without_a_grade(body):
        return whole(completion(choice("I would rather not say.")))

    with FaultServer(without_a_grade) as server:
        url = f"judge.endpoint.url={server.url('mix_0')}"
        audit(study, "by=openai-compatible", "share=0.1", url, "judge.endpoint.model=m")
    run = read_study(study).runs[0]
    assert run.reference is not None
    assert run.reference.asked_P.sum() == 20
    assert np.isnan(run.reference.score).all()
    assert np.isnan(run.truth).all()
    said = capsys.readouterr().out
    assert "gave no score to" in said


def test_what_an_endpoint_lost_is_asked_again_and_nothing_else(study, capsys):
    audit(study, "by=sim-fair", "share=0.4")
    before = verdicts(study)
    cell = next(kept.folder_of(study).glob("sim-*"))
    part = CellFolder(cell).parts("verdicts")[0]
    rows = read_part(part).to_pylist()
    lost = {**rows[0], "outcome": "transport", "score": None, "reason": "the line is dead"}
    write_part(part.path, [lost, *rows[1:]], VERDICT)
    refused = CellFolder(cell).parts("verdicts")[1]
    rows = read_part(refused).to_pylist()
    write_part(refused.path, [{**rows[0], "outcome": "refused", "score": None}, *rows[1:]], VERDICT)
    audit(study, "by=sim-fair", "share=0.4")
    after = verdicts(study)
    assert len(after) == len(before)
    missing = [row for row in after if row["outcome"] != "scored"]
    assert [row["outcome"] for row in missing] == ["refused"]  # that is an answer
    scores = [
        {
            row["rollout_id"]: row["score"]
            for row in part
            if row["cell"] == cell.name and row["step"] != refused.step
        }
        for part in (before, after)
    ]
    assert scores[0] == scores[1]


def test_what_was_asked_before_a_stop_does_not_count_and_what_was_whole_does(
    study, monkeypatch, capsys
):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(asking, "_ask_steps", stopped)
    with pytest.raises(KeyboardInterrupt):
        main.work(main.read([f"study={study.name}", f"runs_dir={study.parent}", "by=sim-fair"]))
    assert all(run.reference is None for run in read_study(study).runs)
    monkeypatch.undo()
    audit(study, "by=sim-fair", "share=0.1")
    whole = [run.reference.asked_P for run in read_study(study).runs]
    real, batches = asking._ask_steps, iter(range(9))

    def once(*arguments):
        if next(batches):
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(asking, "_ask_steps", once)
    with pytest.raises(KeyboardInterrupt):
        words = [f"study={study.name}", f"runs_dir={study.parent}", "by=sim-fair", "share=0.7"]
        main.work(main.read(words))
    assert len(verdicts(study)) > 3 * sum(map(sum, whole))  # one run was asked about to its end
    later = [run.reference.asked_P for run in read_study(study).runs]
    assert all(map(np.array_equal, whole, later))
    capsys.readouterr()
    assert audit(study) == 0
    assert "60 more groups were drawn and not asked about" in capsys.readouterr().out
    monkeypatch.undo()
    audit(study, "by=sim-fair", "share=0.7")
    assert sum(int(run.reference.asked_P.sum()) for run in read_study(study).runs) == 100


def test_a_panel_is_the_mean_of_its_judges(study):
    audit(study, "by=sim-fair,sim-lenient", "share=0.1")
    run = read_study(study).runs[0]
    by_judge = {}
    for row in verdicts(study):
        if row["cell"] == run.cell:
            by_judge.setdefault(row["rollout_id"], []).append(row["score"])
    assert {len(scores) for scores in by_judge.values()} == {2}
    assert run.reference is not None
    means = sorted(np.mean(scores) for scores in by_judge.values())
    known = run.reference.score[np.isfinite(run.reference.score)]
    assert sorted(known.tolist()) == pytest.approx(means)


def test_an_audit_has_one_reference(study, refusal):
    audit(study, "by=sim-fair")
    for words in (
        ["by=sim-lenient"],
        ["by=person"],
        ["by=sim-fair", "judge.sampling.temperature=0.3"],
    ):
        assert "an audit has one reference" in refusal(study, *words)


def test_a_study_whose_truth_is_known_is_not_audited_unasked(tmp_path, capsys, refusal):
    study = write_run(tmp_path / "runs", steps=4)
    (next(study.glob("sim-*")) / "DONE").touch()
    assert "add rules=true" in refusal(study, "by=sim-fair")
    assert not (study / "replays").exists()
    audit(study, "by=sim-lenient", "rules=true")
    said = capsys.readouterr().out
    assert "beside the rule that knows their truth" in said
    run = read_study(study).runs[0]
    assert run.truth[:, 0].tolist() == [1.0] * 12  # the rule's stay
    assert run.reference is not None
    assert not run.reference.truth_P.any()


def test_a_study_without_a_finished_run_says_so(study, refusal):
    for done in study.glob("*/DONE"):
        done.unlink()
    for words in (["by=sim-fair"], []):
        assert "has no finished run" in refusal(study, *words)


@pytest.mark.parametrize(
    "words, message",
    [
        (["by=nobody"], "names no reference"),
        (["by=person,sim-fair"], "names no reference"),
        (["by=sim-fair,sim-fair"], "names no reference"),
        (["answers=x.csv"], "Add by=person"),
        (["by=sim-fair,sim-lenient", "judge.sampling.temperature=1"], "names not one"),
        (["by=sim-fair", "share=0"], "share=0"),
        (["by=sim-fair", "share=1.5"], "share=1.5"),
        (["by=person", "levels=1"], "levels=1"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(study, words, message, refusal):
    assert message in refusal(study, *words)
    assert not (study / "replays").exists()


def test_without_a_reference_the_plan_is_printed(study, capsys):
    assert audit(study) == 0
    said = capsys.readouterr().out
    assert "judgedrift audit study=told by=person" in said
    assert not (study / "replays").exists()


def page(address):
    with urllib.request.urlopen(address, timeout=GENEROUS_S) as answer:
        return answer.read().decode()


def press(address, text, key):
    """Press a key of the page: click the button that has it."""
    at = re.search(r'name="at" value="(\d+)"', text)
    button = re.search(rf'<button name="score" value="([^"]*)" data-key="{key}"', text)
    assert at and button
    form = urllib.parse.urlencode({"at": at[1], "score": button[1]}).encode()
    with urllib.request.urlopen(address, form, timeout=GENEROUS_S) as answer:
        return answer.read().decode()


@contextlib.contextmanager
def read_from(process):
    """The address of the page that a command serves; it ends with Ctrl-C."""
    with process:
        yield re.search(r"http://\S+/", process.stdout.readline())[0]
        process.send_signal(signal.SIGINT)
        process.wait(GENEROUS_S)


def words_of(study):
    return [f"study={study.name}", f"runs_dir={study.parent}", "by=person", "share=0.1"]


@pytest.fixture
def desk(study):
    """The page of a person's audit, by a command of its own."""
    pipes = {"stdout": subprocess.PIPE, "text": True}
    with read_from(commands.start("analysis.audit", *words_of(study), **pipes)) as address:
        yield study, address


def test_a_person_who_errs_goes_back_and_stops_half_way(desk, capsys):
    study, address = desk
    rng = np.random.default_rng(0)
    names = list(dict.fromkeys(name for name, _ in kept.load_questions(study)))
    text, given = page(address), {}
    for name in names[:31]:
        right = "(empty)" not in text
        key = "5" if right else "1"
        if rng.random() < 0.1:
            key = "3"
        if rng.random() < 0.1:
            key = "0"
        given[name] = {"5": 1.0, "1": 0.0, "3": 0.5, "0": None}[key]
        text = press(address, text, key)
    assert kept.load_answers(study) == given  # written as they came
    press(address, page(f"{address}?at=0"), "2")
    given[names[0]] = 0.25
    assert kept.load_answers(study) == given
    drawn = kept.load(study)
    whole = kept.answered_groups(drawn, kept.load_questions(study), given)
    assert 10 < len(whole) < len(drawn.groups) == 40
    assert f"31 of {len(names)} answered, in whole groups {len(whole)} of 40" in page(address)
    for hostile in (b"at=99&score=1", b"at=0&score=7", b"at=x&score=1", b"score=1", b"x" * 2000):
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(address, hostile, timeout=GENEROUS_S)
    with pytest.raises(urllib.error.HTTPError):
        page(address.rsplit("/", 2)[0] + "/wrong/")
    assert kept.load_answers(study) == given
    places, scores = set(), {}
    for run in read_study(study).runs:
        if run.reference is None:
            continue
        frame = rollouts_frame(
            study, ["rollout_id", "step", "group", "member", "prompt_id", "answer"]
        )
        frame = frame[frame["cell"] == run.cell].sort_values(["step", "group", "member"])
        asked = np.repeat(run.reference.asked_P, 3)
        for row, score in zip(
            frame[asked].to_dict("records"), run.reference.score.ravel()[asked], strict=True
        ):
            places.add((run.cell, row["step"], row["group"]))
            scores[
                kept.question_of(
                    drawn, row["prompt_id"], row["answer"] if isinstance(row["answer"], str) else ""
                )
            ] = score
    assert places == whole
    told = {name: np.nan if given[name] is None else given[name] for name in scores}
    assert scores == pytest.approx(told, nan_ok=True)


def test_equal_answers_are_one_question(tmp_path):
    study = write_run(tmp_path / "runs", steps=20)
    (next(study.glob("sim-*")) / "DONE").touch()
    words = [f"answers={tmp_path / 'none.csv'}", "rules=true", "share=1"]
    (tmp_path / "none.csv").write_text("answer,score\n")
    audit(study, "by=person", *words)
    questions = kept.load_questions(study)
    assert len(questions) == 180
    assert len({name for name, _ in questions}) == 9


def test_a_page_shows_neither_arm_nor_score_and_lets_no_other_script_run(study):
    pipes = {"stdout": subprocess.PIPE, "text": True}
    with read_from(
        commands.start("analysis.audit", *words_of(study), real=True, **pipes)
    ) as address:
        text = page(address)
        with urllib.request.urlopen(address, timeout=GENEROUS_S) as answer:
            policy = answer.headers["content-security-policy"]
    for word in ("sim-verbose", "told-", "-s0-", "-s1-", "step"):
        assert word not in text.replace("step by step", "").partition("</header>")[2]
    assert "default-src 'none'" in policy
    assert "'unsafe-inline'" not in policy


def test_a_file_is_read_in_place_of_the_page(study, tmp_path, capsys, refusal):
    empty = tmp_path / "none.csv"
    empty.write_text("answer,score\n")
    audit(study, "by=person", "share=0.1", f"answers={empty}")
    questions = kept.load_questions(study)
    filled = tmp_path / "filled.csv"
    names = list(dict.fromkeys(name for name, _ in questions))
    lines = [f"{name},{len(name) % 2}" for name in names]
    filled.write_text("\n".join(["answer,score", *lines, ""]))
    audit(study, "by=person", f"answers={filled}")
    assert f"{len(names)} answers read" in capsys.readouterr().out
    runs = read_study(study).runs
    assert sum(int(run.reference.asked_P.sum()) for run in runs) == 40
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("answer,score\nsomebody,1\n")
    assert "which nobody asked" in refusal(study, "by=person", f"answers={wrong}")
    assert len(kept.load_answers(study)) == len(names)


def test_a_damaged_audit_is_a_problem_of_the_report_and_no_truth(study):
    audit(study, "by=sim-fair")
    (kept.folder_of(study) / "groups.csv").write_text("nothing\n")
    records = read_study(study)
    assert any("holds no places of groups" in problem for problem in records.problems)
    assert all(np.isnan(run.truth).all() for run in records.runs)


def test_records_of_an_audit_are_verified_and_merged_with_the_others(study, capsys):
    audit(study, "by=sim-fair")
    before = [run.truth for run in read_study(study).runs]
    assert records.main(["merge", f"study={study.name}", f"runs_dir={study.parent}"]) == 0
    after = [run.truth for run in read_study(study).runs]
    assert all(np.array_equal(*pair, equal_nan=True) for pair in zip(before, after, strict=True))
    assert records.main(["verify", f"study={study.name}", f"runs_dir={study.parent}"]) == 1
    said = capsys.readouterr().out
    assert "audit" not in said  # what is wrong is of runs that were made by hand
    shutil.rmtree(kept.folder_of(study))
    assert all(run.reference is None for run in read_study(study).runs)


def test_a_report_reads_the_reference_as_the_truth_and_says_so(study):
    audit(study, "by=sim-fair", "share=0.5")
    page = write_report(study).read_text()
    assert "No rule knows the truth of these answers: it is what sim-fair says of" in page
    assert "What does the reference say of the judge?" in page
    assert "Whether sim-fair is right" in page
    assert "No rollout has a rule truth" not in page
    assert "holds other groups" not in page
    shifts = pd.read_csv(study / "report" / "tables" / "scores.csv").set_index("metric")
    assert np.isfinite(shifts.loc[["truth", "gap"], "shift"]).all()


def test_no_replay_has_the_name_of_the_audit(study, capsys):
    words = ["judge=sim-fair", f"study={study.name}", f"runs_dir={study.parent}", "out=audit"]
    assert replay.main(words) == 2
    assert "out=audit is where the study's audit lies" in " ".join(capsys.readouterr().err.split())


def test_only_one_process_draws_and_answers_at_a_time(study, refusal):
    with locks.held(study / LOCK):
        assert "Another process asks about the answers of told" in refusal(study, "by=sim-fair")
        assert audit(study) == 0  # to look needs no lock
    assert not (study / "replays").exists()
    assert audit(study, "by=sim-fair") == 0


def test_a_forecast_asks_the_reference_about_all_rollouts_before_training(study):
    with pytest.raises(UserError, match="judgedrift audit study=told by="):
        start_of_base(ask(study, "sim-verbose"))
    audit(study, "by=sim-fair", "share=0.1")
    base = ask(study, "sim-verbose")
    # the oracle of the task: right, right and wordy, and nothing; the first step has three groups
    assert base.truth.tolist() == [[1.0, 1.0, 0.0]] * len(base.truth)
    assert len(base.truth) >= 3
    assert start_of_base(base).mean[-1] == 1.0  # of answers that there are
    asked = {(each["cell"], each["rollout_id"]) for each in verdicts(study)}
    assert not all((each["cell"], each["rollout_id"]) in asked for each in firsts(study))


def firsts(study):
    """The rollouts of each run's first step."""
    frame = rollouts_frame(study, ["rollout_id", "step"])
    return frame[frame["step"] == 1].to_dict("records")


def test_a_person_and_an_audit_with_other_settings_cannot_be_asked_by_a_forecast(study):
    audit(study, "by=sim-fair", "share=0.1", "judge.simulated.noise_sd=0.3")
    with pytest.raises(UserError, match="settings that the preset does not have"):
        ask(study, "sim-verbose")
    shutil.rmtree(study / "replays" / "audit")
    questions = asking.opened(study, [kept.PERSON], share=0.1, seed=0, rules=False)
    assert questions.by_person
    assert np.isnan(ask(study, "sim-verbose").truth).all()
