"""Prints what lets a shell complete commands, settings, presets and studies.

    judgedrift completion bash > ~/.judgedrift.sh
    judgedrift completion zsh > ~/.judgedrift.sh

Put ``. ~/.judgedrift.sh`` into ``~/.bashrc``; for zsh into ``~/.zshrc``, after ``compinit``.
While it completes, the shell itself looks into the folders of presets (config_dir=, ./conf and
those that ship) and of studies: no Python runs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from judgedrift.commands import COMMANDS, NAME, SWEEP
from study.cli import command, option, word
from study.config.bounds import Name
from study.config.override_errors import keys
from study.config.presets import OWN, SHIPPED, preset_groups
from study.declared import declared

SHARED = {
    "bash": """\
    local line="${COMP_LINE:0:COMP_POINT}"
    local token="${line##*[[:space:]]}" key value last before names runs=runs conf each
    local -a typed
    read -ra typed <<< "$line"
    COMPREPLY=()
    if (( ${#typed[@]} < 2 )) || { (( ${#typed[@]} == 2 )) && [[ -n $token ]]; }; then
        COMPREPLY=($(compgen -W "$commands" -- "$token"))
        return
    fi
    if [[ $token != *=* ]]; then
        _judgedrift_keys "${typed[1]}"
        compopt -o nospace 2> /dev/null
        COMPREPLY=($(compgen -S = -W "$names" -- "$token"))
        return
    fi
    key="${token%%=*}" value="${token#*=}"
    last="${value##*,}" before="${value%"${value##*,}"}"
    for each in "${typed[@]}"; do
        [[ $each == runs_dir=* ]] && runs="${each#runs_dir=}"
        [[ $each == config_dir=* ]] && conf="${each#config_dir=}"
    done
    _judgedrift_values "$key" "$runs" "$conf"
    [[ $COMP_WORDBREAKS == *=* ]] || before="$key=$before"
    COMPREPLY=($(compgen -P "$before" -W "$names" -- "$last"))
""",
    "zsh": """\
    local token="${words[CURRENT]}" names runs=runs conf each
    if (( CURRENT == 2 )); then
        compadd -- ${=commands}
        return
    fi
    if [[ $token != *=* ]]; then
        _judgedrift_keys "${words[2]}"
        compadd -S = -- ${=names}
        return
    fi
    for each in "${words[@]}"; do
        [[ $each == runs_dir=* ]] && runs="${each#runs_dir=}"
        [[ $each == config_dir=* ]] && conf="${each#config_dir=}"
    done
    _judgedrift_values "${token%%=*}" "$runs" "$conf"
    compset -P '*='
    compset -P '*,'
    compadd -- ${=names}
""",
}
"""Shell -> how it is told what may stand where the cursor is."""
LAST = {"bash": "complete -F _judgedrift", "zsh": "compdef _judgedrift"}


@dataclass(frozen=True)
class Options:
    """Options of `judgedrift.completion`: the shell, and the word to complete behind."""

    shell: str = word("shell to complete in", *SHARED)
    program: str = option("command name to complete after, such as an alias", NAME, Name())


@command("judgedrift.completion bash", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0, 2 for a user's error."""
    print(script(options.shell, options.program))
    return 0


def script(shell: str, program: str = NAME) -> str:
    """What the shell has to read, to complete behind the word ``program``."""
    command_keys = {name: " ".join(keys_of(entry.module)) for name, entry in COMMANDS.items()}
    commands = shlex.quote(" ".join(COMMANDS))
    body = SHARED[shell]
    return "\n".join(
        [
            _keys_function(command_keys),
            _values_function(),
            "_judgedrift() {",
            f"    local commands={commands}",
            f"{body}}}",
            f"{LAST[shell]} {program}",
        ]
    )


def _keys_function(command_keys: Mapping[str, str]) -> str:
    """The function that sets ``names`` to the keys of a command."""
    by_keys: dict[str, list[str]] = {}
    for name, text in command_keys.items():
        by_keys.setdefault(text, []).append(name)
    cases = [
        f"    {'|'.join(names)}) names={shlex.quote(text)} ;;" for text, names in by_keys.items()
    ]
    return "\n".join(
        ["_judgedrift_keys() {", "    names=", '    case "$1" in', *cases, "    esac", "}"]
    )


def _values_function() -> str:
    """The function that sets ``names`` to what may stand behind a key."""
    shipped = shlex.quote(str(SHIPPED))
    return f"""\
_judgedrift_values() {{
    names=
    local group="$1"
    [[ $group == judges || $group == shadow ]] && group=judge
    case "$1" in
    study) names=$(cd "$2" 2> /dev/null && ls -d */study.json 2> /dev/null | sed 's,/.*,,') ;;
    cell) names=$(cd "$2" 2> /dev/null && ls -d */*/config.yaml 2> /dev/null |
        sed 's,/config.yaml$,,; s,.*/,,') ;;
    ?*) names=$(ls "${{3:-{OWN}}}/$group" {OWN}/"$group" {shipped}/"$group" 2> /dev/null |
        sed -n 's/\\.yaml$//p' | sort -u) ;;
    esac
}}"""


def keys_of(module: str) -> list[str]:
    """The keys that a command takes."""
    if module == SWEEP:
        return [*preset_groups(), *keys()]
    command = declared(module)
    return [*command.keys, *(name for name in command.beginnings if not name.endswith("."))]


if __name__ == "__main__":
    sys.exit(main())
