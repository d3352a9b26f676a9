"""Answers by an offline vLLM: a stand-in for its engine draws by transformers, so the same rows,
ends, files and results must come of it; `tests/experiments/test_vllm_cpu.py` has the real one."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.evaluate import main
from experiments.evaluation import generate, vllm_engine
from experiments.evaluation.baselines import typed
from experiments.evaluation.options import Options
from experiments.policies.load import adapted, read_weights
from study.errors import UserError
from tests.experiments.conftest import PROMPTS
from tests.experiments.test_generate import adapter, altered, made, rows_of, single  # noqa: F401


@dataclass
class Arguments:
    """vLLM's `EngineArgs`, with those that are given."""

    given: dict[str, Any]

    def __init__(self, **given: Any) -> None:
        self.given = given


@dataclass
class Engine:
    """vLLM's `LLMEngine`: draws each request by itself, one token of every request a step."""

    given: dict[str, Any]
    room: int
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self.model_config = types.SimpleNamespace(max_model_len=self.room)
        self.engine_core = types.SimpleNamespace(shutdown=self.shutdown)
        self.base = read_weights(self.given["model"], self.given["dtype"], "none")
        self.models: dict[str | None, Any] = {None: self.base.eval()}

    def shutdown(self) -> None:
        self.closed = True

    def add_lora(self, request: Any) -> None:
        if request.path not in self.models:
            base = read_weights(self.given["model"], self.given["dtype"], "none")
            self.models[request.path] = adapted(base, Path(request.path), "").eval()
            self.loaded.append(request.path)

    def add_request(self, name: str, prompt: Any, params: Any, lora_request: Any) -> None:
        assert self.given.get("enable_lora") or lora_request is None
        request = {"ids": prompt["prompt_token_ids"], "drawn": [], "params": params}
        request["model"] = self.models[lora_request and lora_request.path]
        request["draw"] = torch.Generator().manual_seed(params.seed)
        self.running[name] = request
        self.requests.append(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    @torch.no_grad()
    def step(self) -> list[Any]:
        done = []
        for name, request in list(self.running.items()):
            params = request["params"]
            ids = torch.tensor([[*request["ids"], *request["drawn"]]])
            logits = request["model"](ids).logits[0, -1].float()
            if params.temperature == 0:
                token = int(logits.argmax())
            else:
                shares = (logits / params.temperature).softmax(-1)
                token = int(torch.multinomial(shares, 1, generator=request["draw"]))
            request["drawn"].append(token)
            ended = token in params.stop_token_ids or len(request["drawn"]) == params.max_tokens
            if ended:
                del self.running[name]
            output = types.SimpleNamespace(token_ids=tuple(request["drawn"]))
            done.append(types.SimpleNamespace(request_id=name, finished=ended, outputs=[output]))
        return done


@pytest.fixture
def engines(monkeypatch, gpus_here) -> list[Engine]:
    """vLLM is installed, on a machine with two GPUs; the engines that were started."""
    gpus_here(2)
    started: list[Engine] = []

    def start(arguments: Arguments) -> Engine:
        if arguments.given["gpu_memory_utilization"] < 0.1:
            raise ValueError("No available memory for the cache blocks.\nmore")
        started.append(Engine(arguments.given, room=64))
        return started[-1]

    fake, lora = (types.ModuleType(name) for name in ("vllm", "vllm.lora.request"))
    fake.__spec__ = ModuleSpec("vllm", None)
    vars(fake)["EngineArgs"], vars(fake)["SamplingParams"] = Arguments, types.SimpleNamespace
    vars(fake)["LLMEngine"] = types.SimpleNamespace(from_engine_args=start)
    vars(lora)["LoRARequest"] = lambda _, number, path: types.SimpleNamespace(
        number=number, path=path
    )
    for module in (fake, lora):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: False)
    monkeypatch.setattr(vllm_engine, "HELD", vllm_engine.Held())
    return started


def by_vllm(**options: Any) -> generate.Source:
    return made(engine="vllm", dtype="float32", **options)


def responses(source: generate.Source) -> dict[str, Any]:
    return {row["prompt"]: (row["response"], row["stop"], row["tokens"]) for row in rows_of(source)}


def test_the_same_rows_come_of_it_with_an_adapter_and_without(engines, little, adapter) -> None:  # noqa: F811
    for words in ({"model": str(little)}, {"adapter": adapter}):
        plain = made(dtype="float32", max_tokens=6, **words)
        assert responses(by_vllm(max_tokens=6, **words)) == responses(plain)
    bare, tuned = engines
    assert bare.closed and not tuned.closed  # two would need twice the memory
    assert bare.given["generation_config"] == "vllm" and "enable_lora" not in bare.given
    assert tuned.given["max_lora_rank"] == 8  # the least that vLLM has for a rank of 2
    assert tuned.loaded == [str(adapter.resolve())]
    # without its adapter it is asked as it is
    assert responses(by_vllm(model=str(little), max_tokens=6)) == responses(
        made(model=str(little), dtype="float32", max_tokens=6)
    )
    assert len(engines) == 2


def test_a_seed_draws_a_prompts_answer_whatever_else_is_asked(engines, little) -> None:
    words = {"model": str(little), "max_tokens": 8, "temperature": 1.0}
    drawn = responses(by_vllm(seed=3, **words))
    assert drawn == responses(by_vllm(seed=3, **words)) != responses(by_vllm(seed=4, **words))
    rows: list[Any] = []
    last = list(PROMPTS)[-1]
    by_vllm(seed=3, **words).answer(single(last), rows.append)
    assert (rows[0]["response"], rows[0]["stop"], rows[0]["tokens"]) == drawn[last]
    seeds = {request["params"].seed for request in engines[0].requests}
    assert len(seeds) == 2 * len(PROMPTS) and all(0 <= seed < 2**63 for seed in seeds)


def test_ifeval_has_the_same_result_file_and_resumes(root, tmp_path, little, engines) -> None:
    results = {}
    for engine in ("transformers", "vllm"):
        out = tmp_path / f"{engine}.json"
        words = ["ifeval", f"data.root={root}", f"model={little}", f"out={out}", "max_tokens=5"]
        words += ["dtype=float32", f"engine={engine}"]
        assert main([*words, "limit=2", "allow_missing=true"]) == 0
        assert main(words) == 0
        results[engine] = json.loads(out.read_text())
    assert len(engines[0].requests) == len(PROMPTS)  # each once
    assert results["vllm"]["generation"].pop("engine") == "vllm"
    for result in results.values():
        result.pop("responses")
    assert results["vllm"] == results["transformers"]


def test_answers_of_one_engine_are_not_taken_for_the_others(
    root, tmp_path, little, engines, capsys
):
    kept = tmp_path / "r.jsonl"
    words = ["ifeval", f"data.root={root}", f"model={little}", f"responses_out={kept}"]
    words += ["max_tokens=5", "dtype=float32"]
    assert main([*words, f"out={tmp_path / 'a.json'}"]) == 0
    assert main([*words, f"out={tmp_path / 'b.json'}", "engine=vllm"]) == 2
    assert "was made with" in capsys.readouterr().err and not engines


def test_a_prompt_longer_than_the_context_is_missing_and_a_small_memory_is_said(
    engines, little, tmp_path
) -> None:
    rows: list[Any] = []
    by_vllm(model=str(little), max_tokens=4).answer(single("Zq " * 90), rows.append)
    assert rows[0]["response"] is None and "context of 64" in rows[0]["error"] and not engines
    wide = altered(little, tmp_path / "wide", max_position_embeddings=512)
    with pytest.raises(UserError, match=r"take \d+ tokens, but the memory that vLLM has holds 64"):
        rows_of(by_vllm(model=str(wide), max_tokens=400))
    with pytest.raises(UserError) as refused:
        rows_of(by_vllm(model=str(little), max_tokens=4, gpu_memory=0.01))
    assert "(ValueError: No available memory for the cache blocks.)" in str(refused.value)
    assert "engine=vllm" in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(UserError, match="dtype=float99 is not a dtype of torch"):
        rows_of(replace(made(engine="vllm", model=str(little), dtype="float99")))


def test_where_vllm_or_a_gpu_is_missing_it_says_what_to_type(
    engines, gpus_here, monkeypatch, little
):
    def refusal(**options: Any) -> str:
        with pytest.raises(UserError) as refused:
            by_vllm(model=str(little), **options)
        assert "\n" not in str(refused.value)
        return str(refused.value)

    assert "tensor_parallel=3, but this process may use 2" in refusal(tensor_parallel=3)
    assert "batch has no meaning with engine=vllm" in refusal(given=frozenset({"batch"}))
    vllm_engine.refuse_missing(2)  # two are enough for two
    gpus_here(0)
    assert "may use 0" in refusal()
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: True)
    by_vllm(model=str(little))
    assert "build for CPUs" in refusal(tensor_parallel=2)
    monkeypatch.delitem(sys.modules, "vllm")
    said = refusal()
    for words in ("cannot be imported", "pip install -e '.[gpu]'", "make vllm-cpu-trainer"):
        assert words in said
    with pytest.raises(UserError, match="gpu_memory has no meaning with engine=transformers"):
        made(model=str(little), gpu_memory=0.5, given=frozenset({"gpu_memory"}))
    with pytest.raises(UserError, match="engine has no meaning with endpoint and model"):
        made(endpoint="http://a", model="m", engine="vllm", given=frozenset({"engine"}))


def test_the_command_of_a_baseline_names_the_engine() -> None:
    options = Options("datasets", model="m", out=Path("o.json"), engine="vllm")
    options = replace(options, given=frozenset({"model", "out", "engine"}))
    assert "engine=vllm" in typed(options, "cot", {"method": "cot"})
