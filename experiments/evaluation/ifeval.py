"""IFEval: 541 prompts with verifiable instructions, scored by the checkers of ``if-verifiable``.

Strict and loose accuracy follow google-research's evaluation_main. Two of the prompts make their
checker draw a letter at random, and language detection draws too: both are seeded here.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import langdetect
import nltk
import numpy as np
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
from nltk import word_tokenize

from analysis.statistics.proportions import clustered_share
from study.answers import answer_of
from study.errors import UserError
from study.system.files import first_line
from study.system.installed import install
from study.tasks.where import VARIABLE, data_folder

PROMPTS_FILE = Path("ifeval/input_data.jsonl")
PUNKT_FOLDER = "nltk_punkt_tab_english"
HUB_REPO, HUB_FILE, HUB_SECONDS = "google/IFEval", "ifeval_input_data.jsonl", 5
MEASURES = ("prompt_strict", "instruction_strict", "prompt_loose", "instruction_loose")


@dataclass(frozen=True)
class Prompt:
    """One prompt and the instructions in it; ``kwargs`` has one entry per instruction."""

    key: int
    text: str
    instructions: tuple[str, ...]
    kwargs: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Checked:
    """One response against its prompt's instructions, in their order."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]
    is_random: bool = False
    """Whether a checker had to draw one of its parameters at random."""


def data_root(folder: str | None = None) -> Path | None:
    """The folder of the shared data: ``folder``, or `data_folder` where that holds IFEval. Raises
    UserError where a folder that was named, here or in the environment, does not."""
    root = Path(folder).expanduser() if folder else data_folder()
    if (root / PROMPTS_FILE).is_file():
        return root
    if folder or os.environ.get(VARIABLE):
        name = "data.root" if folder else VARIABLE
        raise UserError(
            f"{name}={root} has no {PROMPTS_FILE}. Type data.root=FOLDER, where FOLDER holds"
            f" {PROMPTS_FILE} and {PUNKT_FOLDER}/."
        )
    return None


def load_prompts(root: Path | None) -> list[Prompt]:
    """The prompts in file order, from ``root``, or from the hub where there is none. Raises
    UserError where both fail, or a line is not a prompt of IFEval."""
    path = root / PROMPTS_FILE if root else _from_hub()
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            ids, kwargs = tuple(row["instruction_id_list"]), tuple(row["kwargs"])
            if not ids or len(ids) != len(kwargs):
                raise ValueError(f"{len(ids)} instructions and {len(kwargs)} kwargs")
            prompts.append(Prompt(int(row["key"]), str(row["prompt"]), ids, kwargs))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}, line {number} is not a prompt of IFEval: {error!r}."
            ) from error
    if not prompts:
        raise UserError(f"{path} holds no prompts. Type data.root=FOLDER of a complete copy.")
    return prompts


def _from_hub() -> Path:
    try:
        return Path(
            hf_hub_download(HUB_REPO, HUB_FILE, repo_type="dataset", etag_timeout=HUB_SECONDS)
        )
    except (OSError, httpx.HTTPError, HfHubHTTPError) as error:
        reason = first_line(error)
        raise UserError(
            f"IFEval's prompts are missing and the hub did not provide {HUB_REPO}: {reason} Type"
            f" data.root=FOLDER, where FOLDER holds {PROMPTS_FILE}, or set {VARIABLE}."
        ) from error


def digest(prompts: Sequence[Prompt]) -> str:
    """16 hex digits over the prompts and what is asked in them."""
    text = repr([(prompt.key, prompt.text, prompt.instructions) for prompt in prompts])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@functools.cache
def load_checkers(root: Path | None) -> Mapping[str, Any]:
    """Instruction id -> checker class, with the sentence model loaded and languages seeded. Raises
    UserError where the package or the sentence model is missing."""
    try:
        from if_verifiable.ifeval.instructions_registry import INSTRUCTION_DICT
        from if_verifiable.ifeval.instructions_util import count_sentences
    except ImportError as error:
        raise UserError(
            f"IFEval needs its checkers, but {error.name} is not installed. Type: {install()}"
        ) from error
    langdetect.DetectorFactory.seed = 0
    with _punkt(root):
        try:
            # Both keep what they load, so that the folder may go again.
            count_sentences("One. Two.")
            word_tokenize("One. Two.")
        except LookupError as error:
            raise UserError(
                "IFEval counts sentences with NLTK's punkt_tab, which is missing. Type"
                f" data.root=FOLDER, where FOLDER holds {PUNKT_FOLDER}/, or download it: python -m"
                " nltk.downloader punkt_tab"
            ) from error
    return INSTRUCTION_DICT


@contextmanager
def _punkt(root: Path | None) -> Generator[None]:
    """NLTK's search path with the sentence model of ``root`` in front, where it has one; copied, as
    NLTK opens no file through a link that leads out of its own folders."""
    source = root / PUNKT_FOLDER if root else None
    if source is None or not source.is_dir():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="nltk-") as folder:
        target = Path(folder) / "tokenizers" / "punkt_tab" / "english"
        target.mkdir(parents=True)
        for file in source.iterdir():
            shutil.copyfile(file, target / file.name)
        nltk.data.path.insert(0, folder)
        try:
            yield
        finally:
            nltk.data.path.remove(folder)


def check(
    prompt: Prompt, response: str, checkers: Mapping[str, Any], seed: int | str = 0
) -> Checked:
    """Check a response; an empty one follows nothing.

    The draws of a row depend on ``seed`` and the row's key only, not on the rows before it, and
    strict and loose see the same draw. The caller's random state is left as it was.
    """
    from if_verifiable.common import get_loose_transformations

    if not response.strip():
        nothing = (False,) * len(prompt.instructions)
        return Checked(nothing, nothing)
    edited = dict.fromkeys(get_loose_transformations(response)[1:])
    variants = [text for text in edited if text.strip() and text != response]
    strict, loose, is_random = [], [], False
    state = random.getstate()
    random.seed(f"{seed} {prompt.key}")
    try:
        for name, kwargs in zip(prompt.instructions, prompt.kwargs, strict=True):
            if name not in checkers:
                raise UserError(f"IFEval's prompt {prompt.key} has the unknown instruction {name}.")
            checker = checkers[name](name)
            before = random.getstate()
            # The hub's copy fills up every kwargs with nulls.
            checker.build_description(**{k: v for k, v in kwargs.items() if v is not None})
            if "prompt" in (checker.get_instruction_args() or {}):
                checker.build_description(prompt=prompt.text)
            is_random |= random.getstate() != before
            strict.append(bool(checker.check_following(response)))
            loose.append(strict[-1] or any(map(checker.check_following, variants)))
    finally:
        random.setstate(state)
    return Checked(tuple(strict), tuple(loose), is_random)


def score(
    prompts: Sequence[Prompt],
    completions: Mapping[int, str],
    checkers: Mapping[str, Any],
    seed: int | str = 0,
) -> dict[str, Any]:
    """The four accuracies as fractions of what was answered, their intervals, and counts.

    Args:
        prompts: all of them; those whose key is not in ``completions`` are missing, not failed.
        completions: key -> what the policy wrote, its thinking included.
    """
    results: list[tuple[Prompt, Checked]] = []
    empty = truncated = 0
    for prompt in prompts:
        completion = completions.get(prompt.key)
        if completion is None:
            continue
        answer = answer_of(completion)
        truncated += answer is None
        empty += answer == ""
        # Without thinking the text is scored as it came: a line break at its end decides what
        # "without the last line" means.
        text = completion if answer == completion.strip() else answer or ""
        results.append((prompt, check(prompt, text, checkers, seed)))
    report: dict[str, Any] = {}
    intervals = {}
    for measure in MEASURES:
        level, mode = measure.split("_")
        passes = [getattr(checked, mode) for _, checked in results]
        groups = [(all(flags),) for flags in passes] if level == "prompt" else passes
        report[measure], *intervals[measure] = proportion(groups)
    return report | {
        "intervals": intervals,
        "n_prompts": len(results),
        "n_instructions": sum(len(prompt.instructions) for prompt, _ in results),
        "n_missing": len(prompts) - len(results),
        "n_empty": empty,
        "n_truncated_thinking": truncated,
        "drawn": [prompt.key for prompt, checked in results if checked.is_random],
        "per_type": _per_type(results),
    }


def _per_type(results: Sequence[tuple[Prompt, Checked]]) -> dict[str, dict[str, float]]:
    passes: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for prompt, checked in results:
        for name, *pair in zip(prompt.instructions, checked.strict, checked.loose, strict=True):
            passes[name].append((pair[0], pair[1]))
    measured = {}
    for name, pairs in sorted(passes.items()):
        strict, loose = (sum(flags) / len(pairs) for flags in zip(*pairs, strict=True))
        measured[name] = {"n": len(pairs), "strict": strict, "loose": loose}
    return measured


def proportion(groups: Sequence[Sequence[bool]]) -> tuple[float, float, float]:
    """Share of true values and its 95 % Wilson interval, robust to clusters.

    Instructions of one prompt share its answer: see `clustered_share`. ``groups`` are the values of
    each of C clusters; a ValueError where there are none.
    """
    values = sum(map(len, groups))
    if not values:
        raise ValueError("a proportion of nothing")
    sums = np.array([(sum(group), len(group)) for group in groups], dtype=float)
    estimate = clustered_share(sums, values)
    return estimate.value, estimate.low, estimate.high
