"""What an export holds, that others read it, that it needs little memory, and what is refused."""

import csv
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from analysis.answers import files, inspect_logs
from analysis.answers.files import schema_of
from analysis.answers.reading import Answers, read_answers
from analysis.export import main
from study.cell.folder import CellFolder
from study.cell.merged import merge_cell
from study.screen import CONTROLS
from tests.analysis.conftest import damage, write_held_out, write_study
from tests.conftest import python


def export(study: Path, format: str, out: Path) -> int:
    words = [f"study={study.name}", f"runs_dir={study.parent}", f"format={format}", f"out={out}"]
    return main(words)


@pytest.fixture(scope="module")
def table(planted, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "answers.parquet"
    assert export(planted, "parquet", out) == 0
    return pq.read_table(out).to_pandas()


def test_a_row_is_an_answer_and_a_judge_and_a_missing_verdict_is_null(table):
    assert len(table) == 3 * 3 * 6 * 16
    assert not table.duplicated(["cell", "set", "rollout_id", "judge", "vote"]).any()
    row = table[(table.cell.str.startswith("sim-verbose-s1")) & (table.rollout_id == "000003-0005")]
    (row,) = row.to_dict("records")
    facts = [row[name] for name in ("arm", "run_judge", "seed", "set")]
    assert facts == ["sim-verbose", "sim-verbose", 1, "training"]
    assert row["length"] == 25 and row["prompt"] == "Say something, prompt 1 of step 3"
    assert row["truth"] == pytest.approx(0.41) and row["score"] == pytest.approx(0.60)
    assert row["gap"] == pytest.approx(0.19) and row["judge_score"] == row["score"]
    failed = table[table.outcome == "unparsed"]
    assert len(failed) == 3 * 6 * 4 and set(failed.member) == {3}
    assert failed[["score", "gap", "reward", "advantage", "judge_score"]].isna().all(axis=None)


def test_a_csv_holds_the_same_and_nothing_that_a_spreadsheet_would_run(make_study, tmp_path):
    study = make_study(seeds=1, steps=2)
    part = next(study.glob("sim-fair-*/rollouts/step-000001.parquet"))
    rows = pq.read_table(part)
    texts = ["=1+1", "+1", "-1", "@x", "\t=1", '"=1"', 'a,b\n"c"', "", "\uff1d1", "x=1"]
    texts += ["\x1b[2Jgone", "a\x00\x07\x9b\x7fb", "\x1b=1", "a\r\nb"]
    answers = texts + rows["answer"].to_pylist()[len(texts) :]
    place = rows.schema.get_field_index("answer")
    pq.write_table(rows.set_column(place, "answer", [answers]), part)
    out = tmp_path / "answers.csv"
    assert export(study, "csv", out) == 0
    with out.open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    there = [row["answer"] for row in read if row["cell"] == part.parents[1].name][: len(texts)]
    spelled = {"\x1b[2Jgone": r"\x1b[2Jgone", "\x1b=1": r"\x1b=1", texts[-3]: r"a\x00\x07\x9b\x7fb"}
    guarded = {"=1+1", "+1", "-1", "@x", "\t=1", "\uff1d1"}
    shown = [spelled.get(text, text) for text in texts]
    assert there == [f"'{text}" if text in guarded else text for text in shown]
    assert not set(out.read_text(encoding="utf-8")) & set(map(chr, CONTROLS))
    unparsed = {row["score"] for row in read if row["outcome"] == "unparsed"}
    assert len(read) == 96 and unparsed == {""}


class Counted:
    """A table that counts how often it was asked for its size."""

    num_rows, asked = 1, 0

    @property
    def nbytes(self):
        self.asked += 1
        return 1


def test_each_table_is_measured_once_until_a_row_group_is_full(monkeypatch):
    monkeypatch.setattr(files, "ROWS", 100)
    monkeypatch.setattr(files.pa, "concat_tables", list)
    steps = [Counted() for _ in range(250)]
    assert [len(group) for group in files._groups(iter(steps))] == [100, 100, 50]
    assert {step.asked for step in steps} == {1}


def test_the_columns_are_known_from_the_heads_of_the_parts(make_study, tmp_path, monkeypatch):
    study = make_study(seeds=1, steps=2)
    part = next(study.glob("sim-fair-*/rollouts/step-000002.parquet"))
    rows = pq.read_table(part)
    pq.write_table(rows.append_column("component/more", rows["truth"]), part)
    damage(study, "sim-flaky-*/rollouts/step-000001.parquet")
    monkeypatch.setattr(Answers, "_table", lambda *ignored: pytest.fail("a part was read"))
    monkeypatch.setattr(Answers, "judged", lambda *ignored: iter(()))
    times = []
    monkeypatch.setattr(files, "schema_of", lambda of: times.append(of) or schema_of(of))
    assert read_answers(study).numbers() == ["component/more"]
    assert files.write_csv(read_answers(study), tmp_path / "x.csv") == 0 and len(times) == 1


def test_shadow_judges_and_votes_have_rows_of_their_own(small_study, tmp_path):
    out = tmp_path / "answers.parquet"
    assert export(small_study, "parquet", out) == 0
    table = pq.read_table(out).to_pandas()
    roles = table.groupby(["cell", "rollout_id"])["role"].agg(sorted)
    assert all(each == ["acting", "shadow"] for each in roles)
    assert set(table.loc[table.role == "shadow", "judge"]) == {"sim-verbose"}
    scored = table[(table.role == "acting") & table.score.notna()]
    assert np.allclose(scored.score, scored.judge_score)


def test_an_answer_that_no_judge_saw_has_a_row(make_study, tmp_path):
    study = make_study(seeds=1, steps=1, judges=["sim-fair"])
    part = next(study.glob("*/verdicts/step-000001.parquet"))
    verdicts = pq.read_table(part)
    pq.write_table(verdicts.slice(1), part)
    out = tmp_path / "answers.parquet"
    assert export(study, "parquet", out) == 0
    first, second = pq.read_table(out).slice(0, 2).to_pylist()
    assert first["rollout_id"] == "000001-0000" and first["judge"] is None is first["outcome"]
    assert second["judge"] == "sim-fair" and pq.read_metadata(out).num_rows == 16


def test_merged_records_are_exported_like_parts(make_study, tmp_path):
    study = make_study(seeds=1)
    assert export(study, "parquet", tmp_path / "parts.parquet") == 0
    for cell in study.glob("*/config.yaml"):
        merge_cell(CellFolder(cell.parent))
    assert export(study, "parquet", tmp_path / "merged.parquet") == 0
    before, after = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("parts", "merged"))
    assert before.equals(after)


def test_hugging_face_reads_the_folder(make_study, tmp_path, monkeypatch):
    import datasets

    study = make_study(seeds=1)
    write_held_out(next(study.glob("sim-fair-*")))
    monkeypatch.setattr(files, "ROWS", 50)
    monkeypatch.setattr(files, "SHARD", 1000)
    out = tmp_path / "hf"
    assert export(study, "hf", out) == 0
    assert len(list((out / "data").glob("train-*.parquet"))) > 1
    read = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in read.items()} == {"train": 288, "held_out": 16}
    row = read["train"][0]
    assert row["arm"] == "sim-fair" and row["length"] == 6 and row["labels"] == []
    assert set(read["held_out"]["set"]) == {"held-out"}


def test_the_card_lists_what_could_not_be_read(make_study, tmp_path):
    study = make_study(seeds=1)
    damage(study, "sim-fair-*/verdicts/step-000002.parquet")
    assert export(study, "hf", tmp_path / "hf") == 0
    said = (tmp_path / "hf" / "README.md").read_text().partition("## What could not be read")[2]
    assert "verdicts/step-000002.parquet is left out" in said
    assert export(make_study("whole", seeds=1), "hf", tmp_path / "whole") == 0
    assert "could not be read" not in (tmp_path / "whole" / "README.md").read_text()


@pytest.mark.long
@pytest.mark.alone
def test_memory_does_not_grow_with_the_study(tmp_path):
    """Ten times the steps, no more memory: measured in a process of its own."""
    program = (
        "import sys\n"
        "from analysis.export import main\n"
        "from benchmarks.memory import peak_mib\n"
        "code = main(sys.argv[1:])\n"
        "print(peak_mib())\n"
        "sys.exit(code)\n"
    )
    peaks = []
    for steps in (20, 400):
        study = write_study(
            tmp_path / f"s{steps}", ["sim-fair"], seeds=1, steps=steps, groups=16, members=16
        )
        for cell in study.glob("*/config.yaml"):
            merge_cell(CellFolder(cell.parent))
        out = tmp_path / f"{steps}.parquet"
        words = f"study={study.name}", f"runs_dir={tmp_path}", "format=parquet", f"out={out}"
        child = python(program, *words)
        said, _ = child.communicate()
        assert child.returncode == 0, said
        assert pq.read_metadata(out).num_rows == steps * 256
        peaks.append(said.split()[-1])
    if "None" in peaks:
        pytest.skip("this kernel does not tell a process's own peak of memory")
    small, large = map(float, peaks)
    assert large < small + 120, f"{peaks} MiB"


def test_an_export_that_fails_leaves_nothing(planted, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_card", lambda answers, counts: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        files.write_hf(read_answers(planted), tmp_path / "hf")
    assert list(tmp_path.iterdir()) == []


# --- Inspect ---------------------------------------------------------------------------------


def test_without_inspect_the_export_says_what_to_install(planted, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    assert export(planted, "inspect", tmp_path / "logs") == 2
    assert "pip install -e '.[inspect]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_inspect_reads_its_logs(make_study, tmp_path, monkeypatch):
    log = pytest.importorskip("inspect_ai.log", reason="the extra inspect is not installed")
    from analysis.answers import inspect_logs

    study = make_study(seeds=1, judges=["sim-flaky"])
    monkeypatch.setattr(inspect_logs, "SAMPLES", 40)
    out = tmp_path / "logs"
    assert export(study, "inspect", out) == 0
    listed = log.list_eval_logs(str(out))
    assert len(listed) == 3
    samples = []
    for each in listed:
        read = log.read_eval_log(each)
        assert read.status == "success" and read.eval.task == "sim-flaky"
        assert read.eval.viewer.trust_content is False, "what others wrote is text"
        (mean,) = [score for score in read.results.scores if score.name == "truth (rules)"]
        assert mean.metrics["mean"].value == pytest.approx(0.4)
        samples += read.samples
    assert len(samples) == 96 == len({sample.id for sample in samples})
    for sample in samples:
        missing = sample.metadata["member"] == 3
        assert ("sim-flaky" in sample.scores) is not missing
        assert ("sim-flaky" in sample.metadata.get("missing", {})) is missing
        assert sample.scores["truth (rules)"].value == 0.4
        assert sample.metadata["behaviour"]["length"] == 6 + sample.metadata["step"] - 1


def test_inspect_has_scores_of_few_digits(make_study, tmp_path):
    log = pytest.importorskip("inspect_ai.log", reason="the extra inspect is not installed")
    study = make_study(seeds=1, judges=["sim-fair"], steps=1, constant=2 / 3)
    assert export(study, "inspect", tmp_path / "logs") == 0
    (listed,) = log.list_eval_logs(str(tmp_path / "logs"))
    scores = {sample.scores["sim-fair"].value for sample in log.read_eval_log(listed).samples}
    assert scores == {0.666667}
    metadata = log.read_eval_log(listed).samples[0].metadata
    assert "reward" in metadata and not {"dataset", "domain", "item"} & set(metadata)


def test_inspect_knows_target_tokens_duration_and_data_set(small_study, tmp_path):
    """A simulated judge reports its tokens; the task has criteria and no reference."""
    log = pytest.importorskip("inspect_ai.log", reason="the extra inspect is not installed")
    assert export(small_study, "inspect", tmp_path / "logs") == 0
    for each in log.list_eval_logs(str(tmp_path / "logs")):
        read = log.read_eval_log(each)
        assert read.eval.dataset.name == "instruct-mini"
        assert read.stats.started_at < read.stats.completed_at
        assert all(sample.target for sample in read.samples)
        usage = read.stats.model_usage
        assert set(usage) == {"tiny", "sim-verbose", read.eval.metadata["judge"]}
        written = sum(sample.metadata["tokens"] for sample in read.samples)
        assert usage["tiny"].output_tokens == usage["tiny"].total_tokens == written
        assert usage["sim-verbose"].input_tokens > usage["sim-verbose"].output_tokens > 0


def test_rows_that_cannot_be_had_leave_samples_without_a_target_and_say_so(make_study):
    answers = read_answers(make_study(seeds=1, judges=["sim-fair"], steps=1))
    (source,) = answers.sources
    (answers.folder / source.cell / "config.yaml").write_text("task: [")
    target_of = inspect_logs._targets(answers, source)
    assert target_of("any") == ""
    assert f"{source.cell}: its samples have no target" in answers.problems[-1]


def test_inspect_tells_a_judge_named_truth_and_lost_verdicts_apart(make_study, tmp_path):
    log = pytest.importorskip("inspect_ai.log", reason="the extra inspect is not installed")
    study = make_study(seeds=1, judges=["truth"], steps=2)
    damage(study, "*/verdicts/step-000002.parquet")
    out = tmp_path / "logs"
    assert export(study, "inspect", out) == 0
    (read,) = (log.read_eval_log(each) for each in log.list_eval_logs(str(out)))
    for sample in read.samples:
        assert {name: score.value for name, score in sample.scores.items()} == {
            "truth": 0.4,  # the judge pays 0.01 a word beyond six, and is never off
            "truth (rules)": 0.4,
        }
        lost = {"verdicts": "could not be read"} if sample.metadata["step"] == 2 else None
        assert sample.metadata.get("missing") == lost
