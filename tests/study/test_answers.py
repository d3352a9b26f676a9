import pytest

from study.answers import answer_of


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("  plain ", "plain"),
        ("<think>a</think> b", "b"),
        ("<think>a</think> b <think>c</think> d", "d"),
        ("a </think> b", "b"),
        ("<think>never closed", None),
        ("<think>a</think> b <think> again", None),
        ("", ""),
    ],
)
def test_answer_of(completion, answer):
    assert answer_of(completion) == answer
