"""The lines of JSON between parent, zygote and child, by what is in them.

The parent says a `Request`; a child says a `Claim`; the zygote says a `Frame`, which is what it saw
of the child itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict


class Options(TypedDict):
    """How a zygote is started."""

    isolation: Literal["bwrap", "landlock", "unsafe"]
    readable: Sequence[str]
    """Paths, for landlock."""


class Bounds(TypedDict):
    """`study.sandbox.calls.Limits`, as the zygote reads it."""

    cpu_s: int
    wall_s: float
    memory_mb: int
    file_mb: int
    reply_bytes: int
    own_s: NotRequired[float | None]


class Request(TypedDict):
    """What every request has."""

    limits: Bounds


class CallRequest(Request):
    """One call of a function."""

    source: str
    function: str
    args: str
    """A list, as `literal.dumps` writes it."""
    nonce: str
    """The reply repeats it."""


class Conversation(Request):
    """Begins a conversation with a child in a role."""

    role: str
    window: NotRequired[int]
    """Lines of the child that may be unanswered; 1 where the request does not say."""


class CandidateRequest(Conversation):
    """An untrusted program that trusted tests ask."""

    programs: Sequence[Sequence[str]]
    """Ways to read one answer, each the sources of one namespace."""


class TesterRequest(Conversation):
    """Trusted tests."""

    prelude: str
    """The problem's imports and helpers."""
    setup: str
    tests: str
    entry_point: str
    """The function that ``check`` is given, where the tests define it."""


class Argument(TypedDict):
    """One argument of an operator."""

    name: str
    type: str
    required: bool
    default: str | int | None


class ProgramRequest(Conversation):
    """A workflow program and its problem."""

    source: str
    operators: dict[str, list[Argument]]
    prompts: dict[str, str]
    """The names of prompt_custom."""
    problem: str
    entry_point: str
    domain: str


Act = Literal["call", "get", "set", "list"]
"""What trusted tests may do with a name or an object of a candidate."""


class Question(TypedDict):
    """What trusted tests ask of a candidate."""

    target: str | int
    """A name of the program, or the number of an object."""
    act: Act
    args: str
    """Arguments by place and by name, as `border.write` writes them."""


class Claim(TypedDict):
    """What a child says of itself."""

    end: str
    text: str
    kind: NotRequired[str]
    """The type of an exception."""


class ProgramCall(TypedDict):
    """A workflow program calls an operator."""

    call: int
    """Its place among the calls of the program, from 1."""
    operator: str
    arguments: dict[str, str | int | list[str] | None]
    after: list[int]
    """The calls whose results it has waited for."""


class ProgramEnd(TypedDict):
    """The last line of a workflow program."""

    end: str
    text: NotRequired[str]
    kind: NotRequired[str]
    code: NotRequired[str]
    """Of a diagnostic, where the contract was broken."""
    line: NotRequired[int | None]
    answer: NotRequired[str]
    cost: NotRequired[float]


class Spent(TypedDict):
    """What a program may know of its account, as AFlow's clients tell it."""

    total_input_tokens: int
    total_output_tokens: int
    total_cost: float


class Usage(Spent):
    """AFlow's account."""

    call_count: int


class Frame(TypedDict):
    """What the zygote says of a child: a line of the child's, or how it ended."""

    end: str
    """``line``, or how it ended: closed, deadline, own, overflow, left."""
    data: NotRequired[str]
    """The line, or what the child wrote."""
    code: NotRequired[int]
    """Its exit code; a signal is negative."""
    killed: NotRequired[bool]
    """Whether the zygote had to kill it."""
    cpu_s: NotRequired[float]
    own_s: NotRequired[float]
    """Seconds in which the child waited for nobody."""
    equal: NotRequired[bool]
    """Of a comparison by `study.truth.equations`."""
    dirty: NotRequired[bool]
    """Whether the sandbox was written to."""
