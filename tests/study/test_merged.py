"""Merged records are read as the parts were, whenever the merge is cut."""

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.cell import merged
from study.cell import parts as together
from study.cell.folder import CellFolder
from study.cell.merged import merge, merge_cell, reopen, split
from study.cell.parts import (
    Part,
    at_step,
    is_signed,
    left_out,
    merged_files,
    opened,
    parts,
    read_all,
    read_part,
)
from study.cell.records import EVALUATIONS, ROLLOUT, VERDICT, part_name, write_part
from study.cell.signature import KEY, read_signature
from study.cell.verify import foreign_parts
from study.system import files
from study.system.files import Damaged
from tests.conftest import ROOT
from tests.rewritten import unsigned

SCORES = st.none() | st.floats(0.0, 1.0) | st.sampled_from([0.0, -0.0, 1.0])
NUMBERS = SCORES | st.floats()
ROW = st.fixed_dictionaries(
    {"text": st.none() | st.text(max_size=5), "score": SCORES},
    optional={"component/x": NUMBERS, "feature/y": NUMBERS, "truth_missing": st.text(max_size=2)},
)
STEPS = st.dictionaries(st.integers(0, 10**7), st.lists(ROW, max_size=4), max_size=20)


def write(folder: Path, steps: dict[int, list[dict]]) -> None:
    for step, rows in steps.items():
        columns = ROLLOUT if folder.name == "rollouts" else VERDICT
        records = [dict.fromkeys(columns) | row | {"step": step} for row in rows]
        write_part(folder / part_name(step), records, columns, durable=False)


def contents(folder: Path, columns: list[str] | None = None) -> dict[int, bytes]:
    """Step -> its columns and rows; bytes, for which NaN is NaN."""
    return {part.step: frozen(read_part(part, columns)) for part in parts(folder)}


def frozen(table: pa.Table) -> bytes:
    return repr((table.column_names, table.schema.types, table.to_pylist())).encode()


def sample(folder: Path, steps: int = 40, rows: int = 3) -> None:
    write(
        folder,
        {
            step: [{"text": f"{step}-{row} " * 40, "score": row / 7} for row in range(rows)]
            for step in range(1, steps + 1)
        },
    )


@settings(max_examples=12)
@given(STEPS, st.sets(st.integers(0, 10**7)))
def test_every_step_is_read_as_it_was(tmp_path_factory, steps, others):
    folder = tmp_path_factory.mktemp("cell") / "verdicts"
    folder.mkdir()
    write(folder, steps)
    before, some = contents(folder), contents(folder, ["score", "component/"])
    chosen = {*list(steps)[::2], *others}
    picked = [row for _, t in read_all(folder, None, chosen) for row in t["step"].to_pylist()]
    merge(folder)
    assert len(list(folder.iterdir())) == min(1, len(steps))
    assert contents(folder) == before and contents(folder, ["score", "component/"]) == some
    assert picked == [
        row for _, t in read_all(folder, None, chosen) for row in t["step"].to_pylist()
    ]
    whole = [row for _, table in read_all(folder, ["step"]) for row in table["step"].to_pylist()]
    assert whole == [step for step in sorted(steps) for _ in steps[step]]
    for path in merged_files(folder):
        split(path)
    assert contents(folder) == before
    assert {path.name for path in folder.iterdir()} == set(map(part_name, steps))


SEAMS = [("fsync", 1, 5), ("replace", 1, 5), ("fsync", 2, 6), ("unlink", 1, 6), ("unlink", 4, 3)]
"""A call of the system, which of these a merge is killed in, and the files that are then there."""
KILLED = """
import os, signal, sys
from pathlib import Path
from study.cell import merged
for folder in sorted(Path(sys.argv[1]).iterdir()):
    if os.fork() == 0:
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
else:
    sys.exit()
name, turn = folder.name.split("-")
real, calls = getattr(os, name), []
def dies(*given, **more):
    calls.append(given)
    if len(calls) == int(turn):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*given, **more)
setattr(os, name, dies)
merged.merge(folder)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folders whose merge was killed in each of the seams, by forks of one process."""
    folders = tmp_path_factory.mktemp("seams")
    for name, turn, _ in SEAMS:
        sample(folders / f"{name}-{turn}", steps=5)
    words = [sys.executable, "-c", KILLED, str(folders)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == [str(-signal.SIGKILL)] * len(SEAMS), done.stderr
    return folders


@pytest.mark.parametrize(("name", "turn", "left"), SEAMS)
def test_a_merge_that_is_killed_leaves_every_step_once(killed, tmp_path, name, turn, left):
    sample(tmp_path / "whole", steps=5)
    before = contents(tmp_path / "whole")
    folder = killed / f"{name}-{turn}"
    assert len(list(folder.glob("*.parquet"))) == left
    assert contents(folder) == before
    assert foreign_parts(folder) == []
    merge(folder)
    assert contents(folder) == before
    assert len(list(folder.iterdir())) == 1


def test_who_has_listed_the_parts_reads_on_while_they_are_merged(tmp_path):
    sample(tmp_path)
    listed = parts(tmp_path)
    before = contents(tmp_path)
    merge(tmp_path)
    assert {part.step: frozen(read_part(part)) for part in listed} == before


def test_a_row_group_is_read_once_for_all_its_steps(tmp_path, monkeypatch):
    sample(tmp_path, steps=5)
    merge(tmp_path)
    reads = []

    def counted(*args):
        reads.append(args)
        return real(*args)

    real = together._read_groups
    monkeypatch.setattr(together, "_read_groups", counted)
    for part in parts(tmp_path):
        assert read_part(part).num_rows == read_part(part, ["step"]).num_rows == 3
    assert len(reads) == 2


def test_steps_of_long_texts_have_row_groups_of_fewer_steps(tmp_path, monkeypatch):
    sample(tmp_path, steps=7)
    before = contents(tmp_path)
    sizes = [read_part(part).nbytes for part in parts(tmp_path)]
    monkeypatch.setattr(merged, "BYTES", max(sizes) + 1)
    groups = opened(merge(tmp_path)).groups
    assert [list(group.steps) for group in groups] == [[1, 2], [3, 4], [5, 6], [7]]
    assert contents(tmp_path) == before


def test_a_run_that_goes_on_is_merged_again(tmp_path):
    kind = tmp_path / EVALUATIONS / "verdicts"
    sample(kind, steps=3)
    assert merge_cell(CellFolder(tmp_path)) == 1 and merge_cell(CellFolder(tmp_path)) == 0
    write(kind, {3: [{"score": 0.5}], 4: [{"score": 0.25}]})
    assert at_step(kind, 3).merged is None, "what was written last counts"
    before = contents(kind)
    assert merge_cell(CellFolder(tmp_path)) == 1
    assert [path.name for path in kind.iterdir()] == ["steps-000001-000004.parquet"]
    assert contents(kind) == before
    reopen(CellFolder(tmp_path), 4)
    assert len(list(kind.iterdir())) == 1, "nothing is to be made again"
    reopen(CellFolder(tmp_path), 2)
    assert sorted(path.name for path in kind.iterdir()) == [part_name(1), part_name(2)]
    assert contents(kind) == {step: before[step] for step in (1, 2)}


def test_what_was_unsigned_is_unsigned_in_parts_again(tmp_path):
    kind = tmp_path / "cell" / "calls"
    sample(kind, steps=2)
    unsigned(kind.parent)
    assert merge_cell(CellFolder(kind.parent)) == 1
    reopen(CellFolder(kind.parent), 1)
    (part,) = kind.iterdir()
    assert part.name == part_name(1) and not is_signed(Part(part, 1))


def test_a_signature_of_numbers_without_end_is_none():
    entry = '{"place": "x", "steps": [Infinity, 1], "rows": 1, "groups": [], "whole": true}'
    with pytest.raises(ValueError, match="its signature cannot be read"):
        read_signature({KEY.encode(): entry.encode()})


def hurt(path: Path, number: int) -> list[int]:
    """Flip a byte of a text of a row group; returns the steps in it."""
    group = opened(path).groups[number]
    column = opened(path).footer.row_group(group.number).column(list(VERDICT).index("text"))
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 0x55
    path.write_bytes(bytes(data))
    return list(group.steps)


def test_a_damaged_row_group_costs_its_steps(tmp_path, capsys):
    kind = tmp_path / "cell" / "verdicts"
    sample(kind)
    before = contents(kind)
    path = merge(kind)
    steps = hurt(path, 1)
    assert 1 < len(steps) < len(before) / 2
    lost: list[Damaged] = []
    read = [row for _, t in read_all(kind, lost=lost) for row in t["step"].to_pylist()]
    assert set(read) == set(before) - set(steps)
    (sentence,) = map(left_out, lost)
    assert sentence.startswith("cell/verdicts/steps-000001-000040.parquet is left out at steps ")
    assert f"at steps {steps[0]} to {steps[-1]}: it was altered: its digest differs" in sentence
    with pytest.raises(Damaged, match=f"damaged at steps {steps[0]} to {steps[-1]}"):
        list(read_all(kind))
    assert frozen(read_part(at_step(kind, 1))) == before[1]
    write(kind, {41: []})
    assert merge(kind) is None and path.exists(), "what is damaged is not written anew"
    reopen(CellFolder(tmp_path / "cell"), 39)
    assert {part.step for part in parts(kind)} == {*range(1, 40)} - {*steps} | {41}
    (aside,) = foreign_parts(kind)
    assert "steps-000001-000040.parquet.damaged" in aside
    assert "it is kept as steps-000001-000040.parquet.damaged" in capsys.readouterr().err


@pytest.mark.parametrize("spoil", [b"", b"PAR1", None])
def test_a_footer_that_cannot_be_read_is_said_and_hides_no_part(tmp_path, spoil):
    sample(tmp_path, steps=3)
    path = merge(tmp_path)
    if spoil is None:
        pq.write_table(pa.table({"step": [1, 2, 3]}), path)
    else:
        path.write_bytes(spoil)
    with pytest.raises(Damaged, match=r"steps-000001-000003\.parquet is damaged: it "):
        list(read_all(tmp_path))
    write(tmp_path, {1: [{"score": 0.5}]})
    lost: list[Damaged] = []
    assert [part.step for part, _ in read_all(tmp_path, lost=lost)] == [1]
    assert len(lost) == 1


def test_a_damaged_part_and_parts_of_other_kinds_stay(tmp_path):
    files.PRINTED_LINES.clear()
    sample(tmp_path, steps=4)
    (tmp_path / part_name(2)).write_bytes(b"torn")
    assert merge(tmp_path) is not None and merge(tmp_path) is None
    assert [part.step for part in parts(tmp_path)] == [1, 2, 3, 4]
    with pytest.raises(Damaged, match=r"step-000002\.parquet is damaged"):
        list(read_all(tmp_path))
    (tmp_path / part_name(2)).unlink()
    for step, note in ((5, "five"), (6, [6])):
        pq.write_table(pa.table({"step": [step], "note": [note]}), tmp_path / part_name(step))
    before = contents(tmp_path)
    assert merge(tmp_path) is None and contents(tmp_path) == before
    assert any("stays in parts" in line for line in files.PRINTED_LINES)


def test_a_part_is_its_path_and_its_step(tmp_path):
    sample(tmp_path, steps=2)
    assert str(parts(tmp_path)[0]) == str(tmp_path / part_name(1))
    assert Part(tmp_path, 1) != Part(tmp_path, 2)
    path = merge(tmp_path)
    assert str(at_step(tmp_path, 2)) == f"{path}, step 2"
