"""The judges and executors that are asked: their keys, by name only, and where they answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from urllib.parse import urlsplit

from judges.endpoint.keys import read_key
from judges.serving.book import server_identity
from judges.serving.server import LOCAL
from study.cell.cells import models_of
from study.config.presets import SHIPPED, folders, no_preset, preset_names, read_preset
from study.config.schema import Executor, Judge, Model, freeze
from study.errors import UserError
from study.finding import Finding, note, ok, problem
from study.system.installed import install
from study.system.secret_names import shown_place
from study.system.secrets import redact

CONNECT_S = 0.8
"""How long one address may take to take a connection."""
KINDS: dict[str, type] = {"judge": Judge, "executor": Executor}


def load(group: str, name: str) -> Model:
    """A judge or an executor of a preset, as its file has it, without Hydra.
    Raises UserError: there is no such preset."""
    return freeze(KINDS[group], read_preset(group, name))


def of_experiment(name: str) -> tuple[list[Model], list[Finding]]:
    """All that the cells of an experiment ask, each once, and what vLLM lacks to draw their
    policy's completions here.
    Raises UserError: there is no such experiment, or it cannot be composed."""
    if name not in preset_names("experiment"):
        raise UserError(no_preset("experiment", name))
    # Only here: the doctor has to speak where what a sweep imports is missing.
    sweep, vllm = map(import_module, ("experiments.sweep", "experiments.trainer.vllm"))
    cells = sweep.cells_of([f"experiment={name}", "seed=0"])  # seeds ask the same
    return distinct(models_of(cells)), list(vllm.check_installed(cells))


def composed(judge: str, experiment: str | None) -> Finding:
    """Whether one cell can be composed, and where its presets are looked for."""
    words = [] if experiment is None else [f"experiment={experiment}"]
    words += [f"judge={judge}"] if judge else []
    try:
        sweep = import_module("experiments.sweep")
        cell, *_ = sweep.cells_of([*words, "seed=0"])
    except ImportError as error:
        return problem("presets", f"no cell can be composed: {error}", install())
    except UserError as error:
        return problem("presets", f"no cell can be composed: {error}")
    places = ", ".join("those that ship" if each == SHIPPED else str(each) for each in folders())
    parts = [f"{part}={getattr(cell.config, part).name}" for part in ("judge", "policy", "task")]
    return ok("presets", f"of {places}; a cell composes: {' '.join(parts)}")


def distinct(models: Sequence[Model]) -> list[Model]:
    """Those that differ in their name or in how they are reached."""
    return list({(each.role, each.name, server_identity(each)): each for each in models}.values())


def keys(models: Sequence[Model]) -> Finding:
    """Which variables hold the keys of the named models; of all presets where none is named."""
    if models:
        by_variable = {
            each.endpoint.api_key_env: each for each in models if each.endpoint.api_key_env
        }
        unset = [name for name, each in by_variable.items() if not read_key(each.endpoint)]
        if unset:
            first = unset[0]
            return problem("keys", f"not set: {', '.join(unset)}", f"export {first}=...")
        return ok("keys", f"set: {', '.join(by_variable)}" if by_variable else "none is needed")
    names = sorted({name for group in KINDS for name in _variables(group)})
    unset = {name for name in names if not os.environ.get(name, "").strip()}
    states = [f"{name} is {'not set' if name in unset else 'set'}" for name in names]
    return ok("keys", f"{', '.join(states) or 'none'} (the presets with a key)")


def _variables(group: str) -> list[str]:
    models = [load(group, name) for name in preset_names(group) if name != "base"]
    return [each.endpoint.api_key_env for each in models if each.endpoint.api_key_env]


def endpoints(models: Sequence[Model], remote: bool) -> list[Finding]:
    """Whether what is named takes a connection: on this machine, elsewhere only where asked to."""
    if not models:
        return [ok("endpoints", "none named; to check some, type judge=NAME or experiment=NAME")]
    with ThreadPoolExecutor(max_workers=16) as pool:
        return list(pool.map(lambda each: _endpoint(each, remote), models))


def _endpoint(model: Model, remote: bool) -> Finding:
    what, url = f"{model.role} {model.name}", redact(model.endpoint.url)
    if url.startswith("asgi:"):
        return ok(what, "inside the process itself")
    address = _address(model.endpoint.url)
    if address is None:
        return problem(
            what,
            f"the address{shown_place(model.endpoint.url)} is none",
            f"{model.role}.endpoint.url=http://HOST:PORT/v1",
        )
    if address[0] not in LOCAL and not remote:
        return note(what, f"{url}, not checked", "endpoints=true checks it too")
    try:
        socket.create_connection(address, timeout=CONNECT_S).close()
    except OSError as error:
        why = error.strerror or type(error).__name__
        if model.serve.auto:
            return note(what, f"{url} does not answer yet; the sweep starts it")
        start = model.endpoint.start_command or f"judgedrift check judge={model.name}"
        return problem(what, f"{url} does not answer ({why})", start)
    return ok(what, f"{url} takes connections")


def _address(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname and port else None


def served_here(models: Sequence[Model]) -> str:
    """``gpu`` or ``cpu`` where a named model is served on this machine by vLLM, else empty."""
    for each in models:
        address = _address(each.endpoint.url)
        if each.serve.model and address is not None and address[0] in LOCAL:
            return each.serve.device
    return ""
