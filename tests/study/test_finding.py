"""A stage says its notes, and runs no check behind the first problem."""

from collections.abc import Iterator

import pytest

from study.errors import UserError
from study.finding import Finding, note, ok, problem, stop_at_problem


def test_a_stage_ends_with_its_first_problem(capsys) -> None:
    later: list[str] = []

    def stage() -> Iterator[Finding]:
        yield ok("disk", "much is free")
        yield note("memory", "a step may not fit. Type less=1")
        yield problem("device", "device=gpu is not known. Type device=cpu")
        later.append("asked")

    with pytest.raises(UserError, match="device=gpu is not known"):
        stop_at_problem(stage())
    assert capsys.readouterr().err == "a step may not fit. Type less=1\n"
    assert later == []
