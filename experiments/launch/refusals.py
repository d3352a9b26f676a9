"""What a sweep still starts once an endpoint has refused a key, an account or a model."""

from __future__ import annotations

from experiments.preflight import judges_of
from study.cells import Cell
from study.schema import Judge


class Refusals:
    """Judges whose endpoint refused key, account or model: no further cell that asks them starts.

    A judge is its address, its key and its model here, since those are what is refused.
    """

    def __init__(self) -> None:
        self.left: list[str] = []
        """Names of the cells that were not started."""
        self._refused: dict[tuple[str, str, str], str] = {}

    def add(self, cell: Cell, error: str) -> None:
        """A cell of which ``error`` says that a judge was refused."""
        asked = [judge for judge in judges_of([cell]) if judge.endpoint.url.startswith("http")]
        named = [judge for judge in asked if judge.endpoint.url in error]
        for judge in named or asked:
            self._refused[_account(judge)] = judge.name

    def covers(self, cell: Cell) -> bool:
        """Whether the cell asks a judge that was refused; it is then noted as left."""
        refused = any(_account(judge) in self._refused for judge in judges_of([cell]))
        if refused:
            self.left.append(cell.name)
        return refused

    def paragraph(self) -> str:
        """What was not started, why, and what to type."""
        names = ", ".join(dict.fromkeys(self._refused.values()))
        return (
            f"The endpoint of {names} refused its key, its account or its model, so "
            f"{len(self.left)} cells that ask it were not started and stay as they were: "
            f"{', '.join(self.left)}. Put the key, the account or judge.endpoint.model right, see "
            f"that it answers with python -m judges.check, and run the same command again."
        )


def _account(judge: Judge) -> tuple[str, str, str]:
    endpoint = judge.endpoint
    return endpoint.url, endpoint.api_key_env or "", endpoint.model
