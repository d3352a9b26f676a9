"""Ways to a cluster: each file is read by its own rules, and what it types is typed here."""

import importlib
import os
import re
import shlex
import shutil
import socket
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.tracking.pages import typed_command
from study.declared import module_of
from tests.conftest import ROOT, Trained
from tests.waiting import GENEROUS_S

FOLDER = ROOT / "conf" / "clusters"
TEXT, WHOLE, TABLE, LIST = str, int, dict, list
SKYPILOT = {
    **dict.fromkeys(("name", "workdir", "setup", "run"), TEXT),
    **dict.fromkeys(("resources", "file_mounts", "volumes", "envs", "secrets", "config"), TABLE),
    "num_nodes": WHOLE,
}
SKYPILOT_RESOURCES = {
    **dict.fromkeys("infra accelerators cpus memory instance_type image_id ports".split(), TEXT),
    "disk_size": WHOLE,
    "use_spot": bool,
}
DSTACK = {
    **dict.fromkeys(("type", "name", "python", "image", "working_dir"), TEXT),
    **dict.fromkeys(("env", "commands", "repos", "files", "volumes", "ports"), LIST),
    "nodes": WHOLE,
    "resources": TABLE,
}
DSTACK_RESOURCES = dict.fromkeys(("gpu", "cpu", "memory", "shm_size", "disk"), TEXT)
COMPOSE = {"name": TEXT, "services": TABLE, "volumes": TABLE, "x-image": TABLE}
SERVICE = {
    **dict.fromkeys(("image", "command", "restart", "shm_size"), TEXT),
    **dict.fromkeys(("build", "environment", "healthcheck", "deploy", "depends_on"), TABLE),
    **dict.fromkeys(("ports", "volumes"), LIST),
}
HEALTHCHECK = {"test": LIST, "interval": TEXT, "retries": WHOLE}
APPTAINER = {"labels", "help", "files", "post", "environment", "runscript", "test"}
SHELL = {"post", "environment", "runscript", "test"}


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def check(data: Any, fields: dict[str, type], where: str) -> None:
    """Every key is one that the tool's documentation has, with a value of its kind."""
    assert isinstance(data, dict), where
    for key, value in data.items():
        assert key in fields, f"{where}.{key} is no field"
        assert type(value) is fields[key], f"{where}.{key} is no {fields[key].__name__}"


SERVICES = read("compose.yml")["services"]


def filled(text: str, environment: dict[str, str]) -> str:
    """Compose's interpolation: ${NAME}, ${NAME:-default} and ${NAME:?why}."""

    def value(match: re.Match[str]) -> str:
        name, rule, word = match.groups()
        return (environment.get(name) or word) if rule == ":-" else environment[name]

    return re.sub(r"\$\{(\w+)(?:(:[-?])([^}]*))?\}", value, text)


def sections() -> dict[str, str]:
    """An Apptainer definition: a header of keys, then sections, each once.
    Raises AssertionError: anything else."""
    parts: dict[str, str] = {}
    name = ""
    for line in (FOLDER / "apptainer.def").read_text().splitlines():
        if line.startswith("%"):
            name = line[1:].strip()
            assert name in APPTAINER and name not in parts, line
            parts[name] = ""
        elif name:
            assert not line or line.startswith("    "), line
            parts[name] += line + "\n"
        elif line and not line.startswith("#"):
            key, colon, value = line.partition(": ")
            assert colon and value and key in ("Bootstrap", "From"), line
    return parts


# --- read by their own rules


def test_skypilot_has_only_fields_of_a_task() -> None:
    task = read("skypilot.yml")
    check(task, SKYPILOT, "task")
    check(task["resources"], SKYPILOT_RESOURCES, "resources")
    assert all(type(value) is str for value in (*task["envs"].values(), *task["secrets"].values()))
    assert all(path.startswith("/") for path in task["volumes"])
    schemas = pytest.importorskip("sky.utils.schemas", reason="SkyPilot is not installed")
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(read("skypilot.yml"), schemas.get_task_schema())
    jsonschema.validate(read("skypilot.yml")["resources"], schemas.get_resources_schema())


def test_dstack_has_only_fields_of_a_task() -> None:
    task = read("dstack.yml")
    check(task, DSTACK, "task")
    check(task["resources"], DSTACK_RESOURCES, "resources")
    assert task["type"] == "task"
    assert all(re.fullmatch(r"[A-Z_]+(=.*)?", entry) for entry in task["env"])
    assert all(volume.keys() == {"instance_path", "path"} for volume in task["volumes"])
    place = "dstack._internal.core.models.configurations"
    models = pytest.importorskip(place, reason="dstack is not installed")
    assert models.parse_run_configuration(read("dstack.yml")).nodes == 2


def test_compose_has_only_fields_of_services_that_there_are() -> None:
    data = read("compose.yml")
    check(data, COMPOSE, "compose")
    volumes = set(data["volumes"])
    for name, service in SERVICES.items():
        check(service, SERVICE, name)
        check(service.get("healthcheck", {}), HEALTHCHECK, f"{name}.healthcheck")
        assert set(service.get("depends_on", {})) <= SERVICES.keys(), name
        for waited in service.get("depends_on", {}):
            assert "healthcheck" in SERVICES[waited], f"{name} waits for {waited} for ever"
        assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= volumes, name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} listens to everybody"
    build = data["x-image"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == FOLDER / "Dockerfile"


def test_compose_by_its_own_command() -> None:
    variables = {"PGPASSWORD": "x", "JUDGE_KEY": "y", "PATH": os.environ["PATH"]}
    run = partial(subprocess.run, capture_output=True, env=variables)
    if not shutil.which("docker") or run(["docker", "compose", "version"]).returncode:
        pytest.skip("docker compose is not installed")
    words = ["docker", "compose", "-f", str(FOLDER / "compose.yml"), "config", "--quiet"]
    assert run(words).returncode == 0
    del variables["PGPASSWORD"]
    assert run(words).returncode != 0


def test_images_take_files_that_there_are() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (FOLDER / "Dockerfile").read_text(), re.M)
    taken = [name for line in copied for name in line.split()]
    files = [line.split() for line in sections()["files"].splitlines() if line]
    assert sorted(taken) == sorted(source for source, _ in files)
    assert all((ROOT / name).exists() for name in taken)
    assert all(target == f"/opt/judgedrift/{source}" for source, target in files)


SCRIPTS = {path.name: path.read_text() for path in FOLDER.glob("*.sh")}
SCRIPTS |= {f"apptainer.def %{name}": text for name, text in sections().items() if name in SHELL}
SCRIPTS |= {f"skypilot.yml {part}": read("skypilot.yml")[part] for part in ("setup", "run")}
SCRIPTS |= {"dstack.yml": "\n".join(read("dstack.yml")["commands"])}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_sound_shell(name: str) -> None:
    text = SCRIPTS[name]
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    if shutil.which("shellcheck"):
        words = ["shellcheck", "--shell=bash", "--exclude=SC1091,SC2148", "-"]
        done = subprocess.run(words, input=text, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout


def test_no_file_holds_a_secret() -> None:
    tables = [read("skypilot.yml")["envs"], read("skypilot.yml")["secrets"]]
    tables += [service.get("environment", {}) for service in SERVICES.values()]
    tables += [dict(f"{entry}=".split("=")[:2] for entry in read("dstack.yml")["env"])]
    for name, value in (item for table in tables for item in table.items()):
        if name.endswith(("KEY", "TOKEN", "PASSWORD")):
            assert not value or re.fullmatch(r"\$\{\w+:(-|\?is not set)\}", value), name


# --- what they type


STUB = """#!/usr/bin/env bash
line=$(printf '%s\\x1f' "$(basename "$0")" "$@")
echo "$line" >>"$TYPED"
case "$(basename "$0") $*" in
ray*--head*) exec sleep 100 ;;
*sweep.engine=ray*) until grep -q -e --head "$TYPED"; do sleep 0.02; done ;;&
*experiments.sweep*) exit "${SWEEP_CODE:-0}" ;;
esac
"""


@pytest.fixture
def typed(tmp_path):
    """Run a shell script in which programs only note what they were given; its exit code, and
    each program's words."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("python", "ray", "uv", "apptainer"):
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)
    folder = tmp_path / "copy"
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").touch()
    (folder / ".venv" / "bin" / "python").symlink_to(programs / "python")
    (folder / "conf").symlink_to(ROOT / "conf")

    def run(script: str, *words: str, **environment: str) -> tuple[int, list[list[str]]]:
        notes = tmp_path / "typed"
        notes.write_text("")
        variables = {"PATH": f"{programs}:{os.environ['PATH']}", "USER": "me", "TYPED": str(notes)}
        variables |= {"LOCAL": str(tmp_path / "local"), "SHARED": str(tmp_path / "shared")}
        variables |= {"RAY_PORT": str(first.getsockname()[1])}
        done = subprocess.run(
            ["bash", "-c", script, "script", *words],
            cwd=folder, env=variables | environment, capture_output=True, text=True,
            timeout=GENEROUS_S,
        )  # fmt: skip
        assert not done.stderr, done.stderr
        return done.returncode, [line.split("\x1f")[:-1] for line in notes.read_text().splitlines()]

    with socket.create_server(("127.0.0.1", 0)) as first:  # the first node's Ray
        yield run


def modules(typed: list[list[str]]) -> list[list[str]]:
    """Of each ``python -m MODULE WORDS``, the module and its words."""
    return [words[2:] for words in typed if words[:2] == ["python", "-m"]]


def legal(module: str, words: list[str], plan: Trained, tmp_path: Path) -> None:
    """The command takes these words: a sweep plans with them, any other reads its options.
    Raises UserError, AssertionError: it does not."""
    if module == "experiments.sweep":
        portable = [word for word in words if not word.startswith(("runs_dir=", "tracking.uri="))]
        done = plan(tmp_path / "runs", "plan=true", *portable)
        assert done.returncode == 0, done.stdout + done.stderr
    elif module != "mlflow":
        importlib.import_module(module_of(module)).main.read(words)


FIRST = [["ray", "start", "--head"], ["python", "-m", "experiments.sweep"]]
OTHER = [["ray", "start", "--address"]]


@pytest.mark.parametrize(("rank", "wanted"), [("0", FIRST), ("1", OTHER)], ids=["first", "other"])
@pytest.mark.parametrize("way", ["skypilot.yml", "dstack.yml"])
def test_nodes_of_a_ray_cluster(way, rank, wanted, typed, trained, tmp_path) -> None:
    script = SCRIPTS.get(way) or SCRIPTS[f"{way} setup"] + SCRIPTS[f"{way} run"]
    environment = {
        **{"SKYPILOT_NODE_RANK": rank, "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2\n"},
        **{"DSTACK_NODE_RANK": rank, "DSTACK_MASTER_NODE_IP": "127.0.0.1"},
    }
    code, lines = typed(script, SWEEP="judge=sim-fair,sim-verbose seed=0,1", **environment)
    assert code == 0
    lines = [line for line in lines if line[0] != "uv"]
    pairs = zip(sorted(lines), sorted(wanted), strict=True)
    assert all(words[: len(start)] == start for words, start in pairs)
    token = tmp_path / "shared" / ".ray-token"
    if rank == "0":
        assert token.stat().st_mode & 0o777 == 0o600 and len(token.read_text()) > 40
        ((module, *words),) = modules(lines)
        legal(module, words, trained, tmp_path)
        assert words[0] == "sweep.engine=ray" and words[1].startswith("sweep.ray.address=127.0.")
        assert words[-2:] == ["judge=sim-fair,sim-verbose", "seed=0,1"]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_node_keeps_its_verdicts_whatever_became_of_the_sweep(rank, typed, tmp_path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "verdicts.db").touch()
    code, lines = typed(SCRIPTS["run_node.sh"], rank, "127.0.0.1", "seed=0", SWEEP_CODE="3")
    assert code == (3 if rank == "0" else 0)
    module, *words = modules(lines)[-1]
    assert module == "judges.store"
    assert words[:2] == ["copy", f"db={tmp_path / 'local' / 'verdicts.db'}"]
    assert words[2].startswith(f"out={tmp_path / 'shared' / 'stores'}/")
    importlib.import_module(module_of(module)).main.read(words)


SHARE = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "4"}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, ["sweep.engine=slurm"]),
        (SHARE, ["sweep.engine=shard", "sweep.shard=2/4"]),
        ({"PYTHON": "apptainer run --nv judgedrift.sif"}, ["sweep.engine=slurm"]),
    ],
    ids=["jobs", "shares", "apptainer"],
)
def test_slurm(environment, words, typed, trained, tmp_path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "verdicts.db").touch()
    code, lines = typed(SCRIPTS["slurm.sh"], "judge=sim-fair", "seed=0,1", **environment)
    assert code == 0
    container = len(environment.get("PYTHON", "python").split())
    (_, module, *sweeping), (_, keeper, *copying) = (line[container:] for line in lines)
    assert sweeping[: len(words)] == words and sweeping[-2:] == ["judge=sim-fair", "seed=0,1"]
    legal(module, sweeping, trained, tmp_path)
    legal(keeper, copying, trained, tmp_path)


@pytest.mark.parametrize("name", ["judge", "policy", "mlflow"])
def test_services_of_compose(name, trained, tmp_path) -> None:
    environment = {"PGPASSWORD": "x", "JUDGE_KEY": "y"}
    module, *words = shlex.split(filled(SERVICES[name]["command"], environment))
    legal(module, words, trained, tmp_path)
    if module == "mlflow":  # as the command that a sweep prints, which a test starts
        options = [word for word in words if word.startswith("--")]
        printed = shlex.split(typed_command("postgresql://tracker@database/mlflow", 5000))
        assert options == [word for word in printed if word.startswith("--")]


def test_the_image_of_apptainer_runs_what_it_is_given(typed) -> None:
    for words in (["experiments.sweep", "seed=0"], ["-m", "experiments.sweep", "seed=0"]):
        code, lines = typed(sections()["runscript"], *words)
        assert (code, lines) == (0, [["python", "-m", "experiments.sweep", "seed=0"]])
