"""Completions by vLLM: what TRL is asked, what is refused, and a run by a stand-in engine."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from experiments.trainer import vllm
from experiments.trainer.generate import Sampling, generate, merged, uniforms
from experiments.trainer.grpo import grpo_config
from study.config.identity import identifying
from study.config.schema import Policy, Scaffold, Study, Sweep, Trainer
from study.config.vllm import Vllm
from study.errors import UserError
from study.finding import stop_at_problem
from tests.invariants.test_grpo import run, study
from tests.web_server import Handler, serving


def asking(sweep: Sweep = Sweep(), **settings: Any) -> Study:  # noqa: B008
    policy = Policy(path="Qwen/Qwen2.5-7B-Instruct")
    return Study(policy=policy, trainer=Trainer(vllm=Vllm(**settings)), sweep=sweep)


def cell(config: Study) -> Any:
    return SimpleNamespace(config=config)


def test_nothing_is_asked_without_it(tmp_path) -> None:
    assert vllm.trl_options(Study()) == {}
    assert not grpo_config(study(), tmp_path).use_vllm


def test_trl_is_asked_by_its_own_names(tmp_path) -> None:
    server = grpo_config(study(vllm=Vllm("server", "http://10.0.0.1:8000/v1/")), tmp_path)
    assert (server.use_vllm, server.vllm_mode) == (True, "server")
    assert server.vllm_server_base_url == "http://10.0.0.1:8000"
    settings = Vllm("colocate", gpu_memory=0.4, tensor_parallel=2, max_model_length=4096)
    beside = grpo_config(study(vllm=settings, loss_type="vespo"), tmp_path)
    assert (beside.vllm_mode, beside.vllm_server_base_url) == ("colocate", None)
    assert beside.vllm_gpu_memory_utilization == 0.4
    assert (beside.vllm_tensor_parallel_size, beside.vllm_max_model_length) == (2, 4096)
    assert beside.vllm_importance_sampling_correction
    # TRL refuses any other with this loss
    assert beside.vllm_importance_sampling_mode == "token_truncate"


@pytest.mark.parametrize(
    ("scaffold", "weighed"),
    [
        (Scaffold(), True),
        (Scaffold(name="ruscarl"), False),
        (Scaffold(name="ruscarl", keep=True), True),
    ],
)
def test_what_a_scaffold_parts_is_not_weighed(scaffold, weighed) -> None:
    options = vllm.trl_options(dataclasses.replace(asking(mode="colocate"), scaffold=scaffold))
    assert options["vllm_importance_sampling_correction"] is weighed


def test_an_address_and_a_share_of_memory_are_no_identity() -> None:
    def identity(**settings: Any) -> dict[str, Any]:
        return identifying(dataclasses.asdict(asking(**settings)))

    assert not any("vllm" in key for key in identity())
    first = identity(mode="server", url="http://a:1")
    assert first == identity(mode="server", url="http://b:2", gpu_memory=0.9)
    assert first["trainer.vllm.mode"] == "server"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "server"}, "trainer.vllm.url='' is not an address"),
        ({"mode": "server", "url": "localhost"}, "Type trainer.vllm.url=http"),
        ({"url": "http://a:1"}, "has no meaning with trainer.vllm.mode=none"),
        ({"mode": "colocate", "tensor_parallel": 2}, "does not divide the 3 processes"),
    ],
)
def test_options_that_do_not_go_together_are_refused(settings, said) -> None:
    with pytest.raises(UserError, match=said):
        stop_at_problem(vllm.check_options(asking(**settings), processes=3))


class Served(Handler):
    """Answers what TRL's client asks of a vLLM server."""

    info: Any = None

    def do_GET(self) -> None:
        body = {"/health": b"", "/server_info?config_format=json": self.info}.get(self.path)
        self.answer(body or b"", 404 if body is None else 200)


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a server."""
    with serving(Served) as address:
        yield address
    Served.info = None


@pytest.fixture
def machine(tmp_path, monkeypatch, gpus_here):
    """A machine with a GPU on which vLLM can be imported."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    gpus_here(1)
    return tmp_path


def info(model: str, transfer: Any) -> bytes:
    config = {"model_config": {"model": model}, "weight_transfer_config": transfer}
    return json.dumps({"vllm_config": config}).encode()


def test_what_is_missing_is_refused_before_launch(machine, gpus_here) -> None:
    users = [cell(asking(mode="colocate")), cell(Study())]

    def said(elsewhere: bool = False) -> str:
        with pytest.raises(UserError) as refused:
            stop_at_problem(vllm.check_vllm(users, elsewhere))
        return str(refused.value)

    stop_at_problem(vllm.check_vllm(users))
    on_cpu = cell(dataclasses.replace(users[0].config, device="cpu"))
    with pytest.raises(UserError, match="this process may use no GPU"):
        stop_at_problem(vllm.check_vllm([on_cpu]))
    gpus_here(0)
    no_gpu, no_vllm = "this process may use no GPU", "vLLM cannot be imported in this environment"
    assert no_gpu in said() and no_vllm not in said() and "\n" not in said()
    stop_at_problem(vllm.check_vllm(users, elsewhere=True))
    (machine / "vllm/__init__.py").unlink()
    (machine / "vllm").rmdir()
    importlib.invalidate_caches()
    assert f"{no_gpu} and {no_vllm}" in said() and "pip install -e '.[gpu]'" in said()
    assert no_vllm in said(elsewhere=True) and no_gpu not in said(elsewhere=True)
    assert "trainer.vllm.mode=none: transformers then draws them" in said()
    stop_at_problem(vllm.check_vllm([cell(Study())]))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "takes no weights"),
        (b"[" * 100_000, "takes no weights"),
        (b'{"vllm_config": 3}', "takes no weights"),
        (info("Qwen2.5-7B-Instruct", None), "takes no weights"),
        (info("Qwen/Qwen3-8B", {"backend": "nccl"}), "serves 'Qwen/Qwen3-8B'"),
        (info("/models/Qwen2.5-7B-Instruct", {"backend": "nccl"}), ""),
    ],
)
def test_a_server_is_asked_what_it_can(machine, url, answer, said) -> None:
    Served.info = answer
    config = asking(mode="server", url=f"{url}/v1")
    if not said:
        stop_at_problem(vllm.check_vllm([cell(config)]))
        return
    with pytest.raises(UserError) as refused:
        stop_at_problem(vllm.check_vllm([cell(config)]))
    assert said in str(refused.value)
    command = f"trl vllm-serve --model Qwen/Qwen2.5-7B-Instruct --port {url.rpartition(':')[2]}"
    assert str(refused.value).endswith(command)


def test_a_server_that_does_not_answer_is_refused(machine) -> None:
    with pytest.raises(UserError, match=r"No vLLM server answers at trainer.vllm.url=http://127"):
        stop_at_problem(vllm.check_vllm([cell(asking(mode="server", url="http://127.0.0.1:9"))]))


def test_a_server_is_for_one_cell_at_a_time(machine, url) -> None:
    Served.info = info("Qwen2.5-7B-Instruct", {})
    several = [cell(asking(mode="server", url=url)), cell(asking(mode="server", url=f"{url}/"))]
    with pytest.raises(UserError, match=r"2 cells use the server .* Type sweep.workers=1"):
        stop_at_problem(vllm.check_vllm(several))
    one_by_one = [cell(asking(Sweep(workers=1), mode="server", url=url)) for _ in range(2)]
    stop_at_problem(vllm.check_vllm(one_by_one))
    with pytest.raises(UserError, match="leave the launcher out"):
        stop_at_problem(vllm.check_vllm(one_by_one, elsewhere=True))


class Engine:
    """Stands for TRL's `VLLMGeneration`: draws by the policy itself, and says how probable each
    token was."""

    made: ClassVar[list[Engine]] = []

    def __init__(self, model: Any, accelerator: Any, **settings: Any) -> None:
        self.model, self.settings, self.syncs = model, settings, 0
        Engine.made.append(self)

    def sync_weights(self) -> None:
        self.syncs += 1

    @torch.no_grad()
    def generate(self, prompts: Any, images: Any, num_generations: int, profiler: Any) -> Any:
        length, heat = self.settings["max_completion_length"], self.settings["temperature"]
        uniform = uniforms(7, self.syncs, len(prompts), length)
        with merged(self.model) as policy:
            ends = (policy.config.eos_token_id,)
            owner = list(range(len(prompts)))
            drawn = generate(policy, prompts, owner, Sampling(length, ends, heat), uniform)
            logprobs = []
            for prompt, ids in zip(prompts, drawn, strict=True):
                logits = policy(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
                chosen = (logits / heat).log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])
                logprobs.append([[value] for value in chosen[:, 0].tolist()])
        return prompts, drawn, logprobs, None


def test_a_run_draws_by_the_engine_and_learns_by_shared_prefixes(tmp_path, cache, monkeypatch):
    Engine.made.clear()
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", Engine)
    outcome = run(study(vllm=Vllm("colocate", gpu_memory=0.4)), tmp_path, cache)
    (engine,) = Engine.made
    assert engine.settings["gpu_memory_utilization"] == 0.4
    assert engine.syncs == 2  # the weights of each step, once
    assert outcome.trainer.rollout_func is None
    assert len(outcome.lines) == 2
    for line in outcome.lines:
        assert line["metrics"]["trainer/shared_prefix"] == 1.0
        # it was the policy that drew, so no completion weighs more or less
        assert line["metrics"]["policy/vllm_ratio"] == pytest.approx(1.0, abs=1e-3)
        assert line["metrics"]["policy/vllm_logp_difference"] == pytest.approx(0.0, abs=1e-4)
    assert len(outcome.records) == 16
    assert all(row["logprob_sum"] < 0 and row["reward"] != 0 for row in outcome.records)
