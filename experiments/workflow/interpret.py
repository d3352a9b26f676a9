"""Goes through the steps of a short form in this process: what its class would do, call by call.

The class that `dsl` writes runs in the sandbox, for one rollout. Where a program is tried thousands
of times, in a world that answers at once, this is a thousand times cheaper. Both read the arguments
of a step from `dsl.call_of`. Parts of a list are gone through one after the other.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from experiments.workflow.dsl import ENSEMBLES, SO_FAR, Step, call_of, verdict_key
from experiments.workflow.operators import OPERATORS
from experiments.workflow.operators.base import Arguments, Results, Value
from experiments.workflow.problem import Problem

Ask = Callable[[str, Arguments], Awaitable[Results]]
"""(operator, arguments) -> its result."""


@dataclass
class State:
    """What the steps of a part read and change."""

    problem: str
    entry_point: str
    solution: str = ""
    feedback: str = ""
    solutions: list[str] = field(default_factory=list)
    """What an ensemble chooses from."""


async def interpret(steps: list[Step], problem: Problem, ask: Ask) -> str:
    """The solution that a program of `dsl.parse` ends with. Raises what ``ask`` raises."""
    return await _part(steps, State(problem.prompt, problem.entry_point), ask)


async def _part(steps: list[Step], state: State, ask: Ask) -> str:
    """A whole program, or one of a list; what it changes stays in it."""
    own_state = replace(state, solutions=[state.solution])
    await _all(steps, own_state, ask)
    return own_state.solution


async def _all(steps: list[Step], state: State, ask: Ask) -> bool:
    """Some steps, one after the other; whether one of them ended the part."""
    for place, step in enumerate(steps):
        behind = steps[place + 1].operator if place + 1 < len(steps) else ""
        if await _step(step, state, ask, behind in ENSEMBLES):
            return True
    return False


async def _step(step: Step, state: State, ask: Ask, collects: bool) -> bool:
    if step.branches:
        state.solutions = [await _part(branch, state, ask) for branch in step.branches]
        state.solution = state.solutions[0]
        return False
    if step.turns:
        solutions, start = [], state.solution
        for _ in range(step.turns):
            if collects:
                state.solution = start
            if await _all(step.body, state, ask):
                return True
            solutions.append(state.solution)
        state.solutions = solutions
        return False
    arguments, key = _call(step.operator)
    result = await ask(step.operator, {name: value(state) for name, value in arguments.items()})
    if step.operator == "Review":
        state.feedback = str(result["feedback"])
    elif key:
        state.solution = str(result[key])
        state.solutions = [state.solution]
    if not step.chooses:
        return False
    if not result[verdict_key(step.operator)]:
        return await _all(step.body, state, ask)
    return True if step.other is None else await _all(step.other, state, ask)


@functools.cache
def _call(name: str) -> tuple[dict[str, Callable[[State], Value]], str]:
    """Each argument of a step as a function of the state, and the key of its solution."""
    text, key = call_of(name)
    call = ast.parse(f"call({text.replace('{task}', 'task')})", mode="eval").body
    assert isinstance(call, ast.Call)
    keywords = {keyword.arg: _value(keyword.value) for keyword in call.keywords}
    arguments = {
        argument.name: keywords.get(argument.name, _constant(argument.default))
        for argument in OPERATORS[name].arguments
    }
    return arguments, key


def _value(node: ast.expr) -> Callable[[State], Value]:
    if isinstance(node, ast.Constant):
        return _constant(ast.literal_eval(node))
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        first, second = map(_value, node.values)
        return lambda state: first(state) or second(state)
    assert isinstance(node, ast.Name), "a step is given texts, names, and one name or another"
    return _task if node.id == "task" else operator.attrgetter(node.id)


def _constant(value: Value) -> Callable[[State], Value]:
    return lambda state: value


def _task(state: State) -> str:
    """The problem, and the solution so far where there is one."""
    return state.problem + SO_FAR + state.solution if state.solution else state.problem
