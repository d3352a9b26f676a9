"""A service as a detached actor on a Ray cluster: the same `Keeper`, on a node that Ray finds.

The actor is named after the service, outlives whoever started it, and is started on another node
where its own is lost. Cells need no Ray: they find it by the book in the runs folder. No key goes
through Ray.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

from judges.serving.book import Book, Holder, is_wide, service_of
from judges.serving.keeper import Keeper
from judges.serving.server import STOP_S
from study.config.schema import Model
from study.errors import UserError
from study.system.files import first_line
from study.system.installed import install, path_for_children

NAMESPACE = "judgedrift"
RESTARTS = 3
"""How often Ray starts the actor again."""


class ServiceActor:
    """Keeps a service in a thread, until it is stopped or nothing of it can be kept.

    Args:
        model: the judge or executor that is served.
        runs_dir: the folder that all nodes share.
        port: the first that is tried.
    """

    def __init__(self, model: Model, runs_dir: Path, port: int) -> None:
        import ray

        context = ray.get_runtime_context()
        self._actor = context.current_actor
        kept_by = f"ray {context.gcs_address}"  # of which there is one actor of this name
        self._keeper = Keeper(model, runs_dir, port=port, kept_by=kept_by)
        self._start_ended = threading.Event()
        """It answers, or it is known why not."""
        self._error: UserError | None = None
        threading.Thread(target=self._keep, name="keeper").start()

    def _keep(self) -> None:
        import ray

        try:
            print(self._keeper.keep(lambda *_: self._start_ended.set()), flush=True)
        except UserError as error:
            print(error, flush=True)
            if not self._start_ended.is_set():
                self._error = error
                self._start_ended.set()
                return  # whoever waits is told, and ends the actor
        ray.kill(self._actor, no_restart=True)

    def ready(self) -> str:
        """Wait until every replica answers; empty, or why the service could not be started."""
        self._start_ended.wait()
        return str(self._error or "")

    def state(self) -> tuple[Book | None, list[Holder]]:
        """The book, and the living users."""
        service = self._keeper.service
        return service.read(), list(service.users())


def start_actor(model: Model, runs_dir: Path, port: int) -> None:
    """Start the service of a model on the cluster of RAY_ADDRESS, or join the actor that starts it,
    and wait until it answers.
    Raises UserError: Ray or its cluster is missing, no node has the GPUs, or it cannot be served.
    """
    serve, role = model.serve, model.role
    if not is_wide(model):
        raise UserError(
            f"on=ray serves from any node with room, but without {role}.serve.bind a server"
            f" answers only its own node. Type {role}.serve.bind=0.0.0.0."
        )
    ray = _connected_ray()
    gpus = serve.tensor_parallel * serve.replicas if serve.device == "gpu" else 0
    most = max(node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"])
    if most < gpus:
        raise UserError(
            f"{role}={model.name} needs {gpus} GPUs of one node ({serve.replicas} replicas of"
            f" {serve.tensor_parallel}), but the largest node of the cluster has {most:g}. Give"
            f" fewer replicas, or {role}.serve.tensor_parallel=..."
        )
    service = service_of(model, runs_dir)
    options = ray.remote(ServiceActor).options(
        name=service.name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=RESTARTS,
        max_concurrency=4,
        num_cpus=1,
        num_gpus=gpus,
        runtime_env={"env_vars": path_for_children()},
    )
    actor: Any = options.remote(model, runs_dir.absolute(), port)
    try:
        problem = ray.get(actor.ready.remote(), timeout=serve.start_timeout_s + STOP_S)
    except ray.exceptions.RayError as error:
        problem = (
            f"The actor {service.name} failed to serve ({type(error).__name__}:"
            f" {str(error).strip().splitlines()[-1]}). Type `ray list actors`, and read the logs"
            f" in {service.folder}."
        )
    if problem:
        ray.kill(actor, no_restart=True)
        raise UserError(problem)


def _connected_ray() -> Any:
    """The package Ray, connected to the cluster of RAY_ADDRESS.
    Raises UserError: Ray is not installed, or no cluster answers."""
    try:
        import ray
    except ImportError:
        raise UserError(
            f"on=ray needs Ray, which is not installed here. Type {install('ray')}, or leave"
            " on=ray out to serve from this host."
        ) from None
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    try:
        if not address:
            raise ValueError("it is not set")
        if port.isdecimal() and "/" not in host:  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(namespace=NAMESPACE, log_to_driver=False)
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        raise UserError(
            f"No Ray cluster answers at RAY_ADDRESS={address} ({first_line(error)}). Type `ray"
            " start --head` on one node and `export RAY_ADDRESS=HOST:6379` here, or leave on=ray"
            " out to serve from this host."
        ) from None
    return ray
