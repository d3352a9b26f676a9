"""The last trusted lines before untrusted code, in a child that runs one call and ends.

What this child writes is a claim, no more: the untrusted code shares its memory and could write
the same bytes itself. So the answer is read, and compared, in another process.
"""

from __future__ import annotations

import json
import os
from typing import Any

from study.sandbox.inside.literal import NotLiteral, dumps, loads


def answer(request: dict[str, Any], handle: int) -> None:
    """Call ``request["function"]`` of ``request["source"]``, write the end to ``handle``, and exit.

    The request also holds ``args`` (a list, as `literal.dumps` writes it) and the ``nonce`` that
    the reply repeats. Nothing of the caller is left to return to: the process ends here.
    """
    end, text = _call(request)
    reply = json.dumps({"nonce": request["nonce"], "end": end, "text": text}).encode()
    while reply:
        reply = reply[os.write(handle, reply) :]
    os._exit(0)


def _call(request: dict[str, Any]) -> tuple[str, str]:
    try:
        code = compile(request["source"], "<untrusted>", "exec", dont_inherit=True)
    except MemoryError:
        return "memory", "while compiling"
    except (SyntaxError, ValueError, RecursionError) as error:
        return "unparsable", f"{type(error).__name__}: {error}"[:200]
    space: dict[str, Any] = {"__name__": "untrusted"}
    try:
        exec(code, space)
        if request["function"] not in space:
            return "unparsable", f"it defines no {request['function']}"
        value = space[request["function"]](*loads(request["args"]))
        return "returned", dumps(value)
    except NotLiteral as error:
        return ("subclass" if error.subclass else "not_literal"), str(error)[:200]
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        return "exited", type(error).__name__
    except MemoryError:
        return "memory", "MemoryError"
    except BaseException as error:
        return "raised", _described(error)


def _described(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:200]
    except BaseException:  # an exception may do anything in __str__
        return name
