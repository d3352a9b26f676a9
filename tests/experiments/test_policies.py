"""The tiny policy: exact tokenizer, cached warm-up that survives damage, errors a user can read."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from experiments.launch.pool import start_server
from experiments.policies import load as policies
from experiments.policies import tiny
from experiments.policies.checkpoints import COMPLETE
from study.config.schema import Lora, Policy, Task, Warmup
from study.errors import UserError
from study.tasks import instruct_mini, lessons, teacher
from tests.conftest import ROOT

SMALL = {"hidden_size": 32, "layers": 1, "heads": 2, "intermediate_size": 32}
TINY = Policy(path="tiny", architecture=SMALL, warmup=Warmup(steps=2, batch=4))
ROWS = instruct_mini.TASK.rows(Task(train_rows=200), "train")
LESSONS = instruct_mini.TASK.lessons(Task())
SHIPPED = yaml.safe_load((ROOT / "conf/policy/tiny.yaml").read_text())["warmup"]
SHORT = {"steps": 150, "batch": 16}
"""A third of the shipped warm-up's lessons, after which truth is .41 instead of .45; with 100 such
steps it is .23."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on two busy cores make these small models ten times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tiny_tokenizer(teacher.lexicon())


def load(policy: Policy, cache: Path):
    return policies.load_policy(policy, Task(name="instruct-mini"), cache)


def weights(model) -> dict[str, list]:
    return {name: value.tolist() for name, value in model.state_dict().items()}


def folder_in(cache: Path) -> Path:
    """The folder of the one policy that a cache holds."""
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    return folder


@given(text=st.one_of(st.text(max_size=40), st.sampled_from(teacher.lexicon())))
@example(text="# Plan\n- red\n- **blue**\nGreat question! 😊")
def test_any_text_survives_the_tokenizer(tokenizer, text: str) -> None:
    ids = tokenizer(text, split_special_tokens=True)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids) == text


def test_every_word_of_the_task_is_one_token(tokenizer) -> None:
    draw = random.Random(0)
    for row in ROWS:
        for text in (row.prompt_text(), teacher.answer(row, draw)):
            tokens = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
            assert len(tokens) <= len(text.split()) + sum(text.count(c) for c in "#-,.!\n*"), text


def test_chat_template_ends_each_turn_and_opens_the_answer(tokenizer) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name red."}]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert text == "<|system|>Be brief.<|end|><|user|>Name red.<|end|><|assistant|>"
    ids = tokenizer(text)["input_ids"]
    assert ids.count(tokenizer.eos_token_id) == 2
    assert ids[-1] == tokenizer.convert_tokens_to_ids("<|assistant|>")
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Be brief.Name red."


def test_the_second_load_reads_the_cache(tmp_path: Path, monkeypatch) -> None:
    first, _ = load(TINY, tmp_path)
    monkeypatch.setattr(tiny, "_build_tiny", lambda *_: pytest.fail("built twice"))
    second, tokenizer = load(TINY, tmp_path)
    assert weights(first) == weights(second)
    assert second.config.eos_token_id == tokenizer.eos_token_id
    assert second.config.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.decode(tokenizer("# Plan\n- red")["input_ids"]) == "# Plan\n- red"


def test_training_a_loaded_policy_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    model, _ = load(TINY, tmp_path)
    before = weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    again, _ = load(TINY, tmp_path)
    assert weights(again) == before


def test_warm_up_is_seeded_and_leaves_the_callers_generator_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3).tolist()
    torch.manual_seed(7)
    first, _ = load(TINY, tmp_path / "a")
    assert torch.rand(3).tolist() == expected
    again, _ = load(TINY, tmp_path / "b")
    other, _ = load(replace(TINY, warmup=Warmup(steps=2, batch=4, seed=1)), tmp_path / "a")
    assert weights(again) == weights(first) != weights(other)


@pytest.mark.parametrize("damage", ["truncate", "remove", "no manifest", "empty folder"])
def test_a_damaged_cache_is_rebuilt(tmp_path: Path, damage: str) -> None:
    model, _ = load(TINY, tmp_path)
    sound = weights(model)  # before the damage: loaded weights may be mapped from the file
    folder = folder_in(tmp_path)
    file = folder / "model.safetensors"
    gone = {"remove": [file], "no manifest": [folder / COMPLETE], "empty folder": folder.iterdir()}
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-100])
    for path in gone.get(damage, ()):
        path.unlink()
    rebuilt, _ = load(TINY, tmp_path)
    assert weights(rebuilt) == sound
    assert folder_in(tmp_path) == folder


def _load_and_count(cache: str) -> int:
    """Load in a process of its own; how often this process built the policy."""
    torch.set_num_threads(1)
    built = []
    build = tiny._build_tiny
    tiny._build_tiny = lambda *args: (built.append(1), build(*args))[1]
    load(TINY, Path(cache))
    return len(built)


@pytest.mark.long
def test_of_processes_that_start_together_one_builds(tmp_path: Path) -> None:
    # not forked from here: two threads of torch hang in the fork of a process where torch has run
    with start_server().Pool(2) as pool:
        built = pool.map(_load_and_count, [str(tmp_path)] * 2)
    assert sum(built) == 1


def test_supervised_steps_lower_the_loss(tokenizer) -> None:
    losses = []
    for steps in (1, 60):
        torch.manual_seed(0)
        model = tiny._tiny_model(SMALL, tokenizer)
        losses.append(tiny.warm_up(model, tokenizer, LESSONS, Warmup(steps, 16, 1e-2)))
    assert losses[1] < losses[0] / 2


def test_the_loss_covers_the_answer_and_its_end_only(tokenizer) -> None:
    batch = tiny._batches(LESSONS, ROWS, tokenizer, 4, random.Random(0))[0]
    ids, labels = tiny._pad(batch, tokenizer.pad_token_id)
    for (lesson, start), row, label in zip(batch, ids.tolist(), labels.tolist(), strict=True):
        width = len(label) - len(lesson)
        assert row == lesson + [tokenizer.pad_token_id] * width
        assert label == [-100] * start + lesson[start:] + [-100] * width
        assert lesson[start - 1] == tokenizer.convert_tokens_to_ids("<|assistant|>")
        assert lesson[-1] == tokenizer.eos_token_id


def test_a_missing_model_is_a_user_error_that_says_what_to_type(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    name = "smollm2-135m-instruct"
    for policy, said in (
        (Policy(path=missing), r"no model at policy\.path.*config\.json"),
        (Policy(path=missing, name=name), rf"experiments\.models get {name}"),
        (Policy(path=missing, dtype="float31"), r"policy\.dtype=float31"),
        (Policy(path="tiny", architecture={"depth": 3}), r"architecture has depth; .*layers"),
    ):
        with pytest.raises(UserError, match=said):
            load(policy, tmp_path)


def own_task(path: Path, *references: str | None) -> Task:
    """A task of the user's own: one row for each reference."""
    rows = [{"prompt": f"Say number {n}.", "reference": r} for n, r in enumerate(references)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Task(name="prompts", path=str(path), options={"eval_share": 0.0})


def test_a_task_without_lessons_is_refused_with_what_to_type(tmp_path: Path) -> None:
    task = own_task(tmp_path / "bare.jsonl", None, " ")
    with pytest.raises(UserError, match=r'bare.jsonl has a reference.*\{"prompt".*instruct-mini'):
        policies.load_policy(TINY, task, tmp_path)
    with pytest.raises(UserError, match="instruct-mini"):
        policies.check_policy(TINY, task)


def test_tasks_with_other_lessons_have_policies_of_their_own(tmp_path: Path) -> None:
    first = own_task(tmp_path / "first.jsonl", "one", "two")
    moved = own_task(tmp_path / "moved.jsonl", "one", "two")
    other = own_task(tmp_path / "other.jsonl", "one", "three")
    model, tokenizer = policies.load_policy(TINY, first, tmp_path / "cache")
    assert tokenizer.tokenize("two") == ["two"] and len(tokenizer.tokenize("red")) == 3
    assert tiny.is_built(TINY, moved, tmp_path / "cache")
    assert not tiny.is_built(TINY, other, tmp_path / "cache")
    assert not tiny.is_built(TINY, Task(name="instruct-mini"), tmp_path / "cache")
    assert len(tokenizer) == model.config.vocab_size


def test_the_vocabulary_has_the_most_frequent_words_and_a_bound() -> None:
    rare = [f"{chr(97 + n // 676)}{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}" for n in range(4000)]
    tokenizer = tiny.tiny_tokenizer([*rare, "often often", "\ud7ff zebra zebra"])
    assert len(tokenizer.tokenize("often")) == 1 == len(tokenizer.tokenize(" zebra"))
    known = [word for word in rare if len(tokenizer.tokenize(word)) == 1]
    assert known == rare[: lessons.MOST_WORDS - 2]
    assert len(tokenizer) <= 2 * lessons.MOST_WORDS + 300
    text = "never seen " + rare[-1]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_long_lesson_keeps_its_answer_and_the_end_of_its_prompt() -> None:
    for prompt, answer in ((3, 2), (1000, 2), (3, 1000), (1000, 1000)):
        ids, start = tiny._lesson([1] * prompt, [2] * answer)
        assert ids == [1] * start + [2] * (len(ids) - start)
        assert len(ids) == min(prompt, 256 - min(answer, 128)) + min(answer, 128) and start > 0


def test_a_folder_loads_in_the_dtype_asked_for(tmp_path: Path) -> None:
    load(TINY, tmp_path)
    model, tokenizer = load(Policy(path=str(folder_in(tmp_path)), dtype="bfloat16"), tmp_path)
    assert model.dtype == torch.bfloat16
    assert tokenizer.pad_token == tiny.PAD


def test_lora_config_follows_the_policy() -> None:
    assert policies.lora_config(Policy(path="tiny")) is None
    found = policies.lora_config(Policy(path="tiny", lora=Lora(r=4, alpha=8, dropout=0.1)))
    assert found is not None
    assert (found.r, found.lora_alpha, found.lora_dropout) == (4, 8, 0.1)
    assert found.target_modules == "all-linear"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "least"),
    [
        pytest.param(SHORT, 0.3, id="short"),
        pytest.param({}, 0.35, id="shipped", marks=pytest.mark.long),
    ],
)
def test_the_shipped_warm_up_teaches_the_task(cache: Path, changes, least: float) -> None:
    """The sampled answers are far better than chance, and no answer outgrows the quickstart."""
    model, tokenizer = load(Policy(path="tiny", warmup=Warmup(**SHIPPED | changes)), cache)
    rows = instruct_mini.TASK.rows(Task(eval_rows=128), "eval")
    chats = [list(row.messages) for row in rows]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    torch.manual_seed(0)
    with torch.no_grad():
        ids = model.generate(**inputs, do_sample=True, max_new_tokens=40, top_k=0)
    ids = ids[:, inputs["input_ids"].shape[1] :]
    answers = zip(rows, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True)
    scores = [instruct_mini.TASK.truth(row, answer).score for row, answer in answers]
    assert sum(scores) / len(scores) > least
    assert (ids == tokenizer.eos_token_id).any(1).float().mean() > 0.9


def test_the_chatml_template_says_nothing_of_its_own():
    """Byte for byte what ChatML is, with no system turn where the conversation has none."""
    tokenizer = tiny.tiny_tokenizer(teacher.lexicon())
    tokenizer.chat_template = policies.template_text("chatml")
    user = {"role": "user", "content": "Hi {{ x }}"}
    said = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
    assert said == "<|im_start|>user\nHi {{ x }}<|im_end|>\n<|im_start|>assistant\n"
    system = {"role": "system", "content": "Be kind."}
    turns = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi {{ x }}<|im_end|>\n"
    assert tokenizer.apply_chat_template([system, user], tokenize=False) == turns


def test_a_template_is_a_name_or_a_file(tmp_path):
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}")
    assert policies.template_text(str(tmp_path / "mine.jinja")) == "{{ messages[0].content }}"
    with pytest.raises(UserError, match="Give chatml"):
        policies.template_text("qwen9")
