"""CPU seconds of the help of every command, by its own name and as a module.

    python -m benchmarks.sweep.help [turns=2]

Every command is asked ``turns`` times each way, in a process of its own, and the least counts. The
first line is what ``import hydra, yaml`` takes on the same machine: times go with it.
"""

from __future__ import annotations

from benchmarks.race import read_sizes, spent
from judgedrift.__main__ import COMMANDS

FRONT = "judgedrift"


def main() -> None:
    turns = read_sizes(turns=2)["turns"]

    def least(*arguments: str) -> float:
        return min(spent(*arguments) for _ in range(turns))

    print(f"import hydra, yaml   {least('-c', 'import hydra, yaml'):.2f}")
    print(f"judgedrift           {least('-m', FRONT):.2f}\n")
    print("command       judgedrift COMMAND --help   python -m MODULE --help")
    for name, entry in COMMANDS.items():
        front = least("-m", FRONT, name, "--help")
        module = least("-m", entry.module, "--help")
        print(f"{name:<14}{front:>10.2f}{module:>28.2f}   {entry.module}", flush=True)


if __name__ == "__main__":
    main()
