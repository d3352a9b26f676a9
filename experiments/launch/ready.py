"""What must be there and answer before cells are trained; a plan asks for none of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from experiments.trainer.processes import check_processes
from experiments.trainer.vllm import check_vllm
from judges.ask.asker import check_endpoint
from judges.ask.connections import open_to_read
from judges.ask.identity import judge_id
from judges.ask.replies import merged_stores
from judges.ask.session import Session
from study.cell.cells import Cell, executors_of, judges_of


def check_machine(todo: Sequence[Cell], elsewhere: bool) -> None:
    """The GPUs, packages and servers are there that the cells are trained by.

    Args:
        todo: the cells that are about to be trained.
        elsewhere: another launcher runs them, perhaps on other machines.
    """
    if not elsewhere:
        check_processes(todo)
        for path in merged_stores(todo[0].config.store):
            open_to_read(path).close()
    check_vllm(todo, elsewhere)


def preflight(todo: Sequence[Cell], reached: Callable[[Any], Any] = lambda model: model) -> None:
    """Every judge of the sweep answers, with its key, before anything is trained; ``reached`` says
    how a model is reached from here."""
    for judge in {judge_id(judge): reached(judge) for judge in judges_of(todo)}.values():
        if judge.endpoint.url.startswith("http"):
            with Session(judge, None) as session:
                session.check()
    for executor in {repr(each): reached(each) for each in executors_of(todo)}.values():
        if executor.endpoint.url.startswith("http"):
            check_endpoint(executor)
