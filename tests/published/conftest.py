"""Where the published data lies: $JUDGEDRIFT_DATA, or shared/data beside the checkout."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def published() -> Callable[..., Path]:
    """``published("alpaca_eval", "leaderboard_v2.csv")`` is its path; skips where it is absent."""

    def find(*parts: str) -> Path:
        path = Path(os.environ.get("JUDGEDRIFT_DATA") or BESIDE).joinpath(*parts)
        if not path.exists():
            pytest.skip(f"no {path}: the published data is no part of this project")
        return path

    return find
