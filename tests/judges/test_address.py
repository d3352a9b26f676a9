"""Addresses of models, and what is none."""

import pytest

from judges.endpoint.address import check_address
from study.errors import UserError


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("127.0.0.1:8000/v1", "not a legal address"),
        ("htp://host/v1", "not a legal address"),
        ("http:///v1", "not a legal address"),
        ("http://host:port/v1", "not a legal address"),
        ("http://[::1/v1", "not a legal address"),
        ("", "not a legal address"),
        ("asgi://simulated", "not a legal address"),
        ("https://host/v1/chat/completions", "without /chat/completions"),
        ("https://host/v1/models/", "without /models"),
    ],
)
def test_what_is_no_address_of_a_model_is_refused(url: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        check_address(url)


@pytest.mark.parametrize("url", ["http://host/v1", "https://[::1]:8000/v1/", "http://host:1"])
def test_addresses_of_models_are_legal(url: str) -> None:
    check_address(url)
    check_address("asgi://simulated", in_process=True)
