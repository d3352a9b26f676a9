"""What must be there and answer before cells are trained; a plan asks for none of it. Each check is
as `study.finding` says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from experiments.plan.preflight import check_study, check_writable
from experiments.trainer.processes import check_processes
from experiments.trainer.vllm import check_vllm
from judges.ask.asker import check_endpoint
from judges.ask.connections import open_to_read
from judges.ask.identity import judge_id
from judges.ask.replies import merged_stores
from judges.ask.session import Session
from study.cell.cells import Cell, embedders_of, executors_of, judges_of
from study.finding import Finding


def check_machine(todo: Sequence[Cell], elsewhere: bool) -> Iterator[Finding]:
    """The GPUs, packages and servers are there that the cells are trained by.

    Args:
        todo: the cells that are about to be trained.
        elsewhere: another launcher runs them, perhaps on other machines.
    """
    if not elsewhere:
        yield from check_processes(todo)
        for path in merged_stores(todo[0].config.store):
            open_to_read(path).close()
    yield from check_vllm(todo, elsewhere)


def check_start(
    todo: Sequence[Cell], asking: Sequence[Cell], reached: Callable[[Any], Any]
) -> Iterator[Finding]:
    """What may have changed while judges were served: the study is still this one, its folder takes
    files, and every judge, executor and embedder answers, with its key.

    Args:
        todo: the cells of the sweep.
        asking: those that are about to ask.
        reached: how a model is reached from here.
    """
    study_dir = todo[0].folder.study_dir
    yield from check_study(study_dir, todo, todo[0].config.factors)
    yield from check_writable(study_dir.parent)
    for judge in {judge_id(judge): reached(judge) for judge in judges_of(asking)}.values():
        if judge.endpoint.url.startswith("http"):
            with Session(judge, None) as session:
                session.check()
    others = [*executors_of(asking), *embedders_of(asking)]
    for model in {repr(each): reached(each) for each in others}.values():
        if model.endpoint.url.startswith("http"):
            check_endpoint(model)
