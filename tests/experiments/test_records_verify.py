"""``judgedrift records verify``: no damage to the records of a trained study is silent."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import export, view
from analysis.records.runs import read_study
from experiments.policies.load import trained_policy
from experiments.records import main
from study.cell import merged
from study.cell.folder import CellFolder
from study.cell.parts import merged_files
from study.cell.records import KINDS, part_name, write_rows
from study.cell.signature import UNSIGNED
from study.errors import UserError
from tests.rewritten import unsigned
from tests.tiers import some

Change = Callable[[pd.DataFrame], pd.DataFrame]
FIRST = part_name(1)


@pytest.fixture
def alone(small_study: Path, tmp_path: Path) -> Path:
    """A study of one trained cell, in parts."""
    copy = tmp_path / "runs" / "small"
    copy.mkdir(parents=True)
    shutil.copy(small_study / "study.json", copy)
    (cell,) = small_study.glob("sim-fair-s3-*")
    shutil.copytree(cell, copy / cell.name)
    for kind in KINDS:
        for path in merged_files(first(copy) / kind):
            merged.split(path)
    return copy


@pytest.fixture
def study(alone: Path, small_study: Path) -> Path:
    """Two trained cells; the first in parts."""
    (cell,) = small_study.glob("sim-flaky-s3-*")
    shutil.copytree(cell, alone / cell.name)
    return alone


def first(study: Path) -> Path:
    return next(study.glob("sim-fair-*"))


def second(study: Path) -> Path:
    return next(study.glob("sim-flaky-*"))


def verify(study: Path) -> int:
    return main(["verify", f"study={study.name}", f"runs_dir={study.parent}"])


def rewrite(path: Path, change: Change) -> None:
    """Write a part as another tool would, so unsigned, with changed rows."""
    table = pq.read_table(path)
    rows = change(pd.DataFrame(table.to_pylist()))
    kept = pa.schema([field for field in table.schema if field.name in rows])
    pq.write_table(pa.Table.from_pylist(rows.to_dict("records"), schema=kept), path)


def setting(**values: object) -> Change:
    """The first row gets these values."""

    def change(rows: pd.DataFrame) -> pd.DataFrame:
        rows = rows.astype(dict.fromkeys(values, object))
        for name, value in values.items():
            rows.at[0, name] = value
        return rows

    return change


def all_of(name: str, value: object) -> Change:
    return lambda rows: rows.assign(**{name: value})


def without(*names: str) -> Change:
    return lambda rows: rows.drop(columns=[*names])


def doubled(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([rows, rows], ignore_index=True)


def halved(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.iloc[: len(rows) // 2]


INF, NAN = float("inf"), float("nan")
ROWS: dict[str, tuple[str, Change, str]] = {
    "a score is NaN": ("verdicts", setting(score=NAN), "not a finite number"),
    "a score is infinite": ("verdicts", setting(score=INF), "not a finite number"),
    "a score is 2": ("verdicts", setting(score=2.0), "scale"),
    "a score is negative": ("verdicts", setting(score=-0.5), "scale"),
    "a score is another": ("verdicts", setting(score=0.123), "from their verdicts"),
    "an outcome is unknown": ("verdicts", setting(outcome="fine"), "outcome that does not exist"),
    "scored without a score": ("verdicts", setting(score=None), "outcome scored"),
    "a score without scored": ("verdicts", setting(outcome="timeout"), "outcome scored"),
    "a role is unknown": ("verdicts", setting(role="extra"), "role that does not exist"),
    "roles are exchanged": ("verdicts", all_of("role", "shadow"), "from their verdicts"),
    "the judge is renamed": ("verdicts", all_of("judge", "other"), "scored by 'other'"),
    "one verdict's judge is renamed": ("verdicts", setting(judge="other"), "scored by 'other'"),
    "an unknown rollout": ("verdicts", setting(rollout_id="000001-9999"), "but no record"),
    "a verdict of another step": ("verdicts", setting(rollout_id="000002-0000"), "those of step"),
    "verdicts twice": ("verdicts", doubled, "verdicts twice"),
    "half of the verdicts": ("verdicts", halved, "no verdict of the shadow judge"),
    "no column of scores": ("verdicts", without("score"), "no column score"),
    "no column of roles": ("verdicts", without("role"), "no column role"),
    "no column of ids": ("verdicts", without("rollout_id"), "no column rollout_id"),
    "an infinite truth": ("rollouts", setting(truth=INF), "not a finite number"),
    "a truth is NaN": ("rollouts", setting(truth=NAN), "not a finite number"),
    "a truth is another": ("rollouts", setting(truth=0.123), "truth/mean"),
    "an infinite reward": ("rollouts", setting(reward=INF), "not a finite number"),
    "a judge's score is another": ("rollouts", setting(judge_score=0.123), "from their verdicts"),
    "no judge's score": ("rollouts", setting(judge_score=None), "from their verdicts"),
    "rollouts twice": ("rollouts", doubled, "a rollout twice"),
    "half of the rollouts": ("rollouts", halved, "rollouts on record"),
    "one id for all": ("rollouts", all_of("rollout_id", "000001-0000"), "a rollout twice"),
    "an id of another step": ("rollouts", setting(rollout_id="000009-0000"), "those of step"),
    "an unknown id": ("rollouts", setting(rollout_id="000001-0999"), "but no record"),
    "no column of members": ("rollouts", without("member"), "no column member"),
    "no column of rewards": ("rollouts", without("reward"), "no column reward"),
    "no member": ("rollouts", setting(member=None), "no member"),
    "a huge member": ("rollouts", setting(member=2**31 - 1), "a member of"),
    "two at one place": ("rollouts", setting(member=1), "two rollouts with one group and place"),
    "no outcome": ("verdicts", setting(outcome=None), "no outcome"),
    "no judge": ("verdicts", all_of("judge", None), "no judge"),
    "no step": ("verdicts", setting(step=None), "no step"),
    "no rows": ("rollouts", lambda rows: rows.iloc[:0], "no rows"),
    "no column of answers": ("rollouts", without("answer"), "no column answer"),
    "a truth beyond any number": ("rollouts", setting(truth=1e308), "not a finite number"),
    "a reward is another": ("rollouts", setting(reward=0.123), "reward/mean"),
    "an advantage is another": ("rollouts", setting(advantage=0.123), "advantages do not follow"),
    "rows of another step": ("rollouts", all_of("step", 2), "holds rows of step"),
}

LIKE_OTHERS = {
    *("a score is infinite", "a truth is NaN", "an infinite reward"),
    *("no column of roles", "no column of ids", "no column of rewards", "no column of answers"),
    *("roles are exchanged", "a judge's score is another", "the judge is renamed"),
    *("an id of another step", "an unknown id", "one id for all", "no step", "no judge"),
}
"""Damages that the same lines find as one of the others."""


@pytest.mark.parametrize("damage", some(ROWS, standard=ROWS.keys() - LIKE_OTHERS))
def test_rows_that_cannot_be_are_named(alone, capsys, damage):
    kind, change, why = ROWS[damage]
    unsigned(first(alone))  # as an older version wrote it: what is signed is only compared
    rewrite(first(alone) / kind / FIRST, change)
    assert verify(alone) == 1
    assert why in capsys.readouterr().out


def swapped(study: Path, place: str) -> None:
    """The two cells exchange what is at a place."""
    ours, theirs = first(study) / place, second(study) / place
    ours.rename(study / "aside")
    theirs.rename(ours)
    (study / "aside").rename(theirs)


def together(study: Path) -> None:
    merged.merge_cell(CellFolder(first(study)))


def one_part(study: Path) -> None:
    for path in merged_files(second(study) / "verdicts"):
        merged.split(path)
    shutil.copy(second(study) / "verdicts" / FIRST, first(study) / "verdicts" / FIRST)


def flipped(study: Path) -> None:
    path = first(study) / "verdicts" / FIRST
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def reseeded(study: Path) -> None:
    put(first(study) / "config.yaml", r"^seed: 3$", "seed: 4")


def other_metric(study: Path) -> None:
    """A metric that no other file repeats."""
    path = first(study) / "metrics.jsonl"
    path.write_text(re.sub(r'("policy/length_tokens": )\d', r"\g<1>9", path.read_text()))


def lost_line(study: Path) -> None:
    path = first(study) / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2] + lines[-1:]))


def put(path: Path, pattern: str, instead: str) -> None:
    text, count = re.subn(pattern, instead, path.read_text(), flags=re.M)
    assert count
    path.write_text(text)


def of_another_study(study: Path) -> None:
    put(first(study) / "config.yaml", r"^study: .*$", "study: elsewhere")


def of_another_training(study: Path) -> None:
    """The verdicts of a cell of the same config that was trained elsewhere."""
    elsewhere = shutil.copytree(first(study), study.parent / "elsewhere" / first(study).name)
    (elsewhere / "metrics.jsonl").unlink()
    (elsewhere / "status.json").write_text('{"training": "0badc0de"}')
    part = elsewhere / "verdicts" / FIRST
    write_rows(part, pq.read_table(part).replace_schema_metadata(None))
    shutil.copy(part, first(study) / "verdicts")


def other_status(study: Path) -> None:
    put(first(study) / "status.json", r'"training": "[0-9a-f]+"', '"training": "0badc0de"')


def older_part(study: Path) -> None:
    """A part that an older version signed, in a run of this one."""
    lines, part = first(study) / "metrics.jsonl", first(study) / "verdicts" / FIRST
    before = lines.read_bytes(), (first(study) / "status.json").read_bytes()
    lines.unlink()
    (first(study) / "status.json").write_text("{}")
    write_rows(part, pq.read_table(part).replace_schema_metadata(None))
    lines.write_bytes(before[0])
    (first(study) / "status.json").write_bytes(before[1])


def unsigned_lines(study: Path) -> None:
    path = first(study) / "metrics.jsonl"
    path.write_text(re.sub(r', "digest": "[0-9a-f]+"\}\n', "}\n", path.read_text()))


def unsigned_line(study: Path) -> None:
    path = first(study) / "metrics.jsonl"
    text = re.sub(r', "digest": "[0-9a-f]+"\}\n$', "}\n", path.read_text())
    path.write_text(text)


def kind_gone(study: Path, kind: str) -> None:
    for path in (first(study) / kind).iterdir():
        path.unlink()


def same_digits(study: Path) -> None:
    cell = first(study)
    copy = shutil.copytree(cell, cell.with_name(cell.name.replace("sim-fair", "sim-fair-again")))
    with (copy / "config.yaml").open("a") as file:
        file.write("plan: true\n")


def footer_changed(study: Path) -> None:
    """Rename a column where nothing but the footer names it."""
    path = first(study) / "rollouts" / FIRST
    data = path.read_bytes()
    begin = len(data) - pq.read_metadata(path).serialized_size - 8
    path.write_bytes(data[:begin] + data[begin:].replace(b"advantage", b"advantagf"))


def resumed_name(study: Path) -> None:
    kind = first(study) / "verdicts"
    shutil.copy(kind / FIRST, kind / part_name(2))


FILES: dict[str, Callable[[Path], object]] = {
    **{f"{place} swapped": lambda study, place=place: swapped(study, place)
       for place in (*KINDS, "policy", "metrics.jsonl", "config.yaml", "status.json")},
    "merged files swapped": lambda study: (together(study), swapped(study, "verdicts")),
    "kinds swapped": lambda study: shutil.copy(
        first(study) / "rollouts" / FIRST, first(study) / "verdicts" / FIRST
    ),
    "a part of another cell": one_part,
    "a part of another step": resumed_name,
    "a bit flipped": flipped,
    "a name in the footer changed": footer_changed,
    "an unsigned part beside a signed one": lambda study: rewrite(
        first(study) / "rollouts" / FIRST, lambda rows: rows
    ),
    "a part cut": lambda study: (first(study) / "rollouts" / FIRST).write_bytes(b"PAR1"),
    "a part gone": lambda study: (first(study) / "rollouts" / FIRST).unlink(),
    "all rollouts gone": lambda study: shutil.rmtree(first(study) / "rollouts"),
    "no metrics": lambda study: (first(study) / "metrics.jsonl").unlink(),
    "no DONE": lambda study: (first(study) / "DONE").unlink(),
    "no status": lambda study: (first(study) / "status.json").unlink(),
    "another seed in the config": reseeded,
    "no rollouts": lambda study: kind_gone(study, "rollouts"),
    "no verdicts": lambda study: kind_gone(study, "verdicts"),
    "a part of another training": of_another_training,
    "a status of another training": other_status,
    "a part of an older version": older_part,
    "an unsigned line behind signed ones": unsigned_line,
    "all lines unsigned": unsigned_lines,
    "another cell's name": lambda study: first(study).rename(
        first(study).with_name(first(study).name.replace("-s3-", "-s5-"))
    ),
    "two folders of one cell": same_digits,
    "a metric is another": other_metric,
    "a line of metrics lost": lost_line,
    "a cell of another study": of_another_study,
    "time of training changed": lambda study: put(
        first(study) / "status.json", r'"seconds": .*,', '"seconds": 9.0,'
    ),
    "end undone": lambda study: put(
        first(study) / "status.json", r'("step|"steps|"stopped_at)": \d+', r'\1": 1'
    ),
    "packages changed": lambda study: put(
        first(study) / "environment.json", r'"torch": "[^"]*"', '"torch": "1"'
    ),
    "arm taken from the config": lambda study: put(
        first(study) / "config.yaml", r"^arm: .*\n", ""
    ),
    "weights changed": lambda study: next(
        (first(study) / "policy").glob("*.safetensors")).write_bytes(b"0"),
}  # fmt: skip

OF_TWO = {name for name in FILES if name.endswith(" swapped")} | {"a part of another cell"}
"""Damages for which it takes a second cell."""


@pytest.mark.parametrize("damage", FILES)
def test_files_that_were_confused_are_named(request, capsys, damage):
    study = request.getfixturevalue("study" if damage in OF_TWO else "alone")
    FILES[damage](study)
    assert verify(study) == 1
    assert first(study).name in capsys.readouterr().out


@pytest.mark.parametrize(("name", "lines"), [("status.json", 2), ("metrics.jsonl", 1)])
def test_a_wrong_training_in_one_file_leaves_the_records_readable(study, name, lines):
    path = first(study) / name
    text = re.sub(r'"training": "[0-9a-f]+"', '"training": "0badc0de"', path.read_text(), count=1)
    path.write_text(text)
    records = read_study(study)
    assert len(records.runs) == 2 and all("parquet" not in text for text in records.problems)
    assert len(CellFolder(first(study)).lines()) == lines


def test_a_sound_study_has_no_problem_and_an_unsigned_one_says_so(study, capsys):
    assert verify(study) == 0
    assert "2 runs, 0 problems, 0 unsigned files" in capsys.readouterr().out
    unsigned(first(study))
    assert verify(study) == 0
    count = sum(1 for _ in first(study).rglob("step*.parquet"))
    assert f"2 runs, 0 problems, {count} unsigned files" in capsys.readouterr().out


def test_the_policy_of_another_run_is_not_taken(study):
    swapped(study, "policy")
    with pytest.raises(UserError, match="is not the policy of this run: it was trained in"):
        trained_policy(CellFolder(first(study)), None)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("no column of scores", marks=pytest.mark.long),
        "a score is NaN",
        "one id for all",
        "no column of answers",
        pytest.param("no member", marks=pytest.mark.long),
    ],
)
def test_who_reads_goes_on_without_such_rows_and_says_it(study, tmp_path, capsys, damage):
    kind, change, why = ROWS[damage]
    unsigned(first(study))  # as an older version wrote it: what is signed is only compared
    rewrite(first(study) / kind / FIRST, change)
    words = [f"study={study.name}", f"runs_dir={study.parent}"]
    assert view.main([*words, f"out={tmp_path / 'a.html'}"]) == 0
    printed = capsys.readouterr().out
    assert why in printed and printed.count("are unsigned") == 1
    assert read_study(study).problems.count(UNSIGNED) == 1
    assert export.main([*words, "format=parquet", f"out={tmp_path / 'a.parquet'}"]) == 0
    scores = pd.read_parquet(tmp_path / "a.parquet")["score"]
    assert np.isfinite(scores.dropna()).all()
