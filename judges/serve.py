"""Serves a judge: ``python -m judges.serve judge=qwen3-32b`` starts vLLM and gets one verdict;
``judge=sim-verbose`` serves a simulated judge over a real socket. ``executor=NAME`` serves what the
operators of workflow programs ask, in the same two ways.

With ``detached=true`` or ``judge.serve.bind=HOST`` vLLM is a service: it is written down in the
runs folder, where the cells of other nodes find it. ``status=true`` lists all services.

Any OpenAI client can ask either, in the same way as a study does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from judges.check import probe
from judges.endpoint.complete import chat_body, complete_all
from judges.scorers.app import computed_app
from judges.serving import lease, server, vllm_command
from judges.serving.actor import start_actor
from judges.serving.book import ELSEWHERE, LOOPBACK, is_wide, service_of, services
from judges.serving.keeper import Keeper, Taken
from judges.serving.server import ANY_PORT, LOCAL, Server
from judges.serving.service import end_service, service_rows, use
from judges.simulated.operators import operators_app
from study.cli import command, option, overrides, preset
from study.config.bounds import Choice, Number
from study.config.compose import load_executor, load_presets, preset_names
from study.config.schema import Judge, Model, Task
from study.errors import UserError
from study.screen import print_table, visible
from study.system import stopping
from study.tasks import oracle
from study.verdict import Outcome

SIMULATED_PORT = 8100


@dataclass(frozen=True)
class Options:
    """The judge or executor that is served, where, and for how long."""

    judge: str | None = preset("judge", None, required=False)
    executor: str | None = preset("executor", None, required=False)
    task: str | None = option("preset of the task whose truth a simulated model uses")
    host: str | None = option("address to listen on; 127.0.0.1 if the endpoint is on another host")
    port: int | None = option(
        "port to listen on, 0 for any free one; left out, that of the judge's endpoint,"
        f" {SIMULATED_PORT} for a simulated judge",
        legal=Number(low=0, high=65535),
    )
    print_only: bool = option("print the command that would start the server", False)
    detached: bool = option("keep serving after this command exits", False)
    on: str = option(
        "where a detached service runs: a process of this host, or an actor on the Ray cluster of"
        " RAY_ADDRESS",
        "local",
        legal=Choice(("local", "ray")),
    )
    status: bool = option("list the services of runs_dir: health, users, age, replicas", False)
    stop: bool = option("stop this model's service, or a server left by a killed sweep", False)
    service: str | None = option("with stop: name of the service, as status=true shows it")
    replicas: int | None = option("number of servers, on consecutive ports; judge.serve.replicas")
    runs_dir: Path = option("folder that holds the studies and the servers' logs", Path("runs"))
    overrides: list[str] = overrides("judge.", "executor.", "task.")


def serve(options: Options) -> None:
    """Serve until interrupted; print the address once the judge answers.
    Raises UserError: there is nothing to serve, or this machine cannot serve it."""
    if options.status:
        show_services(options.runs_dir)
        return
    if options.service is not None:
        stop_service(options)
        return
    model, task = _load(options)
    if not model.computed:
        serve_vllm(model, options)
    elif options.print_only or options.stop or options.detached:
        raise UserError(
            f"{model.role}={model.name} is computed here: no other process serves it, so"
            " print_only, detached and stop have no meaning. Leave them out."
        )
    else:
        serve_simulated(model, task, options)


def _load(options: Options) -> tuple[Model, Task]:
    """The judge or the executor that is to be served. Raises UserError: none or both are given."""
    if (options.judge is None) == (options.executor is None):
        raise UserError(
            "judges.serve serves one model: a judge or an executor. Type judge=NAME with one of"
            f" {', '.join(preset_names('judge'))}, or executor=NAME with one of"
            f" {', '.join(name for name in preset_names('executor') if name != 'none')}."
        )
    settings = list(options.overrides)
    role = "judge" if options.judge is not None else "executor"
    if options.replicas is not None:
        settings.append(f"{role}.serve.replicas={options.replicas}")
    if options.judge is not None:
        return load_presets(options.judge, options.task or "instruct-mini", settings)
    return load_executor(options.executor or "", options.task or "workflow-mini", settings)


def show_services(runs_dir: Path) -> None:
    """Print all services of a runs folder."""
    if lines := service_rows(runs_dir):
        print_table(lines, f"Services in {runs_dir / 'servers'}")
    else:
        print(f"There is no service in {runs_dir / 'servers'}.")


def stop_service(options: Options) -> None:
    """Stop a service by its name. Raises UserError: there is none, or it is in use."""
    by_name = {service.name: service for service in services(options.runs_dir)}
    service = by_name.get(options.service or "")
    if service is None or not options.stop:
        raise UserError(
            f"service={options.service} only names a service to stop. In"
            f" {options.runs_dir / 'servers'} run: {', '.join(by_name) or 'none'}. Type stop=true"
            " service=NAME."
        )
    print(end_service(service))


def serve_simulated(model: Model, task: Task, options: Options) -> None:
    """Serve a simulated model in this process, until interrupted.
    Raises UserError: the address cannot be used."""
    import uvicorn

    if isinstance(model, Judge):
        app = computed_app(model, oracle(task))
    else:
        assert model.simulated is not None
        name = model.endpoint.model or model.name
        app = operators_app(model.simulated, name, oracle(task))
    port = SIMULATED_PORT if options.port is None else options.port
    listener = server.listen(options.host or "127.0.0.1", port, ANY_PORT)
    host, port = listener.getsockname()[:2]
    host_text = f"[{host}]" if ":" in host else host
    print(f"{model.name} answers at http://{host_text}:{port}/v1 (stop it with Ctrl-C)", flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


def serve_vllm(model: Model, options: Options) -> None:
    """Start vLLM, wait until it is healthy, get one verdict from each replica, and keep serving.
    Raises UserError: it cannot be started, serves another model, cannot model, or ended by itself.
    """
    if options.host not in (None, *LOOPBACK):
        model = dataclasses.replace(
            model, serve=dataclasses.replace(model.serve, bind=options.host)
        )
    if model.serve.bind == ELSEWHERE:
        raise UserError(
            f"{model.role}.serve.bind={ELSEWHERE} is for a sweep, which then uses another node's"
            f" server. To serve it from here, type {model.role}.serve.bind=0.0.0.0."
        )
    host, port = _address(model, options)
    if options.stop:
        wide = dataclasses.replace(model, serve=dataclasses.replace(model.serve, bind="0.0.0.0"))
        for each in (model, wide):
            service = service_of(each, options.runs_dir)
            if service.read() is not None:
                print(end_service(service))
                return
        print(lease.sweep_up(port, options.runs_dir))
        return
    if options.print_only:
        print("\n".join(vllm_command.shell_commands(model, model.serve.bind or host, port)))
        return
    if options.detached or options.on == "ray":
        detach(model, port, options)
        return
    if threading.current_thread() is threading.main_thread():
        stopping.take_signals()
    if is_wide(model):
        ends = Keeper(model, options.runs_dir, port=port).keep(_announce)
        print(f"{model.name} is no longer served: {ends}", flush=True)
        return
    servers: list[Server] = []
    try:
        servers = server.start(model, host, port, options.runs_dir)
        for each in servers:
            print(f"{model.name} starts as process {each.pid}; its log is {each.log}", flush=True)
        _announce(model, servers, server.wait_ready(model, servers))
        while all(map(server.alive, servers)):
            time.sleep(server.POLL_S)
        server.wait_ready(model, servers, timeout_s=0.0)  # says how it ended, with its log
    finally:
        server.stop(servers)


def detach(model: Model, port: int, options: Options) -> None:
    """Start a service that outlives this process, and get one verdict from each replica.
    Raises UserError: it is served already, or cannot be."""
    service = service_of(model, options.runs_dir)
    book = service.read()
    if book is not None and service.owned(book):
        raise Taken(service, book)
    local = options.on == "local"
    if not local:
        start_actor(model, options.runs_dir, port)
    began = time.monotonic()
    with use(model, options.runs_dir, starts=local, while_used=False, port=port) as reached:
        urls = (reached.endpoint.url, *reached.endpoint.replicas)
        logs = str(service.folder)
        _announce(
            reached,
            [Server(pid=0, started="", url=url, log=logs) for url in urls],
            time.monotonic() - began,
        )
    where = f" runs_dir={options.runs_dir}" if options.runs_dir != Path("runs") else ""
    stops = f"python -m judges.serve stop=true service={service.name}{where}"
    print(f"stop it with: {stops}", flush=True)


def _announce(model: Model, servers: Sequence[Server], seconds: float) -> None:
    """Say where each replica answers, that it gives a verdict, and how to ask it."""
    for each in servers:
        print(f"{model.name} answers at {each.url} after {seconds:.0f} s", flush=True)
        _probe(model, each)
    print(_how_to_ask(model, servers), flush=True)


def _address(model: Model, options: Options) -> tuple[str, int]:
    """Where to listen: what was typed, else what the preset's endpoint says of this machine."""
    parts = urlsplit(model.endpoint.url)
    host = options.host or (parts.hostname if parts.hostname in LOCAL else None) or "127.0.0.1"
    port = options.port
    if port is None:
        port = parts.port if parts.hostname in LOCAL and parts.port else 8000
    if port == 0:
        port = server.free_row(host, model.serve.replicas)
    return host, port


def _probe(model: Model, each: Server) -> None:
    """One verdict or one reply from one replica, printed.
    Raises UserError: the replica gave no reply at all."""
    endpoint = dataclasses.replace(model.endpoint, url=each.url, replicas=[])
    if not isinstance(model, Judge):
        body = chat_body(endpoint, model.sampling, [{"role": "user", "content": "Say yes."}])
        (fetched,) = complete_all(endpoint, [body])
        if not fetched.replies:
            raise UserError(
                f"The server at {each.url} is healthy and gives no reply: {fetched.outcome},"
                f" {fetched.reason}. Its log is {each.log}."
            )
        print(f"a probe was answered in {fetched.latency_s:.2f} s", flush=True)
        return
    verdict = probe(dataclasses.replace(model, endpoint=endpoint))
    if verdict.outcome is Outcome.scored:
        print(f"a probe was scored {verdict.score:.3f} in {verdict.latency_s:.2f} s", flush=True)
        return
    if verdict.text or verdict.reasoning:  # it talks, and only the grading could not use it
        why = visible(f"{verdict.outcome}, {verdict.reason}")
        print(f"a probe was not scored: {why}", file=sys.stderr)
        return
    raise UserError(
        f"The server at {each.url} is healthy and gives no verdict: {verdict.outcome},"
        f" {verdict.reason}. Its log is {each.log}."
    )


def _how_to_ask(model: Model, servers: Sequence[Server]) -> str:
    words = [f"{model.role}={model.name}"]
    if is_wide(model):
        words += [f"{model.role}.serve.auto=true", f"{model.role}.serve.bind={ELSEWHERE}"]
        return f"ask it from any node, with the same serve settings: {' '.join(words)}"
    if model.endpoint.url != servers[0].url:
        words.append(f"{model.role}.endpoint.url={servers[0].url}")
    if len(servers) > 1:
        more = ",".join(each.url for each in servers[1:])
        words.append(f"'{model.role}.endpoint.replicas=[{more}]'")
    return f"ask it with {' '.join(words)} (stop it with Ctrl-C)"


@command("judges.serve judge=sim-verbose port=8100", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 served until Ctrl-C, 2 for a user's error."""
    with contextlib.suppress(KeyboardInterrupt):
        serve(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
