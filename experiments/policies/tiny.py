"""The tiny policy: a small Llama that is taught a task in seconds, then cached.

Its tokenizer has the words of the task, and supervised steps on a teacher's imperfect answers warm
it up (`study.tasks.lessons`). It is cached by content, so that every run of a study starts from the
same weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from experiments.policies.checkpoints import fault, seal
from study.config.schema import Policy, Task, Warmup
from study.errors import UserError
from study.rows import Row
from study.system import locks
from study.tasks import kind_of, prompts
from study.tasks.lessons import MOST_WORDS, Lessons

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ARCHITECTURE = {"hidden_size": 128, "layers": 2, "heads": 8, "intermediate_size": 384}
CONTEXT = 1024
"""Positions of the tiny policy: a prompt takes about 30, an answer at most about 60, and a scaffold
of words that it has never seen some hundreds."""
PAD, END, ROLES = "<|pad|>", "<|end|>", ("system", "user", "assistant")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPLIT = r" ?[A-Za-z]+| ?[0-9]| ?#+| ?\*\*| ?[^\sA-Za-z0-9]|\s"
LONGEST_LESSON = 256
"""Tokens of prompt and answer in a lesson: a longer prompt loses its beginning."""
WARMUP_THREADS = 2
"""Of torch, always: the bits of the weights may depend on their number, and shall not depend on how
many threads the caller has or on how many CPUs there are. More than one hangs in a process that was
forked after torch had run: the pool's children come from a server in which nothing ran."""


def load_tiny(
    policy: Policy, task: Task, cache_dir: Path
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The tiny policy of ``task`` from the cache, where it is built first if it is missing or
    damaged. Raises UserError: see `taught`."""
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    with _built(policy, task, cache_dir) as folder:
        model = LlamaForCausalLM.from_pretrained(folder)
        return model, PreTrainedTokenizerFast.from_pretrained(folder)


def build_missing(policy: Policy, task: Task, cache_dir: Path) -> Path:
    """Put the tiny policy of ``task`` into the cache where it is missing or damaged; its folder."""
    with _built(policy, task, cache_dir) as folder:
        return folder


def is_built(policy: Policy, task: Task, cache_dir: Path) -> bool:
    """Whether the cache holds the tiny policy of ``task``, whole. Loads no torch."""
    return not fault(_folder(policy, taught(task), cache_dir))


def taught(task: Task) -> Lessons:
    """The lessons of a task. Raises UserError: it has none."""
    lessons = kind_of(task).lessons(task)
    if lessons is not None:
        return lessons
    why = f"task={task.name} has none"
    if kind_of(task) is prompts.TASK:
        why = f"no training row of task={task.name} task.path={task.path} has a reference answer"
    raise UserError(
        f"The tiny policy learns a task from its lessons before RL, but {why}. Give rows such as"
        ' {"prompt": "Which city?", "reference": "Rome"} with task=prompts, or type'
        " task=instruct-mini, or another policy: policy=smollm2-135m-instruct"
    )


@contextmanager
def _built(policy: Policy, task: Task, cache_dir: Path) -> Generator[Path]:
    """The folder of the tiny policy, whole and locked; whoever else needs it waits."""
    lessons = taught(task)

    def build(folder: Path) -> None:
        _build_tiny(architecture_of(policy), policy.warmup or Warmup(), lessons, folder)

    with built_once(_folder(policy, lessons, cache_dir), build):
        yield _folder(policy, lessons, cache_dir)


@contextmanager
def built_once(folder: Path, build: Callable[[Path], None]) -> Generator[None]:
    """A cached policy's folder, locked; ``build`` makes it where it is missing or damaged."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locks.held(folder.with_name(f"{folder.name}.lock")):
        if fault(folder):
            shutil.rmtree(folder, ignore_errors=True)
            build(folder)
        yield


def architecture_of(policy: Policy) -> dict[str, int]:
    """Sizes of the tiny policy, those that ``policy`` leaves out too; UserError for others."""
    unknown = set(policy.architecture) - set(ARCHITECTURE)
    if unknown:
        raise UserError(
            f"policy.architecture has {', '.join(sorted(unknown))}; legal for the tiny policy are"
            f" {', '.join(ARCHITECTURE)}. Type for example policy.architecture.layers=2"
        )
    return ARCHITECTURE | policy.architecture


def _folder(policy: Policy, lessons: Lessons, cache_dir: Path) -> Path:
    """Where a tiny policy lies, by a hash of all that decides its weights, the code of lessons and
    warm-up included."""
    recipe = [architecture_of(policy), asdict(policy.warmup or Warmup()), lessons.key]
    return cache_dir / f"tiny-{recipe_hash(recipe, lessons)}"


def recipe_hash(recipe: list[Any], lessons: Lessons, *sources: str) -> str:
    """12 hex digits over all that decides a warm-up's weights: the ``recipe``, the libraries, and
    the code of lessons, warm-up and other ``sources``."""
    digest = hashlib.blake2b(digest_size=6)
    digest.update(json.dumps(recipe, sort_keys=True).encode())
    files = [_version_file("torch", "version.py"), _version_file("transformers", "__init__.py")]
    for source in (*files, *lessons.files, __file__, *sources):
        digest.update(Path(source).read_bytes())
    return digest.hexdigest()


def _version_file(package: str, name: str) -> Path:
    """The file of a package that says its version and build; the package is not imported."""
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).with_name(name)


def _build_tiny(
    architecture: dict[str, int], warmup: Warmup, lessons: Lessons, folder: Path
) -> None:
    """Warm up a tiny policy on `WARMUP_THREADS` and move it to ``folder`` in one rename."""
    tokenizer = tiny_tokenizer(lessons.texts())
    with repeatable(warmup.seed):
        model = _tiny_model(architecture, tokenizer)
        warm_up(model, tokenizer, lessons, warmup)
    with whole_folder(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        seal(part, folder.name)


@contextmanager
def repeatable(seed: int) -> Generator[None]:
    """Torch with `WARMUP_THREADS` and random numbers of its own; the caller's are left alone."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(WARMUP_THREADS)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def whole_folder(folder: Path) -> Generator[Path]:
    """A fresh folder that becomes ``folder`` in one rename when the block ends, or else goes
    away."""
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield part
        if folder.exists():
            folder.rmdir()
        os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _tiny_model(
    architecture: dict[str, int], tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=architecture["hidden_size"],
        num_hidden_layers=architecture["layers"],
        num_attention_heads=architecture["heads"],
        num_key_value_heads=architecture["heads"],
        intermediate_size=architecture["intermediate_size"],
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    # Llama's standard deviation of 0.02 is for thousands of channels: with it, 200 steps do not
    # even teach which words belong to a category
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            std = 0.1 if "embed" in name else weight.shape[1] ** -0.5
            torch.nn.init.normal_(weight, std=std)
    return model


def tiny_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """One token for each of the `MOST_WORDS` words and marks that are most frequent in ``texts``,
    single bytes for all else; exact round trip."""
    from transformers import PreTrainedTokenizerFast

    roles = [f"<|{role}|>" for role in ROLES]
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts = Counter(word.strip() for text in texts for word in re.findall(SPLIT, text))
    del counts[""]
    most_frequent = sorted(counts, key=lambda word: (-counts[word], word))[:MOST_WORDS]
    words = [variant for word in most_frequent for variant in (f" {word}", word)]
    words_as_split = {splitter.pre_tokenize_str(word)[0][0] for word in words}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [PAD, END, *roles, *alphabet, *sorted(words_as_split - set(alphabet))]
    vocab = {token: index for index, token in enumerate(vocabulary)}
    # with ``ignore_merges`` a whole word of the vocabulary is one token
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=roles,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=CONTEXT,
    )


def warm_up(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lessons: Lessons, warmup: Warmup
) -> float:
    """Supervised steps on the teacher's answers, AdamW with a cosine to zero; the last loss, which
    is over the tokens of the answer and its end mark only. Prompts are those of the train split."""
    import torch

    draw = random.Random(warmup.seed)
    rows = lessons.rows(warmup.seed)
    batches: list[list[tuple[list[int], int]]] = []
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(
        trained, lr=warmup.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, warmup.learning_rate, total_steps=max(1, warmup.steps), pct_start=0.1
    )
    model.train()
    loss = float("nan")
    for _ in range(warmup.steps):
        if not batches:
            batches = _batches(lessons, rows, tokenizer, warmup.batch, draw)
        ids, labels = _pad(batches.pop(), tokenizer.pad_token_id)
        outcome = model(input_ids=ids, labels=labels, use_cache=False).loss
        optimiser.zero_grad()
        outcome.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        schedule.step()
        loss = outcome.item()
    model.eval()
    return loss


def _batches(
    lessons: Lessons,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    batch: int,
    draw: random.Random,
) -> list[list[tuple[list[int], int]]]:
    """Eight batches of (token ids, prompt length), alike in length: padding is work for nothing."""
    pairs = [(row, lessons.answer(row, draw)) for row in draw.choices(rows, k=8 * batch)]
    prompts = [
        tokenizer.apply_chat_template(
            list(row.messages), add_generation_prompt=True, tokenize=False
        )
        for row, _ in pairs
    ]
    heads = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    tails = tokenizer(
        [answer + tokenizer.eos_token for _, answer in pairs], add_special_tokens=False
    )["input_ids"]
    learnt = [_lesson(head, tail) for head, tail in zip(heads, tails, strict=True)]
    learnt.sort(key=lambda lesson: len(lesson[0]))
    batches = [learnt[i : i + batch] for i in range(0, len(learnt), batch)]
    draw.shuffle(batches)
    return batches


def _lesson(prompt: list[int], answer: list[int]) -> tuple[list[int], int]:
    """Token ids of both, at most `LONGEST_LESSON`, and how many are the prompt's: one or more."""
    answer = answer[: LONGEST_LESSON // 2]
    prompt = prompt[-(LONGEST_LESSON - len(answer)) :]
    return prompt + answer, len(prompt)


def _pad(batch: list[tuple[list[int], int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids and labels, (B, longest); -100 hides prompt and padding from the loss."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids_B_L = pad_sequence([torch.tensor(ids) for ids, _ in batch], True, pad)
    labels = [torch.tensor([-100] * start + ids[start:]) for ids, start in batch]
    return ids_B_L, pad_sequence(labels, True, -100)
