"""IFEval by hand-made responses with known results, and its files of responses."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.evaluate import main
from experiments.evaluation import ifeval
from experiments.evaluation.ifeval import Prompt, check, proportion, score
from study.errors import UserError
from tests.commands import run
from tests.experiments.conftest import PROMPTS
from tests.recording import compare, of_document
from tests.study.tasks.datasets.roots import lines

SHARED = ifeval.data_root()
pytestmark = pytest.mark.skipif(SHARED is None, reason="needs the shared data (IFEval, punkt)")

ANSWERS = {
    "Say hello without commas.": "Hello there",
    "Quote three words.": '"one two"',
    "Give me JSON.": 'Sure:\n{"a": 1}',
    "Draw a letter.": "The quick brown fox jumps over the lazy dog",
}
"""Strict: 1 of 1, 1 of 2, 0 of 1, 1 of 1 (a pangram has any letter). Loose: the JSON too."""


@pytest.fixture(scope="session")
def checkers():
    return ifeval.load_checkers(SHARED)


def write(path: Path, answers: dict[str, str | None], **fields: str) -> Path:
    rows = [{"prompt": prompt, "response": text, **fields} for prompt, text in answers.items()]
    return lines(path, rows)


def evaluate(root: Path, responses: Path, out: Path, *more: str) -> int:
    return main(["ifeval", f"data.root={root}", f"responses={responses}", f"out={out}", *more])


def one(instruction: str, **kwargs: object) -> Prompt:
    return Prompt(7, "Do it.", (instruction,), (kwargs,))


FEW_SENTENCES = one("length_constraints:number_sentences", relation="less than", num_sentences=3)


@pytest.mark.parametrize(
    ("prompt", "response", "strict", "loose"),
    [
        (one("punctuation:no_comma"), "Hello there", True, True),
        (one("punctuation:no_comma"), "Hello, there", False, False),
        (one("punctuation:no_comma"), "Sure, here:\nHello", False, True),
        (one("punctuation:no_comma"), "Hello\nBye, then", False, True),
        (one("punctuation:no_comma"), "Sure, so\nHello\nBye, then", False, True),
        (one("startend:quotation"), '"hi"', True, True),
        (one("startend:quotation"), '*"hi"*', False, True),
        (one("detectable_format:json_format"), '{"a": [1]}', True, True),
        (one("detectable_format:json_format"), 'Here:\n{"a": [1]}', False, True),
        (one("detectable_format:title"), "<<Song>>\nla", True, True),
        (one("detectable_format:title"), "Song", False, False),
        (one("change_case:english_lowercase"), "this is all in lower case", True, True),
        (one("change_case:english_lowercase"), "This is not", False, False),
        (one("language:response_language", language="de"), "Das ist ein Haus", True, True),
        (one("language:response_language", language="de"), "This is a house", False, False),
        # without punkt's abbreviations this would be three sentences
        (FEW_SENTENCES, "Dr. Smith came in. He left again.", True, True),
        (one("punctuation:no_comma"), " \n ", False, False),
        (one("startend:end_checker", end_phrase="Bye", other=None), "So\nBye", True, True),
    ],
)
def test_known_responses(checkers, prompt, response, strict, loose):
    assert check(prompt, response, checkers) == ifeval.Checked((strict,), (loose,))


def test_loose_texts_are_the_eight_of_google():
    from if_verifiable.common import get_loose_transformations

    text = "first *a*\nmiddle *b*\nlast *c*"
    texts = get_loose_transformations(text)
    cut = {text, "middle *b*\nlast *c*", "first *a*\nmiddle *b*", "middle *b*"}
    assert set(texts) == cut | {one.replace("*", "") for one in cut}
    assert texts[0] == text


TEXTS = st.lists(
    st.sampled_from(["*hi*", '"', "one, two", "\n", "\n\n", "word", "<<T>>", "* a", "P.S. x"])
).map(" ".join)


@settings(deadline=None, max_examples=60)
@given(text=TEXTS, index=st.integers(0, 540), seed=st.integers(0, 9))
def test_loose_passes_whatever_strict_passes(checkers, text, index, seed):
    prompt = ifeval.load_prompts(SHARED)[index]
    found = check(prompt, text, checkers, seed)
    assert all(b or not a for a, b in zip(found.strict, found.loose, strict=True))
    assert found == check(prompt, text, checkers, seed)


def test_only_two_rows_draw_and_their_draw_is_the_seed_alone(checkers):
    prompts = ifeval.load_prompts(SHARED)
    assert (len(prompts), sum(len(prompt.instructions) for prompt in prompts)) == (541, 834)
    whole = score(prompts, {prompt.key: "a b c d e" for prompt in prompts}, checkers)
    assert whole["drawn"] == [1122, 1129]
    (name, kwargs), *_ = PROMPTS["Draw a letter."]
    kept, again = (
        [check(one(name, **kwargs), "abcdefghijklm", checkers, seed) for seed in range(30)]
        for _ in range(2)
    )
    assert kept == again
    assert {found.strict for found in kept} == {(True,), (False,)}  # of half of the alphabet


def test_wilson_intervals_against_statsmodels_and_clusters():
    from statsmodels.stats.proportion import proportion_confint

    values = [True] * 7 + [False] * 4
    low, high = proportion_confint(7 / 11 * 10, 10, method="wilson")
    assert proportion([(value,) for value in values]) == pytest.approx((7 / 11, low, high))
    # five copies of a value are one value
    assert proportion([(value,) * 5 for value in values]) == pytest.approx((7 / 11, low, high))
    # clusters that are all alike are no more than the values themselves
    low, high = proportion_confint(6, 12, method="wilson")
    assert proportion([(True, False)] * 6) == pytest.approx((0.5, low, high))
    share, low, high = proportion([(True, True)] * 10)
    assert (share, high) == (1.0, pytest.approx(1.0))
    assert low == pytest.approx(10 / (10 + 1.959963984540054**2))
    with pytest.raises(ValueError, match="nothing"):
        proportion([])


def test_a_file_of_responses_by_hand(root, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert evaluate(root, write(tmp_path / "r.jsonl", ANSWERS), out) == 0
    found = json.loads(out.read_text())
    assert (found["prompt_strict"], found["instruction_strict"]) == (2 / 4, 3 / 5)
    assert (found["prompt_loose"], found["instruction_loose"]) == (3 / 4, 4 / 5)
    assert (found["n_prompts"], found["n_instructions"], found["drawn"]) == (4, 5, [3])
    assert (found["n_empty"], found["n_missing"], found["n_truncated_thinking"]) == (0, 0, 0)
    assert found["per_type"]["detectable_format:json_format"] == {"n": 1, "strict": 0, "loose": 1}
    assert sum(entry["n"] for entry in found["per_type"].values()) == 5
    for measure in ifeval.MEASURES:
        low, high = found["intervals"][measure]
        assert 0 <= low < found[measure] < high <= 1
    shown = capsys.readouterr().out
    assert "prompt_strict      0.5000" in shown
    compare("evaluate-ifeval", [*shown.splitlines(), *of_document(found)], tmp_path)


def test_thinking_is_no_answer_and_nothing_is_a_failed_one(root, tmp_path):
    answers = {
        "Say hello without commas.": "<think>well, well</think>\nHello there",
        "Quote three words.": "",
        "Give me JSON.": "<think>{}",
        "Draw a letter.": ANSWERS["Draw a letter."],
    }
    assert evaluate(root, write(tmp_path / "r.jsonl", answers), tmp_path / "o.json") == 0
    found = json.loads((tmp_path / "o.json").read_text())
    assert (found["n_empty"], found["n_truncated_thinking"], found["n_prompts"]) == (1, 1, 4)
    assert found["instruction_strict"] == found["instruction_loose"] == 2 / 5


def test_a_part_of_the_prompts_needs_permission(root, tmp_path, capsys):
    answers: dict[str, str | None] = dict(list(ANSWERS.items())[:2])
    answers["Give me JSON."] = None  # could not be generated: missing, not failed
    responses, out = write(tmp_path / "r.jsonl", answers), tmp_path / "o.json"
    assert evaluate(root, responses, out) == 2
    said = capsys.readouterr().err
    assert "2 of 4" in said and "allow_missing=true" in said and "Answers of null: 1." in said
    assert not out.exists()
    assert evaluate(root, responses, out, "allow_missing=true") == 0
    found = json.loads(out.read_text())
    assert (found["n_prompts"], found["n_missing"], found["n_instructions"]) == (2, 2, 3)
    assert found["n_failed_generation"] == 1
    assert found["instruction_strict"] == 2 / 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "Give me JSON.", "response": "{}"}', "line 5 answers the prompt of line 3"),
        ('{"prompt": "Give me XML.", "response": "{}"}', "line 5: 'Give me XML.' is not a prompt"),
        ('{"prompt": "Give me JSON."}', "line 5 lacks prompt or response"),
        ('{"prompt": "Give me JSON.", "response": 1}', "line 5: prompt and response are texts"),
        ('{"prompt": ', "line 5 is not JSON"),
        ("[]", "line 5 lacks"),
    ],
)
def test_bad_lines_are_named(root, tmp_path, capsys, line, said):
    responses = write(tmp_path / "r.jsonl", ANSWERS)
    responses.write_text(responses.read_text() + line)
    assert evaluate(root, responses, tmp_path / "o.json", "allow_missing=true") == 2
    error = capsys.readouterr().err
    assert said in error and str(responses) in error


def test_blanks_around_a_prompt_are_no_difference(root, tmp_path):
    """Nor does a line separator inside a response end a line of the file."""
    answers = {f" {prompt}\u2028 ": f"{text}\u2028" for prompt, text in ANSWERS.items()}
    out = tmp_path / "o.json"
    assert evaluate(root, write(tmp_path / "r.jsonl", answers), out) == 0
    assert json.loads(out.read_text())["n_missing"] == 0


def test_results_of_another_model_stay(root, tmp_path, capsys):
    out = tmp_path / "o.json"
    first = write(tmp_path / "a.jsonl", ANSWERS, model="a")
    assert evaluate(root, first, out) == 0
    before = out.read_text()
    assert evaluate(root, write(tmp_path / "b.jsonl", ANSWERS, model="b"), out) == 2
    assert "holds the result of a" in capsys.readouterr().err
    assert out.read_text() == before
    assert evaluate(root, first, out) == 0 and out.read_text() == before
    mixed = tmp_path / "c.jsonl"
    mixed.write_text(first.read_text() + (tmp_path / "b.jsonl").read_text())
    assert evaluate(root, mixed, tmp_path / "c.json") == 2
    assert "mixes the responses of 2 models: a, b" in capsys.readouterr().err


def test_results_without_a_model_are_kept_beside_the_new(root, tmp_path):
    out = tmp_path / "o.json"
    assert evaluate(root, write(tmp_path / "a.jsonl", ANSWERS), out) == 0
    before = json.loads(out.read_text())
    other = write(tmp_path / "b.jsonl", ANSWERS | {"Quote three words.": "no"})
    assert evaluate(root, other, out) == 0
    kept = tmp_path / f"o.{before['responses']['sha256'][:8]}.json"
    assert json.loads(kept.read_text()) == before
    assert json.loads(out.read_text())["instruction_strict"] == 2 / 5
    (tmp_path / "notes.json").write_text('{"mine": 1}')
    assert evaluate(root, other, tmp_path / "notes.json") == 2


def test_a_file_of_responses_that_is_not_there_is_said(root, tmp_path, capsys):
    assert evaluate(root, Path("/no/file"), tmp_path / "o.json") == 2
    assert "no file of responses at /no/file" in capsys.readouterr().err


def test_without_data_the_hub_is_asked_and_its_silence_explained(monkeypatch):
    def offline(*_: object, **__: object) -> str:
        raise OSError("no route")

    monkeypatch.setattr(ifeval, "hf_hub_download", offline)
    with pytest.raises(UserError, match=r"no route Type data\.root=FOLDER"):
        ifeval.load_prompts(None)


@pytest.mark.long
def test_all_541_from_the_command_line_in_under_ten_seconds(tmp_path):
    prompts = ifeval.load_prompts(SHARED)
    # the prompts of the next four rows: 400 words of prose, many kinds of mark
    answers = {
        prompt.text: "\n\n".join(other.text for other in (prompts + prompts)[i + 1 : i + 9])
        for i, prompt in enumerate(prompts)
    }
    write(tmp_path / "r.jsonl", answers)
    places = [f"responses={tmp_path / 'r.jsonl'}", f"out={tmp_path / 'o.json'}"]
    variables = os.environ | {"PYTHONWARNINGS": "error"}
    done = run("experiments.evaluate", "ifeval", *places, real=True, env=variables)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "o.json").read_text())
    assert (found["n_prompts"], found["n_instructions"]) == (541, 834)
    assert len(found["per_type"]) == 25
    assert 0 < found["prompt_strict"] <= found["prompt_loose"] < 1
