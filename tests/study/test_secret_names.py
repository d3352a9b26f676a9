"""Names, addresses and command lines that give a secret away, and those that do not."""

import pytest

from study.config import override_errors as causes
from study.system.secret_names import (
    FIELDS,
    FROM_ENVIRONMENT,
    has_key_in_path,
    is_secret_name,
    is_secret_value,
    is_variable_name,
    looks_drawn,
    may_hold_key,
    secret_in_command,
    shown_place,
    unfit_argument,
)

CANARY = "zq7canary0value9"
TELLING = [
    "curl -u me:swordfish http://h/x", "curl -ume:swordfish http://h/x",
    "curl --user me:swordfish h", "curl -H X-Key:swordfish h", "curl -HX-Key:swordfish h",
    "curl -H 'X-Key: swordfish' h", "wget --header=X-Key:swordfish h",
    "sshpass -p swordfish ssh host vllm", "sshpass -pswordfish ssh host vllm",
    "ssh host 'sshpass -p swordfish ssh other'", "sh -c 'curl -u me:swordfish h'",
    "mysql -pswordfish db", "docker login -p swordfish", "env MY_TOKEN=swordfish serve",
    "serve --api-key swordfish", "scp file me:swordfish@host", f"curl http://h/{CANARY}/x",
    "hf auth login swordfish && serve", "aws configure set aws_secret_access_key swordfish",
    "set -x HF_TOKEN swordfish", "export X_PASS=swordfish", "curl -b session=swordfish h",
    "openssl enc -passin pass:swordfish", f"curl --oauth2-bearer {CANARY} h",
    "curl -sSu me:swordfish h", "SSHPASS=swordfish ssh h", "unzip -P swordfish x.zip",
    "smbclient -U me%swordfish //h/s", "ngrok config add-authtoken swordfish",
    f"jq --arg token {CANARY} . x", "curl --oauth2-bearer swordfish h", f"serve -key {CANARY}",
    f"""curl -d '{{"token": "{CANARY}"}}' h""", "tailscale up --authkey swordfish",
    "serve --key swordfish", "http -a me:swordfish h",
]  # fmt: skip
HARMLESS = [
    "",
    "vllm serve Qwen/Qwen3-32B --port 8000 --max-model-len 4096",
    "make vllm-cpu && judgedrift serve judge=smollm2-135m",
    "export VLLM_API_KEY=$KEY; vllm serve m",
    "docker run --gpus all -u 1000:1000 -p 8000:8000 -e HF_TOKEN=$HF_TOKEN vllm/vllm-openai",
    "ssh -L 8000:localhost:8000 me@host",
    "curl -H 'Authorization: Bearer $KEY' -H 'Content-Type: application/json' http://h/v1",
    "curl -u me:$PASSWORD http://h/v1",
    "wandb login && serve",
    "wandb login $KEY; set -e; set -o pipefail",
    "srun -u --gres=gpu:1 vllm serve m",
    "rsync -a me:x you@h:/d",
    "curl --key client.pem --cacert /etc/token/ca.pem h",
    "serve --tokenizer mistral --token ~/.token",
    "rsync -aH gpu01:/data /d && date -u +%Y && ls -lu",
    """vllm serve m --hf-overrides '{"stop_token": "x1234567", "max_position_embeddings": 8}'""",
    "git clone https://h/o/r.git && git checkout 9b1e2f3a4c5d6e7f8091a2b3c4d5e6f708192a3b",
    "export SINGLE_PASS=1 MAX_TOKENS=20000000",
]


@pytest.mark.parametrize("command", TELLING)
def test_a_command_with_a_secret_is_known(command: str) -> None:
    secret = secret_in_command(command)
    assert secret and "swordfish" not in secret and CANARY not in secret
    assert unfit_argument(command)


def test_a_login_takes_a_secret_and_a_prompt_of_code_is_none() -> None:
    assert secret_in_command("wandb login swordfish") == "a secret behind login"
    path = "/home/me/experiment20250101/code.txt"
    assert not is_secret_value("code", path) and is_secret_value("code", path, sent=True)


@pytest.mark.parametrize("command", HARMLESS)
def test_a_command_that_looks_its_secrets_up_holds_none(command: str) -> None:
    assert secret_in_command(command) == ""


@pytest.mark.parametrize(
    "command",
    [
        "", "./tell-me.sh", "mail -s done me@example.org", "python3 -c pass",
        "'/opt/my tools/tell.py' /data/abc123def456789/out.json gpu1 --channel=ml",
        "python scripts/tell.py",
    ],
)  # fmt: skip
def test_a_program_with_words_and_paths_tells_nothing(command: str) -> None:
    assert unfit_argument(command) == 0


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("./tell.sh done a:b", 2), ("curl hooks.slack.com/services/T0/B0/x", 1),
        ("apprise tgram://a/b", 1), (f"./tell.sh {CANARY}", 1), ("./tell.sh -p swordfish", 2),
        ("./tell.sh --key=swordfish", 1), ("KEY=swordfish ./tell.sh", -1),
    ],
)  # fmt: skip
def test_the_argument_that_may_be_a_secret_is_named(command: str, place: int) -> None:
    assert unfit_argument(command) == place


@pytest.mark.parametrize(
    "address",
    [
        f"http://h/{CANARY}/v1",
        f"https://h/v1/{CANARY}",
        "https://h/v1/key/swordfish",
        "https://h/token/swordfish/v1",
        "https://h/keys/Correct-Horse-Battery",
        "https://h/v1;token=swordfish",
        "http://h/%7Aq7canary0value9/v1",
        "http://h/%257Aq7canary0value9/v1",
        f"http://h/v1?k={CANARY}",
        f"http://h/v1?{CANARY}",
        f"http://h/v1#{CANARY}",
        f"http://h:{CANARY}/v1",
        "https://api.telegram.org/bot123456789:AAEabcdefGHIJKLmnop/sendMessage",
    ],
)
def test_a_key_in_a_path_is_known(address: str) -> None:
    assert has_key_in_path(address)


@pytest.mark.parametrize(
    "address",
    [
        "https://api.openai.com/v1",
        "https://x.openai.azure.com/openai/deployments/gpt-4o-mini-2024-07-18",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "https://h/v1/projects/my-project/endpoints/1234567890123456789",
        "http://127.0.0.1:8000/v1",
        "http://h/token/v1",
        "https://h/v1?api-version=2024-10-21-preview&x=a%2Fb#top",
        "https://x4k2j9s8d7f6g5-8000.proxy.runpod.net:443/v1",
        "http://[fe80::1]:8000/v1",
        "http://h/v1/MixtralInstructChatModelServer1",
        "https://api.runpod.ai/v2/x4k2j9s8d7f6g5/openai/v1",
        "https://gateway.ai.cloudflare.com/v1/0123456789abcdef0123456789abcdef/gw/openai",
        "s3://bucket/abc123def456789xyz/runs",
        "sqlite:////tmp/abc123def456789xyz/mlflow.db",
    ],
)
def test_ordinary_paths_hold_no_key(address: str) -> None:
    assert not has_key_in_path(address)


def test_which_names_and_keys_may_hold_a_secret() -> None:
    for name in ("apikey2", "api_key_2", "API-Keys", "password1", "x-access-token-v2"):
        assert is_secret_name(name)
    for name in ("key2", "token1", "apikey_prod", "secretValue"):
        assert is_secret_name(name, sent=True) and not is_secret_name("max_tokens", sent=True)
    for name in ("AZUREOPENAI4KEY2", "OPENAIAPIKEY2024PRODUCTION", "SLACKNOTIFYHOOK1", "my_key"):
        assert is_variable_name(name)
    for key in (CANARY, "a8f3c1d2e4b5", "JBSWY3DPEHPK3PXP", "A-B"):
        assert not is_variable_name(key)
    for key in ("judge.endpoint.url", "+judge.endpoint.extra_body.x.y", "judge.endpoint",
                "judge.endpoint.replicas.0", "sweep.notify", "tracking.uri"):  # fmt: skip
        assert may_hold_key(key)
    for key in ("seed", "judge.endpoint.max_concurrency", "task.path", "study", "runs_dir"):
        assert not may_hold_key(key)


@pytest.mark.parametrize(
    ("name", "value", "sent"),
    [("auth_header", CANARY, True), ("openai_key", CANARY, True), ("jwt", "swordfish", True),
     ("mytoken", CANARY, True), ("passcode", "swordfish", True), ("X-Token", "swordfish", True),
     ("key", CANARY, False), ("api_key", "x", False)],
)  # fmt: skip
def test_a_name_and_its_value_give_a_secret_away(name: str, value: str, sent: bool) -> None:
    assert is_secret_value(name, value, sent)


@pytest.mark.parametrize(
    ("name", "value"),
    [("token", "1"), ("code", "python"), ("signature", "v1"), ("prompt_cache_key", "study-2024-1"),
     ("stop_token", "<|extra_id_00|>"), ("image_token", "<image>"), ("user", "alice2024"),
     ("sort_key", "created_at"), ("tokenizer", "mistral-7b-v03")],
)  # fmt: skip
def test_a_name_with_another_value_gives_nothing_away(name: str, value: str) -> None:
    assert not is_secret_value(name, value, sent=True)


def test_what_looks_drawn_and_what_is_plainly_a_place() -> None:
    assert all(map(looks_drawn, (CANARY, "a" * 24, "aBcDeFgHiJkLmN")))
    ordinary = ("gpt-4o-mini-2024-07-18", "compatible-mode", "20240718123456")
    assert not any(map(looks_drawn, ordinary))
    for text in ("./mlruns", "mlruns", "ftp://x/y", "localhost:8000", "bucket/mlflow"):
        assert shown_place(text) == f"={text}"
    for text in (CANARY, "me:swordfish", "http://me:swordfish@h", f"bucket/{CANARY}", "swordfish1"):
        assert "not shown" in shown_place(text) and text not in shown_place(text)


def test_every_field_of_the_tables_is_one_of_the_schema() -> None:
    keys = causes.keys()
    assert {name for name in FROM_ENVIRONMENT if name.split(".")[0] not in ("hydra", "data")} <= {
        *keys
    }
    last = {key.rpartition(".")[2] for key in keys}
    for kind in ("commands", "addresses", "variables"):
        assert set(FIELDS[kind]) <= last
