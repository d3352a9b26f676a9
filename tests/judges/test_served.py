"""Which names of a model are the asked one's, and which are another model's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.endpoint.chat_completions import is_requested_model

SAME = [
    ("m", "m"), ("Qwen3-32B", "qwen3-32b"), ("m", ""), ("", "anything"),
    ("gpt-4o", "gpt-4o-2024-08-06"), ("gpt-4", "gpt-4-0613"), ("claude", "claude-20241022"),
    ("mistral-large-latest", "mistral-large-2411"), ("mistral-large-latest", "mistral-large"),
    ("gpt-4o", "openai/gpt-4o"), ("openai/gpt-4o", "gpt-4o"), ("gpt", "openai/gpt-2024-08-06"),
    ("openrouter/openai/gpt-4o", "openai/gpt-4o"), ("qwen3-32b", "/models/qwen3-32b"),
    ("/models/qwen3-32b", "/models/qwen3-32b"), ("qwen3", "qwen3:latest"),
]  # fmt: skip
OTHER = [
    ("gpt-4o", "gpt-4o-mini"), ("gpt-4o-mini", "gpt-4o"), ("gpt-4o", "gpt-4o-mini-2024-07-18"),
    ("gpt-4o-2024-05-13", "gpt-4o-2024-08-06"), ("gpt-4o-2024-08-06", "gpt-4o"),
    ("meta-llama/Llama-3-8B", "someone/Llama-3-8B"), ("qwen3-32b", "3-32b"), ("m", "mm"),
    ("qwen3-32b", "qwen3-32b-awq"), ("llama3-70b", "llama3-70b-8192"), ("m", "m-9999"),
    ("m", "m and n"), ("m", "/"), ("m", " "), ("m", "m-2024-13-01"), ("m", "n-2024-08-06"),
    ("qwen3:8b", "qwen3:4b"), ("m", "m-"), ("m", "-2024-08-06"),
    ("m", "m-\uff12\uff10\uff12\uff14-08-06"),
]  # fmt: skip


@pytest.mark.parametrize(("requested", "served"), SAME)
def test_names_of_the_same_model(requested: str, served: str) -> None:
    assert is_requested_model(requested, served)


@pytest.mark.parametrize(("requested", "served"), OTHER)
def test_names_of_another_model(requested: str, served: str) -> None:
    assert not is_requested_model(requested, served)
    assert is_requested_model(requested, served, [served])
    assert not is_requested_model(requested, served, [served + "x"])


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_name_is_its_own_and_what_stands_behind_it_makes_another(
    requested: str, more: str
) -> None:
    assert is_requested_model(requested, requested)
    assert not is_requested_model("model-" + requested, "model-" + requested + "-x" + more + "x")
