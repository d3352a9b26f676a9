"""What `trainer.vllm` asks of TRL, and what has to be there before a policy is trained with it.

A server is given the policy's weights at each step, so it serves one cell at a time.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from experiments.policies.load import same_model
from judges.serving.server import get
from study.cell.cells import Cell
from study.config.schema import Judge, Study
from study.finding import Finding, problem
from study.system.installed import install
from study.system.machine import usable_gpus


def trl_options(config: Study) -> dict[str, Any]:
    """Arguments of `GRPOConfig`; none where vLLM draws nothing.

    A scaffold that is removed before the update parts the two probabilities of a completion on
    purpose, so they are then not weighed against each other.
    """
    trainer, vllm = config.trainer, config.trainer.vllm
    if vllm.mode == "none":
        return {}
    options = {
        "use_vllm": True,
        "vllm_mode": vllm.mode,
        "vllm_server_base_url": base_url(vllm.url) or None,
        "vllm_gpu_memory_utilization": vllm.gpu_memory,
        "vllm_tensor_parallel_size": vllm.tensor_parallel,
        "vllm_max_model_length": vllm.max_model_length or None,
        "vllm_importance_sampling_correction": config.scaffold.name == "none"
        or config.scaffold.keep,
    }
    if trainer.loss_type == "vespo":  # it weighs whole completions itself
        options["vllm_importance_sampling_mode"] = "token_truncate"
    return options


def base_url(url: str) -> str:
    """The address without the ``/v1`` that judges have at their end."""
    return url.rstrip("/").removesuffix("/v1")


def check_options(config: Study, processes: int) -> Iterator[Finding]:
    """Refuse options that do not go together; ``processes`` train the cell."""
    vllm = config.trainer.vllm
    if vllm.mode == "server" and not urlsplit(vllm.url).netloc:
        yield problem(
            "vLLM",
            f"trainer.vllm.mode=server needs a server, but trainer.vllm.url={vllm.url!r} is not an "
            f"address. Type trainer.vllm.url=http://127.0.0.1:8000, once {command(config)} runs.",
        )
    if vllm.mode != "server" and vllm.url:
        yield problem(
            "vLLM",
            f"trainer.vllm.url={vllm.url} has no meaning with trainer.vllm.mode="
            f"{vllm.mode}. Type trainer.vllm.mode=server, or leave the address out.",
        )
    if vllm.mode == "colocate" and processes % vllm.tensor_parallel:
        yield problem(
            "vLLM",
            f"trainer.vllm.tensor_parallel={vllm.tensor_parallel} does not divide the {processes} "
            "processes of the cell, one for each GPU. Type trainer.vllm.tensor_parallel=1, or "
            "sweep.accelerate=FILE with a file whose num_processes it divides.",
        )


def check_installed(todo: Sequence[Cell], elsewhere: bool = False) -> Iterator[Finding]:
    """Refuse cells whose completions vLLM draws where it, or a GPU, is missing. The mode is part of
    a cell's identity, so no machine chooses another.

    Args:
        todo: the cells that are to be trained.
        elsewhere: another launcher runs them, on other machines.
    """
    users = [cell.config for cell in todo if cell.config.trainer.vllm.mode != "none"]
    if not users:
        return
    has_gpu = elsewhere or usable_gpus(users[0].device)
    lacks = [] if has_gpu else ["this process may use no GPU"]
    if importlib.util.find_spec("vllm") is None:
        lacks.append("vLLM cannot be imported in this environment")
    if lacks:
        yield problem(
            "vLLM of the policy",
            f"trainer.vllm.mode={users[0].trainer.vllm.mode} has vLLM draw the policy's completions"
            f" on a GPU, but {' and '.join(lacks)}. Type the command on a machine with a GPU, after"
            f" {install('gpu')}; or type trainer.vllm.mode=none: transformers then draws"
            " them, which is slower and makes other cells.",
        )


def check_vllm(todo: Sequence[Cell], elsewhere: bool = False) -> Iterator[Finding]:
    """Refuse to begin where vLLM, a GPU or the server that cells need is missing, or a server would
    be given the weights of two policies at a time; arguments as of `check_installed`."""
    yield from check_installed(todo, elsewhere)
    users = [cell for cell in todo if cell.config.trainer.vllm.mode != "none"]
    asking = [cell.config for cell in users if cell.config.trainer.vllm.mode == "server"]
    users_of = Counter(base_url(config.trainer.vllm.url) for config in asking)
    for url, count in users_of.most_common(1):
        if count > 1 and (elsewhere or asking[0].sweep.workers != 1):
            yield problem(
                "vLLM",
                f"{count} cells use the server at trainer.vllm.url={url}, which holds the weights"
                " of one policy at a time. Type sweep.workers=1"
                + (" and leave the launcher out." if elsewhere else "."),
            )
    for url, config in {base_url(config.trainer.vllm.url): config for config in asking}.items():
        yield from check_server(url, config)


def check_server(url: str, config: Study) -> Iterator[Finding]:
    """Refuse a server that does not answer, takes no weights, or serves another model."""
    start = f"Start it in another terminal: {command(config)}"
    if get(Judge(), f"{url}/health") is None:
        yield problem("vLLM", f"No vLLM server answers at trainer.vllm.url={url}. {start}")
    try:
        info = json.loads(get(Judge(), f"{url}/server_info?config_format=json") or b"{}")
        settings = info["vllm_config"]
        takes_weights = settings["weight_transfer_config"] is not None
        model = str(settings["model_config"]["model"])
    except (ValueError, KeyError, TypeError, RecursionError):
        takes_weights, model = False, ""
    if not takes_weights:
        yield problem(
            "vLLM",
            f"The server at trainer.vllm.url={url} takes no weights, so it would keep answering as"
            f" the untrained policy. {start}",
        )
    if not same_model(model, config.policy.path):
        yield problem(
            "vLLM",
            f"The server at trainer.vllm.url={url} serves {model[:200]!r}, but the policy is "
            f"{config.policy.path}. {start}",
        )


def command(config: Study) -> str:
    """What starts the server of a policy; it sets what weights and log-probabilities need."""
    port = urlsplit(config.trainer.vllm.url).port or 8000
    return f"trl vllm-serve --model {config.policy.path} --port {port}"
