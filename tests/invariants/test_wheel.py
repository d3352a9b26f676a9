"""What is built holds every file, and works where no checkout is."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.commands import LIMIT_S
from tests.conftest import ROOT

PACKAGES = ("study", "judges", "analysis", "experiments", "judgedrift")
LINKED = ("conf", "notebooks", "constraints.txt", "requirements/vllm-cpu.txt")
"""What lies elsewhere in the checkout, and is a link in ``judgedrift`` to there."""
ABOUT = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
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
