"""A planted key is refused wherever it can be given, and lies nowhere afterwards.

The canaries look like no key that a pattern knows: it is the place that gives them away.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError

from experiments.sweep import cells_of
from experiments.tracking.store import tracking_uri
from study.config.compose import load_presets
from study.config.schema import Tracking, register
from study.errors import UserError
from study.system.secrets import holds_credentials, refuse_arguments, refuse_config
from tests.commands import run, run_program
from tests.conftest import ROOT

CANARY = "zq7canary0value9"
URLS = [
    f"http://{CANARY}@host/v1",
    f"http://user:{CANARY}@host/v1",
    f"HTTPS://{CANARY}@host/v1",
    f"http://us%65r%3A{CANARY}%40host@host/v1",
    f"http://host/v1?api_key={CANARY}",
    f"http://host/v1?a=b&key={CANARY}",
    f"http://host/v1?access_token={CANARY}",
    f"http://host/v1?api%5Fkey={CANARY}",
    f"http://host/v1?X-Api-Key={CANARY}",
    f"http://host/v1#token={CANARY}",
    f"http://host/v1?sig={CANARY}",
    f"http://host/{CANARY}/v1",
    f"http://host/v1/token/{CANARY}",
    f"s3://AKEY:se/{CANARY}@bucket/runs",
    f"postgresql://me:pa/{CANARY}@host/db",
    f"me:{CANARY}@host:80/v1",
    f"//me:{CANARY}@host/v1",
    f"http:/me:{CANARY}@host/v1",
    f"http:\\\\me:{CANARY}@host/v1",
    f"me%3A{CANARY}%40host/v1",
    f"http://me:{CANARY}\uff20host/v1",
    f"http://host/v1?x=%7B%22token%22%3A%22{CANARY}%22%7D",
    f"mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3D{CANARY}",
]
ARGUMENTS = [
    *(f"judge.endpoint.url={url}" for url in URLS),
    *(f"judge.endpoint.replicas=[http://ok/v1,{url}]" for url in URLS[:2]),
    *(f"tracking.uri={url}" for url in URLS[:3]),
    f"tracking.uri=postgresql://me:{CANARY}@host/db",
    f"tracking.uri=mysql://host/db?user=me&password={CANARY}",
    f"judge.endpoint.api_key_env={CANARY}-with-marks",
    f"judge.endpoint.api_key_env={CANARY}",
    f"+judge.endpoint.api_key_env=sk-{CANARY}",
    f"judge.endpoint.api_key_env=GOOD_NAME,{CANARY}",
    f"+judge.endpoint.extra_body.api_key={CANARY}",
    f"+judge.endpoint.extra_body.authorization={CANARY}",
    f"++judge.endpoint.extra_body.headers.X-Api-Key={CANARY}",
    f"+judge.endpoint.extra_body.token={CANARY}",
    f"judge.endpoint.extra_body={{nested:{{access_token:{CANARY}}}}}",
    f"+judge.endpoint.extra_body.headers=['Authorization: {CANARY}']",
    f"judge.serve.extra=[--api-key,{CANARY}]",
    f"judge.serve.extra=[--api-key={CANARY}]",
    f"judge.endpoint.start_command='vllm serve m --api-key {CANARY}'",
    f"judge.endpoint.start_command='OPENAI_API_KEY={CANARY} serve'",
    f"hydra.job.env_set.OPENAI_API_KEY={CANARY}",
    f"~judge.endpoint.extra_body.api_key={CANARY}",
    f"+judge.endpoint.extra_body.apikey2={CANARY}",
    f"sweep.notify='curl -u me:{CANARY} http://h'",
    f"sweep.notify='curl -H X-Key:{CANARY} http://h'",
    f"sweep.notify='sshpass -p {CANARY} ssh h tell'",
    f"sweep.notify=./tell.sh {CANARY}",
    f"judge.endpoint.start_command='sshpass -p {CANARY} ssh h serve'",
    f"sweep.notify_env={CANARY}",
    f"sweep.slurm.setup=['export OPENAI_API_KEY={CANARY}']",
    f"endpoint=http://{CANARY}@host/v1",
    f"api_key_env={CANARY}",
    f"-key {CANARY}",
    f"judge.endpoint.url=//{CANARY}@host/v1",
    f"judge.endpoint.replicas=[http://ok/v1,{CANARY}@host/v1]",
    f"tracking.uri=databricks://{CANARY}@host",
    f"runs_dir=me:{CANARY}@bucket/x",
    f"runs_dir=s3:/me:{CANARY}@bucket/x",
    f"task.path=hf://{CANARY}@datasets/x",
]
HARMLESS = [
    "judge=sim-fair,sim-verbose", "seed=0,1,2", "study=secret", "plan=true",
    "hydra/launcher=joblib",
    "judge.endpoint.api_key_env=DASHSCOPE_API_KEY", "judge.endpoint.api_key_env=null",
    "judge.endpoint.api_key_env=JUDGE_KEY_FOR_TEST", "judge.endpoint.api_key_env=my_key",
    "judge.endpoint.url=http://127.0.0.1:8000/v1", "judge.endpoint.url=https://h/v1?api-version=2",
    "judge.sampling.max_tokens=64", "judge.endpoint.max_tokens_field=max_completion_tokens",
    "tracking.uri=postgresql://me@host/db", "tracking.artifacts=sftp://me@host:22/x",
    "tracking.artifacts=abfss://box@account.dfs.core.windows.net/x",
    "+judge.endpoint.extra_body.token=1", "+judge.endpoint.extra_body.code=python",
    "judge.endpoint.url=https://h/v1?code=7", "judge.endpoint.url=localhost:8000/a@b",
    "judge.endpoint.url=[::1]:8000/v1",
    "tracking.uri=sqlite:////data/mlflow.db",
    "judge.endpoint.start_command='export VLLM_API_KEY=$KEY; vllm serve m'",
    "judge.serve.extra=[--enable-prompt-tokens-details,--seed,0]", "judge.simulated.keyword=robust",
    "task.path=token.jsonl", "+judge.endpoint.extra_body.top_k=20", "cost.max_calls=5",
    "sweep.notify=./tell-me.sh", "sweep.notify='mail -s done me@h.org'", "sweep.notify_env=TELL",
    "runs_dir=${oc.env:HOME}/runs", "task.path='${oc.env:DATA,/data}/a.jsonl'",
    "judge.endpoint.model=sk-learn-style-judge-7b", "policy.path=org/model@main",
    "tracking.uri=databricks://my-profile", "task.path=/d/6f1ed002ab5595859014ebf0951522d9/a.jsonl",
    "+sweep.slurm.more.comment='judge drift ablation 3'",
    "+judge.endpoint.extra_body.extra_headers={X-Title:judgedrift,anthropic-version:2023-06-01}",
    "judge.endpoint.tokens_per_min=1000", "runs_dir=/data/secrets/runs", "config=x.yaml",
]  # fmt: skip


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_argument_with_a_key_is_refused_or_its_config_is(argument: str) -> None:
    """Some places are known only once the argument is read; nothing is written before that."""
    try:
        refuse_arguments(["judge=sim-fair", argument])
    except UserError as error:
        assert CANARY not in str(error) and "argument 2" in str(error)
        where, _, kind = str(error).partition(" looks like it holds ")
        assert not kind or (where.startswith("argument 2") and not kind.startswith("argument"))
        return
    value = argument.partition("=")[2]
    assert value.startswith("{"), "an argument passed that a config cannot be read from"
    with pytest.raises(UserError) as caught:
        refuse_config({"judge": {"endpoint": {"extra_body": {"nested": {"access_token": CANARY}}}}})
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("argument", HARMLESS)
def test_ordinary_arguments_pass(argument: str) -> None:
    refuse_arguments([argument])


@pytest.mark.parametrize("url", URLS)
def test_an_address_with_a_key_is_known_as_one(url: str) -> None:
    assert holds_credentials(url)


def test_every_preset_passes() -> None:
    """Each file by itself: what a preset stands on is a preset too. And a whole config."""
    from hydra import compose, initialize_config_dir

    presets = sorted((ROOT / "conf" / "judge").glob("*.yaml"))
    assert presets
    for path in presets:
        refuse_config({"judge": OmegaConf.to_container(OmegaConf.load(path), resolve=False)})
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        composed = compose("sweep")
    refuse_config(OmegaConf.to_container(composed, resolve=False))


@pytest.mark.parametrize(
    "config",
    [
        {"judge": {"endpoint": {"extra_body": {"user": "${oc.env:OPENAI_API_KEY}"}}}},
        {"task": {"options": {"password": CANARY}}},
        {"task": {"options": {"nested": [{"client_secret": CANARY}]}}},
        {"judge": {"serve": {"extra": ["--hf-token", CANARY]}}},
        {"judge": {"endpoint": {"extra_body": {"token": 123456789}}}},
        {"judge": {"endpoint": {"extra_body": {"x": [f"api_key: {CANARY}"]}}}},
        {"judge": {"endpoint": {"extra_body": {f"http://{CANARY}@host": 1}}}},
        {"job": {"env_set": {"MY_TOKEN": CANARY}}},
        {"judge": {"endpoint": {"extra_body": {"apikey2": CANARY}}}},
        {
            "judge": {
                "endpoint": {
                    "extra_body": {
                        "list": [{"name": "X-Key-Token", "value": CANARY}, ["X-Api-Key", CANARY]]
                    }
                }
            }
        },
        {"judge": {"endpoint": {"extra_body": {"list": [["X-Api-Key", CANARY]]}}}},
        {"judge": {"endpoint": {"extra_body": {"h": f"Basic {CANARY}"}}}},
        {"judge": {"endpoint": {"extra_body": {"tools": [{"headers": {"X-Token": CANARY}}]}}}},
        {"judge": {"serve": {"extra": ["--key", CANARY]}}},
        {"judge": {"endpoint": {"url": f"https://h/{CANARY}/v1"}}},
        {"judge": {"endpoint": {"replicas": ["http://h/v1", f"https://h/{CANARY}/v1"]}}},
        {"judge": {"endpoint": {"extra_body": {"extra_headers": {"X-Of-Mine": CANARY}}}}},
        {"judge": {"endpoint": {"extra_body": {"h": [{"header": "X-Key", "content": CANARY}]}}}},
        {"judge": {"serve": {"extra": ["--hf-overrides", f'{{"token": "{CANARY}"}}']}}},
        {"sweep": {"slurm": {"more": {"comment": f"token={CANARY}"}}}},
        {"store": {"beside": [f"s3:/me:{CANARY}@bucket/x"]}},
        {"sweep": {"notify": f"./tell.sh {CANARY}"}},
        {"sweep": {"slurm": {"setup": [f"sshpass -p {CANARY} ssh h"]}}},
    ],
)
def test_a_config_with_a_key_is_refused_by_its_place(config) -> None:
    with pytest.raises(UserError) as caught:
        refuse_config(config)
    assert CANARY not in str(caught.value)


LOOKED_UP = (
    "${oc.env:HOLDER}", "${oc.env:${oc.env:NAME,HOLDER}}", "${oc.env:HOLDER,x}",
    "${ oc.env : HOLDER}", "x-${oc.env:'HOLDER'}", "${oc.decode:'${oc.env:HOLDER}'}",
    "${oc.${x}:HOLDER}",
    "${oc.create:${oc.env:HOLDER}}", "${oc.deprecated:${oc.env:HOLDER}}",
)  # fmt: skip


@pytest.mark.parametrize("text", LOOKED_UP)
@pytest.mark.parametrize("key", ["study", "judge.name", "judge.endpoint.extra_body.user", "seed"])
def test_a_value_from_the_environment_is_refused_by_where_it_comes_from(key, text) -> None:
    for check in (lambda: refuse_arguments([f"{key}={text}"]), lambda: refuse_variables(key, text)):
        with pytest.raises(UserError, match=r"\$\{oc.env:NAME\} is legal only in runs_dir"):
            check()


def refuse_variables(key: str, text: str) -> None:
    data: Any = text
    for word in reversed(key.split(".")):
        data = {word: data}
    refuse_config(data)


def test_a_place_of_files_may_come_from_the_environment_and_nothing_else(monkeypatch) -> None:
    """Also where OmegaConf alone finds out what is looked up."""
    monkeypatch.setenv("DATA", "/data")
    _, task = load_presets("sim-fair", overrides=["task.path=${oc.env:DATA}/a.jsonl"])
    assert task.path == "/data/a.jsonl"
    for text in ("${oc.env:WANDB_API_KEY}", "${oc.env:${oc.env:DATA}}",
                 "${oc.create:{a: ${oc.env:DATA}}}"):  # fmt: skip
        with pytest.raises(UserError):
            load_presets("sim-fair", overrides=[f"task.path='{text}'"])
    with pytest.raises(UserError, match=r"hydra\.job\.env_copy takes a value"):
        refuse_arguments(["hydra.job.env_copy=[DATA]"])
    register()
    hidden = OmegaConf.create(
        {
            "a": "${b:DATA}",
            "x": "oc.",
            "study": "${oc.${y}:DATA}",
            "y": "env",
            "runs_dir": "${oc.env:DATA}",
        }
    )
    assert hidden.runs_dir == "/data"
    with pytest.raises(InterpolationResolutionError, match="study takes a value"):
        _ = hidden.study


def test_what_to_type_in_place_of_a_secret_is_said_for_its_field() -> None:
    hook = "curl https://hooks.slack.com/" + "services/T0/B0/abcdefghijkl"
    for argument, typed in {
        f"sweep.notify='{hook}'": "sweep.notify_env=NOTIFY",
        f"sweep.notify='curl -u me:{CANARY} h'": "sweep.notify_env=NOTIFY",
        f"judge.endpoint.start_command='sshpass -p {CANARY} ssh h'": "$JUDGE_API_KEY in the",
        f"judge.endpoint.url=http://me:{CANARY}@h/v1": "judge.endpoint.api_key_env=JUDGE_API_KEY",
        f"tracking.uri=http://h/{CANARY}": "MLFLOW_TRACKING_TOKEN=...",
        f"runs_dir=s3://AKEY:a/{CANARY}@bucket": "export AWS_ACCESS_KEY_ID=...",
    }.items():
        with pytest.raises(UserError) as caught:
            refuse_arguments([argument])
        assert typed in str(caught.value) and CANARY not in str(caught.value)
    refuse_arguments(["judge.endpoint.url=", "--multirun"])


NOT_READ = [
    f"judge.endpoint.extra_body={{user:{CANARY} (b",
    f"+judge.endpoint.extra_body.x={CANARY}(",
    f"judge.endpoint.url=http://h/v1 {CANARY}(",
    f"judge.endpoint.replicas={CANARY}/x",
    f"judge.endpoint.extra_body={CANARY}",
    f"judge.endpoint={CANARY}",
    f"judge.serve.extra={CANARY}",
    f"judge.endpoint.start_command=a(b {CANARY}",
    f"judge.endpoint.extra_body.user='{CANARY}",
    f"tracking={{uri:{CANARY} (}}",
    f"tracking.uri=[{CANARY}/x]",
    f"judge={{endpoint:{{url:{CANARY} (}}}}",
]


@pytest.mark.parametrize("argument", NOT_READ)
def test_a_value_that_cannot_be_read_is_not_repeated(argument: str) -> None:
    for given in ([argument], [f"{argument.partition('=')[0]}=", CANARY]):
        with pytest.raises(UserError) as caught:
            cells_of(["judge=sim-fair", "seed=0", "tracking=none", *given])
        assert CANARY not in str(caught.value) and argument.partition("=")[0] in str(caught.value)


def test_a_variable_that_exists_may_have_any_name(monkeypatch) -> None:
    monkeypatch.setenv(CANARY, "x")
    refuse_arguments([f"judge.endpoint.api_key_env={CANARY}"])


DRIVER = """
import io, json, sys, contextlib
from importlib import import_module
from study.declared import module_of
for program, arguments in json.loads(sys.argv[1]):
    module = import_module(module_of(program))
    sys.argv[:] = [program, *arguments]
    try:
        code = module.main() if program == "experiments.sweep" else module.main(arguments)
    except SystemExit as error:
        code = error.code
    print("CODE", program, code, flush=True)
"""


def leaky(folder: Path) -> tuple[list[str], list[str]]:
    """Names of a user's own presets that hold the canary: of judges, and of whole configs."""
    judges = {
        "leaky-url": f"endpoint: {{url: 'http://{CANARY}@h/v1'}}",
        "leaky-body": f"endpoint: {{extra_body: {{token: {CANARY}}}}}",
        "leaky-name": f"endpoint: {{api_key_env: {CANARY}}}",
        "leaky-variable": "endpoint: {model: '${oc.env:${oc.env:NOBODY_SET_THIS,HOLDER}}'}",
        "leaky-path": f"endpoint: {{url: 'http://h/{CANARY}/v1'}}",
        "leaky-serve": f"serve: {{extra: [--api-key, {CANARY}]}}",
    }
    roots = {
        "root-tracking": f"tracking: {{uri: 'http://me:{CANARY}@h'}}",
        "root-hydra": f"hydra: {{job: {{env_set: {{A_KEY_TOKEN: {CANARY}}}}}}}",
        "root-swept": f"hydra: {{sweeper: {{params: {{judge.endpoint.url: 'http://{CANARY}@h/v1'}}}}}}",
    }
    for place, base, texts in ((folder / "judge", "sim-fair", judges), (folder, "sweep", roots)):
        place.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (place / f"{name}.yaml").write_text(f"defaults: [{base}, _self_]\n{text}\n")
    return [*judges], [*roots]


def test_nothing_is_left_of_a_key_that_every_command_refused(tmp_path) -> None:
    """Through the real commands, with keys on the command line, in presets, in a config of the
    user's own and in hydra's settings; then every file that they could have written is read."""
    conf, runs = tmp_path / "conf", tmp_path / "runs"
    judges, roots = leaky(conf)
    own = ["--config-dir", str(conf)]
    place = [f"runs_dir={runs}", "seed=0"]
    url = f"judge.endpoint.url=http://{CANARY}@h/v1"
    kept = [f"hydra.sweep.dir={runs}/kept", "hydra.output_subdir=.hydra", "hydra.mode=RUN"]
    sweeps = [
        ["judge=sim-fair", *place, url],
        ["judge=sim-fair", *place, "plan=true", ARGUMENTS[-3]],
        ["judge=sim-fair", *place, f"hydra.run.folder={runs}/x", *kept, url],
        *([*own, f"judge={name}", *place, *kept] for name in judges),
        *([*own, "-cn", name, "judge=sim-fair", *place] for name in roots),
    ]
    commands: list[tuple[str, list[str]]] = [
        *(("experiments.sweep", words) for words in sweeps),
        ("experiments.probe", ["judge=sim-fair", f"runs_dir={runs}", url]),
        ("judges.serve", ["judge=qwen3-4b", "print_only=true", f"runs_dir={runs}", url]),
        ("judges.check", ["judge=sim-fair", f"+judge.endpoint.extra_body.token={CANARY}"]),
        ("judges.replay", ["study=x", "judge=sim-fair", f"runs_dir={runs}", url]),
        ("experiments.tracking", ["rebuild", "study=x", f"uri=http://me:{CANARY}@h"]),
    ]
    variables = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "HOLDER": CANARY}
    done = run_program(DRIVER, json.dumps(commands), cwd=tmp_path, env=os.environ | variables)
    codes = [line for line in done.stdout.splitlines() if line.startswith("CODE")]
    assert codes == [f"CODE {program} 2" for program, _ in commands], done.stdout + done.stderr
    assert CANARY not in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert_clean(tmp_path, besides=conf)


IN_VARIABLE = {
    "password": f"http://me:{CANARY}@host",
    "path": f"https://host/{CANARY}/mlflow",
    "slash": f"postgresql://me:pa/{CANARY}@host/db",
    "no address": CANARY,
}


@pytest.mark.parametrize("uri", IN_VARIABLE.values(), ids=IN_VARIABLE)
def test_a_password_in_mlflows_own_variable_is_refused(tmp_path, monkeypatch, uri) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError) as caught:
        tracking_uri(Tracking(), tmp_path / "runs")
    assert "MLFLOW_TRACKING_URI" in str(caught.value) and CANARY not in str(caught.value)
    assert_clean(tmp_path)


@pytest.mark.parametrize(
    "uri",
    [
        pytest.param(uri, id=name, marks=() if name == "no address" else pytest.mark.long)
        for name, uri in IN_VARIABLE.items()
    ],
)
def test_a_password_in_mlflows_own_variable_is_refused_at_the_plan(tmp_path, uri) -> None:
    words = ["plan=true", "judge=sim-fair", "seed=0", f"runs_dir={tmp_path / 'runs'}"]
    variables = os.environ | {"MLFLOW_TRACKING_URI": uri}
    done = run("experiments.sweep", *words, real=True, env=variables)
    assert done.returncode == 2 and "MLFLOW_TRACKING_URI" in done.stderr
    assert CANARY not in done.stdout + done.stderr
    assert_clean(tmp_path)


def assert_clean(folder: Path, besides: Path | None = None) -> None:
    for path in folder.rglob("*"):
        if besides is not None and path.is_relative_to(besides):
            continue
        assert CANARY not in path.name, path
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
