"""Install the pip and uv that installers.txt pins, by hash, into this Python's environment.

    .venv/bin/python requirements/installers.py

pip asks its index even for files that it has in its cache. So a copy of these files is kept beside
that cache, and the next environment is made of it, without a network too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PINNED = ("--no-deps", "--require-hashes", "-r", str(Path(__file__).with_suffix(".txt")))
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def main() -> int:
    """Install from the kept files; where they are not those that are pinned, fetch them first."""
    cache = subprocess.run([*PIP, "cache", "dir"], capture_output=True, text=True)
    if cache.returncode == 0:  # not where pip's cache is switched off
        kept = str(Path(cache.stdout.strip()) / "judgedrift-installers")
        from_kept = [*PIP, "install", "-q", "--no-index", "--find-links", kept, *PINNED]
        if subprocess.run(from_kept, capture_output=True).returncode == 0:
            return 0
        fetched = subprocess.run([*PIP, "download", "-q", "-d", kept, *PINNED], capture_output=True)
        if fetched.returncode == 0:
            return subprocess.run(from_kept).returncode
    return subprocess.run([*PIP, "install", "-q", *PINNED]).returncode


if __name__ == "__main__":
    sys.exit(main())
