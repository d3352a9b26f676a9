"""Keys, verdicts, calls and hits of sessions are those of the code before sessions overlapped."""

import json

import pytest

from tests.judges.recorded import FILE, judges, twice


@pytest.mark.parametrize("name", judges())
def test_a_session_gives_what_is_on_record(name: str) -> None:
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    assert recorded.keys() == judges().keys()
    assert twice(name) == recorded[name]
