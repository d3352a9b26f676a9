"""Stored replies are read by the live code, damage costs no more than what it hit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.grading import GRADINGS
from judges.parse import main, read_records
from tests.waiting import GENEROUS_S

THREE = [{"points": 5}, {"points": 3}, {"points": -4}]


def audited(
    tmp_path: Path, records: list[dict[str, Any]] | bytes, *arguments: str
) -> list[dict[str, Any]]:
    """What the command line writes about these replies."""
    replies, out = tmp_path / "replies.jsonl", tmp_path / "out" / "labels.jsonl"
    if isinstance(records, bytes):
        replies.write_bytes(records)
    else:
        replies.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main([*arguments, f"replies={replies}", f"out={out}"]) == 0
    assert [path.name for path in out.parent.iterdir()] == ["labels.jsonl"]
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.parametrize(
    ("vocabulary", "yes", "no"),
    [
        ("met", '"met"', '"not_met"'),
        ("present", '"PRESENT"', '"NOT PRESENT"'),
        ("bool", "true", "false"),
        ("yes_no", '"yes"', '"no"'),
    ],
)
def test_rubric_replies_by_hand(tmp_path: Path, vocabulary: str, yes: str, no: str) -> None:
    texts = {
        "all": f'{{"1": {yes}, "2": {yes}, "3": {yes}}}',  # (5 + 3 - 4) / 8
        "good": f'Well:\n```json\n{{"1": {yes}, "2": {no}, "3": {no}}}\n```',  # 5 / 8
        "bad": f'{{"1": {no}, "2": {no}, "3": {yes}}}',  # -4 / 8, clipped
        "partial": f'{{"3": {no}, "1": {yes}}}',
        "cut": f'{{"1": {yes}, "2": {no[:-1]}',
        "prose": "All of them are met, PRESENT, true and yes.",
        "empty": "",
    }
    records = [{"id": name, "text": text, "criteria": THREE} for name, text in texts.items()]
    command = ["grading=rubric_batch", f"vocabulary={vocabulary}"]
    lines = {line["id"]: line for line in audited(tmp_path, records, *command)}
    assert list(lines) == list(texts)
    assert all(line.keys() == {"id", "outcome", "labels", "score"} for line in lines.values())
    assert {name: line["score"] for name, line in lines.items()} == {
        "all": 0.5, "good": 0.625, "bad": 0.0, "partial": None, "cut": None, "prose": None,
        "empty": None,
    }  # fmt: skip
    assert lines["partial"] == {
        "id": "partial", "outcome": "unparsed", "labels": ["met", "unknown", "not_met"],
        "score": None,
    }  # fmt: skip
    assert lines["cut"]["labels"] == ["met", "unknown", "unknown"]
    assert lines["prose"]["labels"] == ["unknown"] * 3
    assert (lines["prose"]["outcome"], lines["empty"]["outcome"]) == ("unparsed", "empty")
    unclipped = audited(tmp_path, records, *command, "clip=none")
    assert unclipped[2]["score"] == -0.5
    over_known = audited(tmp_path, records, *command, "partial=renormalise")
    assert [line["score"] for line in over_known[3:6]] == [1.0, 1.0, None]


def test_without_criteria_there_are_as_many_as_the_verdict_says(tmp_path: Path) -> None:
    texts = [
        '{"1": "met", "3": "not_met", "2": "met"}', '["met", "not_met"]',
        '{"1": "met", "3": "met"}', "no verdict", "2: met", '{"1": "met", "2": "not',
        '{"1": "perhaps", "2": "perhaps"}', '10:30 is when they met.\n{"1": "met"}',
    ]  # fmt: skip
    records = [{"id": place, "text": text} for place, text in enumerate(texts)]
    lines = audited(tmp_path, records, "grading=rubric_batch", "vocabulary=met")
    assert [line["labels"] for line in lines] == [
        ["met", "met", "not_met"], ["met", "not_met"], ["met", "unknown", "met"], [],
        ["unknown", "met"], ["met", "unknown"], ["unknown", "unknown"], ["met"],
    ]  # fmt: skip
    assert [line["score"] for line in lines] == [
        pytest.approx(2 / 3), 0.5, None, None, None, None, None, 1.0
    ]  # fmt: skip


def test_rubrics_that_make_no_score(tmp_path: Path) -> None:
    """A verdict that was cut has none where nobody says how long it should be."""
    cut, whole = '{"1": "met", "2": "met", ', '{"1": "met"}'
    records: list[dict[str, Any]] = [
        {"id": 1, "text": cut},
        {"id": 2, "text": cut, "criteria": [{}, {}]},
        {"id": 3, "text": whole, "criteria": [{"points": -2}]},
        {"id": 4, "text": whole, "criteria": []},
    ]
    lines = audited(tmp_path, records, "grading=rubric_batch")
    assert [(line["outcome"], line["labels"], line["score"]) for line in lines] == [
        ("unparsed", ["met", "met"], None), ("scored", ["met", "met"], 1.0),
        ("unparsed", ["met"], None), ("unparsed", [], None),
    ]  # fmt: skip


def test_brackets_of_verif(tmp_path: Path) -> None:
    texts = ["[[1]]", "因为 [[0]]", "[[7]]", "[[1]] no [[0]]", "1", "", "<think>[[1]]"]
    records = [{"id": place, "text": text} for place, text in enumerate(texts)]
    lines = audited(tmp_path, records, "grading=verif", "vocabulary=bracket")
    assert [line["score"] for line in lines] == [1.0, 0.0, None, None, None, None, None]
    assert [line["labels"] for line in lines[:3]] == [["met"], ["not_met"], ["unknown"]]
    assert lines[2]["outcome"] == "unparsed" and lines[6]["outcome"] == "empty"
    assert audited(tmp_path, records, "grading=verif") == lines


def test_what_the_endpoint_said_of_the_end_counts(tmp_path: Path) -> None:
    record = {"id": 1, "text": "[[80]]"}
    records = [record, record | {"finish_reason": "length"}, record | {"text": None}]
    lines = audited(tmp_path, records, "grading=likert")
    assert [line["outcome"] for line in lines] == ["scored", "truncated", "empty"]
    assert lines[0]["score"] == 0.8


def test_it_is_the_code_that_reads_live_replies(tmp_path, monkeypatch) -> None:
    from study.verdict import Parsed

    def refused(self: Any, reply: Any, ask: Any) -> Parsed:
        from study.verdict import Outcome

        return Parsed(Outcome.refused, ("unknown",) * len(ask.criteria), reason="a new parser")

    monkeypatch.setattr(GRADINGS["rubric_batch"], "parse", refused)
    lines = audited(tmp_path, [{"id": 1, "text": '{"1": "met"}'}], "grading=rubric_batch")
    assert lines[0]["outcome"] == "refused"


GOOD = b'{"id": 1, "text": "[[1]]"}'


@pytest.mark.parametrize(
    ("data", "sound", "lost"),
    [
        (GOOD + b"\n" + GOOD + b"\n", 2, 0),
        (GOOD + b"\n\n \n" + GOOD, 2, 0),
        (b"\xef\xbb\xbf" + GOOD + b"\r\n" + GOOD + b"\r\n", 2, 0),
        (GOOD + b"\n" + GOOD[:-5], 1, 1),
        # a block of NULs that swallowed a record, whole or with a rest of it left
        (b"\0" * 4096 + GOOD + b"\n" + GOOD, 2, 1),
        (b"\0" * 4096 + GOOD[9:] + b"\n" + GOOD, 1, 1),
        (GOOD + b"\n" + b"\0" * 100, 1, 1),
        (GOOD[:9] + b"\0\0" + GOOD[12:] + b"\n" + GOOD, 1, 2),
        (GOOD[:9] + b"\0\0" + GOOD + b"\n", 1, 1),
        (GOOD + b"\n\xff\xfe{}\n" + GOOD, 2, 1),
        (b'{"id": 1}\n{"text": "x"}\n[1]\nnull\n"x"\n3\n' + GOOD, 1, 6),
        (b'{"id": 1, "text": 5}\n' + GOOD, 1, 1),
        (b'{"id": 1, "text": "", "criteria": 5}\n' + GOOD, 1, 1),
        (b'{"id": 1, "text": "", "criteria": [{"points": "2"}]}\n' + GOOD, 1, 1),
        (b'{"id": 1, "text": "", "criteria": [{"points": NaN}]}\n' + GOOD, 1, 1),
        (b'{"id": 1, "text": "", "criteria": [{"points": 1' + b"0" * 400 + b"}]}\n" + GOOD, 1, 1),
        (b"[" * 100_000 + b"\n" + GOOD, 1, 1),
        (b"", 0, 0),
    ],
)
def test_damage_costs_what_it_hit(data: bytes, sound: int, lost: int) -> None:
    records, missing = read_records(data)
    assert (len(records), missing) == (sound, lost)


@pytest.mark.parametrize(
    "change", [{"text": ["x"]}, {"reasoning": {}}, {"criteria": [{"points": ["2"]}]}]
)
def test_a_value_of_another_form_is_lost_without_a_sentence_on_it(change, monkeypatch) -> None:
    def shown(value: Any) -> str:
        raise AssertionError(f"{value!r} was written down for nobody")

    monkeypatch.setattr("study.config.bounds.shown", shown)
    records, lost = read_records(json.dumps({"id": 1, "text": "[[1]]"} | change).encode())
    assert (records, lost) == ([], 1)


@given(st.lists(st.integers(0, 9), max_size=6), st.data())
def test_a_cut_anywhere_loses_at_most_one_record(ids: list[int], data: Any) -> None:
    whole = b"".join(json.dumps({"id": item, "text": "x"}).encode() + b"\n" for item in ids)
    cut = data.draw(st.integers(0, len(whole)))
    records, lost = read_records(whole[:cut])
    assert [record.id for record in records] == ids[: len(records)]
    ended = whole[:cut].count(b"\n")
    assert len(records) >= ended and len(records) + lost <= ended + 1


def test_the_count_of_lost_records_is_printed(tmp_path, capsys) -> None:
    audited(tmp_path, b"\0" * 9 + GOOD + b"\n" + GOOD + b"\n" + GOOD[:-3], "grading=verif")
    output = capsys.readouterr().out
    assert "2 replies read" in output and "2 scored" in output and "2 lost records" in output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "grading="),
        (["grading=rubric_batch"], "replies="),
        (["grading=rubric_batch", "replies={file}"], "out="),
        (["grading=soft_choice", "replies={file}", "out={out}"], "soft_choice"),
        (["grading=nope", "replies={file}", "out={out}"], "nope"),
        (["grading=verif", "vocabulary=met", "replies={file}", "out={out}"], "Legal are bracket"),
        (["grading=rubric_batch", "vocabulary=bracket", "replies={file}", "out={out}"], "yes_no"),
        (["grading=rubric_batch", "clip=two", "replies={file}", "out={out}"], "zero, none"),
        (["grading=verif", "clip=zero", "replies={file}", "out={out}"], "clip=zero has no meaning"),
        (["grading=verif", "replies={file}.no", "out={out}"], "is not a file"),
        (["grading=verif", "replies={file}", "out={file}"], "the file of the replies"),
        (["grading=verif", "replies={file}", "out={folder}"], "a folder"),
        (["grading=verif", "replies={file}", "out={file}/x"], "cannot be written"),
        (["grading=verif", "replies={file}", "out={out}", "speed=9"], "speed=9"),
        (["grading=verif", "replies={file}", "out="], "out="),
        (["verif"], "'verif'"),
    ],
)
def test_bad_arguments_are_one_paragraph_and_exit_2(arguments, named, tmp_path, capsys) -> None:
    file, out = tmp_path / "r.jsonl", tmp_path / "o.jsonl"
    file.write_bytes(GOOD)
    assert main([text.format(file=file, out=out, folder=tmp_path) for text in arguments]) == 2
    errors = capsys.readouterr().err
    assert named in errors and errors.count("\n") == 1
    assert "judge.grading" not in errors and "Traceback" not in errors
    assert not out.exists() and file.read_bytes() == GOOD


def test_the_module_runs_without_heavy_imports(tmp_path: Path) -> None:
    file, out = tmp_path / "r.jsonl", tmp_path / "o.jsonl"
    file.write_bytes(GOOD)
    program = (
        "import sys; from judges.parse import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'aiohttp', 'starlette', 'hydra', 'pandas'} & set(sys.modules);"
        "sys.exit(code or len(heavy))"
    )
    command = [sys.executable, "-c", program, "grading=verif", f"replies={file}", f"out={out}"]
    assert subprocess.run(command, check=False, timeout=GENEROUS_S).returncode == 0
    assert json.loads(out.read_text())["score"] == 1.0
