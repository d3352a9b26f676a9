"""A small real model that several evaluations ask, four IFEval prompts, and an empty store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from experiments.evaluation import ifeval
from experiments.tracking.store import initialise, tracking_uri
from study.config.schema import Tracking
from study.system import locks
from tests.experiments.mlflow_runs import copy_store

LETTER = {"letter": "#", "let_frequency": 1, "let_relation": "at least"}
PROMPTS = {
    "Say hello without commas.": [("punctuation:no_comma", {})],
    "Quote three words.": [
        ("startend:quotation", {}),
        ("length_constraints:number_words", {"relation": "at least", "num_words": 3}),
    ],
    "Give me JSON.": [("detectable_format:json_format", {})],
    "Draw a letter.": [("keywords:letter_frequency", LETTER)],
}


@pytest.fixture(scope="session")
def little(tmp_path_factory) -> Path:
    """A random Llama with the built-in tokenizer, as a Hugging Face folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from experiments.policies.tiny import tiny_tokenizer
    from study.tasks import teacher

    tokenizer = tiny_tokenizer(teacher.lexicon())
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=64,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models") / "little"
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def root(tmp_path) -> Path:
    """A data folder with the four prompts above; the test is skipped without the shared data."""
    shared = ifeval.data_root()
    if shared is None:
        pytest.skip("needs the shared data (punkt)")
    folder = tmp_path / "data"
    (folder / "ifeval").mkdir(parents=True)
    shutil.copytree(shared / ifeval.PUNKT_FOLDER, folder / ifeval.PUNKT_FOLDER)
    rows = []
    for key, (text, instructions) in enumerate(PROMPTS.items()):
        names, kwargs = zip(*instructions, strict=True)
        rows.append({"key": key, "prompt": text, "instruction_id_list": names, "kwargs": kwargs})
    (folder / ifeval.PROMPTS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(autouse=True)
def _no_tracking_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)


@pytest.fixture(scope="session")
def template(together: Path) -> Path:
    """An empty store, made once for all workers: the schema is the slow part."""
    made = together / "template"
    with locks.held(together / "template.lock"):
        if not (made / "whole").exists():
            made.mkdir()
            initialise(tracking_uri(Tracking(), made), made, "template", [])
            (made / "whole").touch()
    return made / "mlflow.db"


@pytest.fixture
def runs(tmp_path: Path, template: Path) -> Path:
    """A runs folder with an initialised store."""
    folder = tmp_path / "runs"
    copy_store(template, folder / "mlflow.db")
    return folder
