"""What looks like a key is refused and blotted out, and what does not is left alone."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.errors import UserError
from study.system.secrets import redact, refuse_config, refuse_secrets

# Put together here so that no scanner finds a key in this file.
KEYS = [
    "sk-" + "test-canary_0123456789",
    "sk-" + "0123456789abcdef" * 2,
    "hf_" + "AbCdEfGhIjKlMnOpQrStUv",
    "ghp_" + "AbCdEfGhIjKlMnOpQrStUv",
    "github_pat_" + "11ABCDEFG_abcdefghijkl",
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "AIza" + "x" * 35,
    "xoxb-" + "1234567890-abc",
    "Bearer " + "abcdefghijklmnop.qrst",
    "gsk_" + "AbCdEfGhIjKlMnOpQrStUv",
    "xai-" + "AbCdEfGhIjKlMnOpQrStUv",
    "nvapi-" + "AbCdEfGhIj-KlMnOp_QrStUv",
    "r8_" + "AbCdEfGhIjKlMnOpQrStUv",
    "glpat-" + "AbCdEfGhIj-KlMnOp_QrSt",
    "npm_" + "AbCdEfGhIjKlMnOpQrStUv",
    "ya29." + "a0AbCdEfGh-IjKlMnOp_QrStUv",
    "sk_live_" + "AbCdEfGhIjKlMnOpQrStUv",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0" + ".abc_DEF-1234567890xy",
    "pplx-" + "AbCdEfGhIjKlMnOpQrStUv",
    "1234567890:" + "AAEabcdefGHIJKLmnop_qrstu-vw",
    "hooks.slack.com/" + "services/T0000/B0000/AbCdEfGhIjKl",
    *(
        start + "0f1e2d3c4b5a6978" * 4
        for start in (
            "do" + "p_v1_", "shp" + "at_", "ls" + "v2_pt_", "ke" + "y-", "li" + "n_api_",
            "nt" + "n_", "rp" + "a_", "jin" + "a_", "tvl" + "y-", "gls" + "a_", "NRA" + "K-",
            "fig" + "d_", "hv" + "s.", "dp" + ".pt.", "ATAT" + "T3", "xap" + "p-1-A",
        )
    ),
    "PMA" + "K-" + "0f" * 12 + "-" + "0f" * 17,
    "p" + "a-" + "a1B" * 14 + "-",
    "a" + "k-" + "a1B" * 7 + "c",
    "MTI" + "a1B" * 7 + ".Gabc_d." + "x1Y-" * 7,
    "Basic " + "bWU6c3dvcmRmaXNoMQ==",
    "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----",
]  # fmt: skip
HARMLESS = [
    "", "http://127.0.0.1:8000/v1", "https://example.org/v1?at=a:b@c", "Qwen/Qwen3-32B",
    "task-0123456789abcdef0123", "risk-adjusted-and-very-long-words", "DASHSCOPE_API_KEY",
    "the bearer of this letter", "hf_model", "-----BEGIN PUBLIC KEY-----",
    "npm_config and xai-like tools", "the eyJudge of a.b.c", "http://127.0.0.1:8000/a@b",
    "http://[::1]:8000/a@b", "sk-learn-style-judge-7b", "key-value-retrieval-2024-07-18",
    "as-implemented-in-version-2-of-it", "a basic understanding", "ntn_experiment_2_of_the_group",
    "Basic internationalization2", "https://h/?design=0123456789abcdef", "MistralSmall3.model2.x",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_refused_without_being_shown(key: str) -> None:
    for frame in ("{}", "before {} after", "key={}", '"{}"', "a\n{}\nb"):
        texts = [("judge.name", "fine"), ("judge.endpoint.extra_body", frame.format(key))]
        with pytest.raises(UserError) as caught:
            refuse_secrets(texts)
        message = str(caught.value)
        assert "judge.endpoint.extra_body" in message, frame
        assert "api_key_env" in message, frame
        assert key not in message, frame
        assert key[-12:] not in message, frame


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("https://h/token/swordfish/v1", "an address with a key in its path"),
        ("tk7Q" + "9xZr" * 6, "a key in place of an address"),
    ],
)
def test_a_refused_address_is_named_by_where_it_stands(address: str, kind: str) -> None:
    with pytest.raises(UserError) as caught:
        refuse_config({"judge": {"endpoint": {"url": address}}})
    assert str(caught.value).startswith(f"judge.endpoint.url looks like it holds {kind}, and")


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_blotted_out(key: str) -> None:
    assert redact(f"got {key} there") == "got *** there"


def test_passwords_of_urls_and_known_values_are_blotted_out() -> None:
    url = "https://me:swordfish@example.org:8000/v1"
    assert redact(url) == "https://***@example.org:8000/v1"
    with pytest.raises(UserError):
        refuse_secrets([("judge.endpoint.url", url)])
    assert redact("key hunter2 or hunter22", ["hunter2", "hunter22"]) == "key *** or ***"
    assert redact("a cat", ["", "a"]) == "a cat"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://swordfish@example.org/v1", "http://***@example.org/v1"),
        ("http://sword@fish@example.org/v1", "http://***@example.org/v1"),
        ("mysql://me:sword@fish@example.org/db", "mysql://***@example.org/db"),
        ("postgresql://me:sword/fish@example.org/db", "postgresql://***@example.org/db"),
        ("s3://AKEY:sword/fish@bucket/runs", "s3://***@bucket/runs"),
        ("s3://swordfish@bucket/runs", "s3://***@bucket/runs"),
        ("at http://h/v1?a=b&api_key=swordfish&c=d", "at http://h/v1?a=b&***&c=d"),
    ],
)
def test_what_an_address_gives_away_is_blotted_out(address: str, shown: str) -> None:
    assert redact(address) == shown


NASTY = [
    "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "http://", "http://a@", "://:", "bearer ", "?",
    "?token", "sk-", "-----BEGIN PRIVATE KEY----- -", "A", " ", "&api_key=",
    "sk-a", "Basic aA1", "key-0", "Ma1.", "-eyJ", "eyJaaaaaaaaa.", "://:/", "SG.a", "1:AA",
]  # fmt: skip


@pytest.mark.alone
@pytest.mark.parametrize("piece", NASTY)
def test_the_work_grows_with_the_text_and_not_with_its_square(piece: str) -> None:
    """Eight times the text may take a generous three times of eight times as long, in the best of
    three; mostly the first is good enough."""

    def seconds(text: str) -> float:
        began = time.thread_time()
        redact(text)
        return time.thread_time() - began

    small, large = (piece * (length // len(piece)) for length in (20_000, 160_000))
    of_small, of_large = [], []
    for _ in range(3):
        of_small.append(seconds(small))
        of_large.append(seconds(large))
        if min(of_large) < 24 * min(of_small) + 0.05:
            return
    pytest.fail(f"{min(of_large)} s for eight times what takes {min(of_small)} s")


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_texts_pass(text: str) -> None:
    refuse_secrets([("somewhere", text)])
    assert redact(text) == text


@pytest.mark.parametrize("examples", [10, pytest.param(25, marks=pytest.mark.long)])
def test_a_known_value_never_survives(examples: int) -> None:
    """The pattern of a value takes a tenth of a second and more."""

    @settings(max_examples=examples)
    @given(st.text(), st.text(min_size=4), st.text())
    def holds(before: str, secret: str, after: str) -> None:
        assert secret not in redact(before + secret + after, [secret]) or "*" in secret

    holds()


def test_a_private_key_that_breaks_off_is_blotted_out_as_far_as_it_goes() -> None:
    begin = "-----BEGIN " + "PRIVATE KEY-----"
    body = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" * 2] * 3)
    for line_break in ("\n", "\\n"):
        torn = begin + "\n" + body.replace("\n", line_break)
        assert redact(f"got {torn} there") == "got *** there"
    assert redact(f"{begin} is how it starts. [[70]]") == "*** is how it starts. [[70]]"
