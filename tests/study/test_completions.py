import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.cell.completions import json_object, read_completions, sound_records
from study.errors import UserError


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def test_trl_parquet_with_chat_turns(tmp_path):
    path = tmp_path / "completions_00001.parquet"
    turns = [{"role": "user", "content": "Name a color."}]
    table = {
        "step": [3, 3],
        "prompt": [turns, turns],
        "completion": [[{"role": "assistant", "content": text}] for text in ("red", "blue")],
        "reward": [0.5, float("nan")],
        "advantage": [0.7, 0.0],
    }
    pq.write_table(pa.table(table), path)
    completions, lost = read_completions(path)
    assert lost == 0
    assert [item.completion for item in completions] == ["red", "blue"]
    assert {item.row.prompt_text() for item in completions} == {"Name a color."}
    assert [item.reward for item in completions] == [0.5, None]
    assert [(item.step, item.advantage) for item in completions] == [(3, 0.7), (3, 0.0)]


def test_verl_and_plain_jsonl(tmp_path):
    path = tmp_path / "3.jsonl"
    path.write_bytes(lines({"input": "p", "output": "c", "score": 1, "step": 3}))
    (rollout,), lost = read_completions(path)
    assert (
        rollout.row.prompt_text(),
        rollout.completion,
        rollout.reward,
        rollout.step,
    ) == ("p", "c", 1, 3)
    path = tmp_path / "plain.jsonl.gz"
    record = {"prompt": "p", "response": "c", "criteria": [{"criterion": "Short.", "points": 2}]}
    path.write_bytes(gzip.compress(lines(record)))
    (rollout,), lost = read_completions(path)
    assert lost == 0 and rollout.reward is None
    assert [(item.text, item.points) for item in rollout.row.criteria] == [("Short.", 2.0)]


def test_a_damaged_file_is_read_as_far_as_it_is_sound(tmp_path):
    path = tmp_path / "damaged.jsonl"
    good = lines({"prompt": "a", "response": "1"}, {"prompt": "b", "response": "2"})
    behind = b"\0" * 100 + lines({"prompt": "c", "response": "3"})
    bad_text = b'{"prompt": "d", "response": "\xff"}\n'
    path.write_bytes(behind + good + bad_text + b'{"prompt": "e", "resp')
    completions, lost = read_completions(path)
    assert [item.completion for item in completions] == ["3", "1", "2"]
    assert lost == 3  # what the NUL block swallowed, the line of bad text, the line that was cut


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5))))
def test_sound_lines_are_never_lost(records):
    sound, lost = sound_records(lines(*records), json_object)
    assert lost == 0
    assert [record for _, record in sound] == records


PAIR = {"prompt": "p", "response": "c"}
"""A record that is read."""


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", lines({"prompt": "p"}), "record 1 has the fields prompt"),
        ("a.csv", b"x", "unknown kind"),
        ("a.parquet", b"PAR1 and no more", "cannot be read"),
        ("a.jsonl.gz", b"\x1f\x8bcut", "cannot be read"),
        ("b.jsonl.gz", b"{}", "cannot be read"),
        # a field of another form
        ("b.jsonl", lines(PAIR, PAIR | {"step": "three"}), "record 2"),
        ("b.jsonl", lines(PAIR, PAIR | {"step": 1e999}), "record 2"),
        ("b.jsonl", lines(PAIR, PAIR | {"criteria": [{"points": 2}]}), "record 2"),
        (
            "b.jsonl",
            lines(PAIR, PAIR | {"criteria": [{"criterion": "x", "points": "many"}]}),
            "record 2",
        ),
        ("b.jsonl", lines(PAIR, PAIR | {"criteria": [5]}), "record 2"),
        ("b.jsonl", lines(PAIR, PAIR | {"prompt": [{"role": "user"}]}), "record 2"),
        ("b.jsonl", lines(PAIR, PAIR | {"prompt": 5}), "record 2"),
        ("b.jsonl", lines(PAIR, PAIR | {"response": 5}), "record 2"),
        ("b.jsonl", lines(PAIR, PAIR | {"response": [{"text": "c"}]}), "record 2"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        read_completions(tmp_path / name)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="is not a file"):
        read_completions(tmp_path / "none.jsonl")
