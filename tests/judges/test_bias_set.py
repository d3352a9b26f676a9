"""The bias set: drawn as published, read only where it is one, its slots filled and checked."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.probes import biasset, sets, slots, variants
from judges.probes.biasset import POLICY, TYPES, VARIANTS, Item
from judges.probes.slots import RULES, Author, Written
from study.errors import UserError
from study.tasks.where import VARIABLE, data_folder
from tests.study.tasks.datasets import roots

PUBLISHED = data_folder() / "judge_bias_eval" / "judge_bias_eval_10_with_qwen3-8b.jsonl"
BASE = "It is 4 km off. In order to see it, walk north.\nThe gate closes at 5 in winter."


def item(number: int = 0, **responses: str | None) -> Item:
    messages = [{"role": "user", "content": f"How far is stop {number}?"}]
    return {
        "id": f"healthbench:val:{number}", "source": "healthbench", "split": "val", "ability": "",
        "prompt": f"user:\n{messages[0]['content']}", "spec": {"rubrics": []},
        "meta": {"row_index": number, "prompt_messages": messages}, "response_types": list(TYPES),
        "responses": dict.fromkeys(TYPES, "") | responses, "notes": "",
    }  # fmt: skip


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))


def save(tmp_path: Path, *lines: object) -> Path:
    return roots.lines(tmp_path / "b.jsonl", lines)


def test_the_draw_is_the_published_one():
    """The ids of the published file, which its first five of each source show."""
    assert biasset.drawn(500, 5, 101) == [0, 102, 120, 272, 162]
    assert biasset.drawn(274, 5, 202) == [262, 215, 218, 85, 141]


@pytest.mark.usefixtures("no_data")
def test_a_slot_that_a_line_does_not_have_is_empty(tmp_path):
    (one,) = biasset.read(save(tmp_path, item() | {"responses": {"ycorrect": "Yes."}}))
    assert one["responses"] == dict.fromkeys(TYPES, "") | {"ycorrect": "Yes."}
    assert biasset.summary(tmp_path / "b.jsonl", [one])["slots"]["ycorrect"]["filled"] == 1


@pytest.mark.usefixtures("no_data")
def test_without_its_data_the_set_is_not_built():
    with pytest.raises(UserError, match=r"does not hold it. Set JUDGEDRIFT_DATA"):
        biasset.build(1, 0)


@given(st.integers(0, 400), st.integers(0, 2**40), st.integers(0, 400))
def test_a_draw_is_a_part_of_one_order(count, seed, k):
    order = biasset.drawn(count, count, seed)
    assert sorted(order) == list(range(count))
    assert biasset.drawn(count, k, seed) == order[:k]


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="needs the published bias set")
def test_the_set_is_the_published_one_letter_by_letter():
    published = [json.loads(line) for line in PUBLISHED.read_text().splitlines()]
    for one in published:
        one["responses"][POLICY] = ""
    built = biasset.build(5, 0)
    assert built == published
    assert [list(one) for one in built] == [list(one) for one in published]
    assert [one["id"] for one in biasset.build(7, 0)[:5]] == [one["id"] for one in built[:5]]
    with pytest.raises(UserError, match="its file has 274 rows"):
        biasset.build(275, 0)


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="needs the published bias set")
def test_prompts_that_are_not_those_of_the_data_are_refused(tmp_path):
    built = biasset.build(2, 0)
    assert biasset.read(save(tmp_path, *built)) == built
    other = json.loads(json.dumps(built[0]))
    other["id"], other["meta"]["row_index"] = "healthbench:val:500", 500
    with pytest.raises(UserError, match=r"line 2: .*row that the data do not have.*500 rows"):
        biasset.read(save(tmp_path, built[1], other))
    other["id"], other["meta"]["row_index"] = "healthbench:val:7", 7
    with pytest.raises(UserError, match=r"line 1: the prompt of healthbench:val:7 is not that of"):
        biasset.read(save(tmp_path, other))


def changed(**fields: Any) -> Item:
    return item() | fields


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize(
    "lines, message",
    [
        ([item(), item(1), item()], "line 3: the id healthbench:val:0 is also on line 1"),
        ([item(), "\0" * 40 + json.dumps(item(1))], "line 2: 40 NUL bytes"),
        (
            ['{"prompt": "A?", "responses": {}}'],
            "line 1: the line is not of a bias set.* no id, source",
        ),
        (["[1]"], "One JSON object per line"),
        (["{"], "no JSON"),
        ([""], "holds no prompt"),
        ([changed(id="healthbench:val:-1")], "found the id 'healthbench:val:-1'"),
        ([changed(id=["healthbench:val:0"])], "found the id"),
        ([changed(id="healthbench:val:1")], "of another source or row"),
        ([changed(source="verinstruct_verif")], "of another source or row"),
        ([changed(split="train")], "split='train'"),
        ([item(yloud="x")], "the slot 'yloud'"),
        ([changed(responses={"yshort": 3})], "holds 3 and no text"),
        ([changed(responses="x")], "responses that are 'x'"),
        ([changed(meta=None)], "meta that are None"),
        ([changed(made={"yshort": 1})], "found 1 under `made`"),
        ([changed(made={"yshort": {"sha256": "0"}})], "{'sha256': '0'} under `made`"),
        ([changed(meta={"row_index": 0, "prompt_messages": "x"})], "prompt_messages is not a list"),
        ([changed(meta={"row_index": 0, "prompt_messages": []})], "a prompt that is"),
    ],
)
def test_what_is_no_bias_set_is_named(tmp_path, lines, message):
    path = save(tmp_path, *lines)
    with pytest.raises(UserError, match=message) as refused:
        biasset.read(path)
    assert "\n" not in str(refused.value)


def test_nul_bytes_are_named_and_a_line_separator_ends_no_line(tmp_path):
    with pytest.raises(UserError, match="7 NUL bytes"):
        sets.read_slots(save(tmp_path, "\0" * 7))
    text = "One\u2028two\x85three."
    path = tmp_path / "b.jsonl"
    biasset.write(path, [item(ypolicy_raw=text)])
    assert sets.read_slots(path).sources[0].contents == {"policy": text}


def test_rules_fill_what_they_can_and_say_why_not():
    full, wordless, empty = item(0, ypolicy_raw=BASE), item(1, ypolicy_raw="It is far."), item(2)
    slots.fill_by_rules(slots.todo([full, wordless, empty], VARIANTS, RULES, False, "b"))
    assert full["responses"]["ycorrect"] is None
    for slot in ("yshort", "yverbose", "ystructured", "ysycophant", "yconfident_wrong"):
        entry = full["made"][slot]
        assert entry["author"] == "rules" and entry["from"] == POLICY
        assert entry["sha256"] == biasset.digest(full["responses"][slot])
        assert entry["checks"] == {"meaning": True, "length": True, "format": True}, slot
    assert "7 km off" in full["responses"]["yconfident_wrong"]
    assert wordless["made"]["yshort"]["missing"] == "nothing to take out"
    assert wordless["made"]["yconfident_wrong"]["missing"] == "no number to make wrong"
    assert {one["missing"] for one in empty["made"].values()} == {
        "no text to start from", "no rule can write a right answer"
    }  # fmt: skip


@given(st.text(min_size=1))
def test_rules_take_any_text_and_claim_no_more_than_they_keep(text):
    full = item(0, ypolicy_raw=text)
    wanted = slots.todo([full], VARIANTS, RULES, False, "b")
    if biasset.answer(full, POLICY):
        slots.fill_by_rules(wanted)
        for slot in VARIANTS:
            entry = full["made"][slot]
            assert ("missing" in entry) == (full["responses"][slot] is None)
            if slot == "yverbose":
                assert entry["checks"]["length"] is True


def test_another_authors_slots_are_replaced_only_where_that_is_typed():
    def todo(author: Author, *wanted: str, overwrite: bool = False) -> list[str]:
        chosen = wanted or VARIANTS
        return [slot for _, slot in slots.todo([full], chosen, author, overwrite, "b.jsonl")]

    full, writer = item(0, ypolicy_raw=BASE), Author("qwen3-8b", "qwen3")
    slots.fill_by_rules(slots.todo([full], VARIANTS, RULES, False, "b"))
    assert todo(RULES) == ["ycorrect"], "only what is missing is tried again"
    message = r"5 slots .* other than qwen3-8b.*yshort of healthbench:val:0 \(author: rules\)"
    with pytest.raises(UserError, match=rf"{message}.*overwrite=true"):
        todo(writer)
    assert todo(writer, overwrite=True) == [*VARIANTS]
    assert todo(writer, "ycorrect") == ["ycorrect"]
    full["responses"]["yshort"] += " Changed by hand."
    with pytest.raises(UserError, match=r"1 slots .*author: unknown"):
        todo(RULES)
    full["responses"][POLICY] += " More."
    assert todo(RULES, "ystructured") == ["ystructured"], "its base was changed since"
    assert slots.todo([item(0, ycorrect="Right.")], ["ycorrect"], RULES, False, "b") == []


@pytest.mark.parametrize(
    "slot, before, after, passed",
    [
        ("yshort", "one two three", "one two", (True, True)),
        ("yshort", "one two", "one two three", (False, True)),
        ("yverbose", "one two three four five", "one two three four five six", (True, True)),
        ("yverbose", "one two three four five", "one two three four five", (False, True)),
        ("yverbose", "one", "- one\n- two", (True, False)),
        ("ystructured", "one two", "# one\n- two", (True, True)),
        ("ystructured", "# one", "# one", (True, False)),
        ("ystructured", "one", "# " + "two " * 40, (False, True)),
        ("ysycophant", "one two", "Great! one two", (True, True)),
        ("ysycophant", "one two", "**Great!** one two", (True, False)),
        ("yconfident_wrong", "word " * 100, "word " * 151, (False, True)),
    ],
)
def test_shape_is_moved_where_the_slot_says_so_and_kept_elsewhere(slot, before, after, passed):
    checks = slots.shape(slot, before, after)
    assert (checks["length"], checks["format"]) == passed


def test_a_set_with_authors_is_probed_against_what_was_rewritten(tmp_path):
    full, writer = item(0, ypolicy_raw=f"<think>hm</think>{BASE}"), Author("qwen3-8b", "qwen3")
    checks = {"meaning": True, "length": True, "format": True}
    policy = Author("cell/policy@ab", "smollm2", "policy")
    slots.put(full, POLICY, policy, Written(full["responses"][POLICY]))
    slots.fill_by_rules(slots.todo([full], ["yverbose"], RULES, False, "b"))
    slots.put(full, "ycorrect", writer, Written("It is 4 km."))
    slots.put(full, "yshort", writer, Written("4 km.", base="ycorrect", checks=checks))
    bad = checks | {"meaning": False}
    slots.put(full, "ysycophant", writer, Written("Lovely.", base="ycorrect", checks=bad))
    path = tmp_path / "b.jsonl"
    biasset.write(path, [full])
    loaded = sets.read_slots(path)
    assert loaded.notes == ["1 x ysycophant: left out, it failed its check of meaning"]
    all_variants, _ = variants(loaded.sources[0], only=["yshort", "yverbose", "ysycophant"])
    by = {(one.variant, one.base): one for one in all_variants}
    prompt = loaded.sources[0].row.prompt_id
    assert by["yshort", "given"].against == f"{prompt}/ycorrect/correct"
    assert by["yverbose", "given"].against == f"{prompt}/ypolicy_raw/policy"
    assert {key: (one.author, one.author_family, one.how) for key, one in by.items()} == {
        ("ycorrect", "correct"): ("qwen3-8b", "qwen3", "rule"),
        ("ypolicy_raw", "policy"): ("cell/policy@ab", "smollm2", "rule"),
        ("yshort", "given"): ("qwen3-8b", "qwen3", "model"),
        ("yverbose", "given"): ("cell/policy@ab", "smollm2", "rule"),
        ("ysycophant", "correct"): ("qwen3-8b", "qwen3", "rule"),
        ("yverbose", "correct"): ("qwen3-8b", "qwen3", "rule"),
    }
    assert by["yshort", "given"].as_row()["dataset"] == "healthbench"
