"""What each kind of endpoint takes and how it spells it, as data: ``judge.endpoint.dialect``.

The same question needs another switch, another limit and another form at each kind of server. A
setting that a dialect cannot carry out is refused before anything is asked, never dropped: two
arms of a study must not be the same judge under two names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypedDict, cast

from study.config import bounds
from study.config.schema import Endpoint, Judge, Model, Sampling
from study.errors import UserError
from study.system.tables import table

REMINDER = (
    "Your last reply could not be read. Answer now, and give only what was asked for, in exactly "
    "the format asked for."
)


class Body(TypedDict, total=False):
    """The JSON body of a chat request, or what a grading adds to it, spelled as vLLM does. Dialects
    and ``endpoint.extra_body`` may give it further fields."""

    model: str
    messages: Sequence[Mapping[str, str]]
    temperature: float
    top_p: float
    max_tokens: int
    max_tokens_at_least: int
    """Of a grading: raises the sampling's token limit where it is lower; it is not sent."""
    seed: int
    reasoning_effort: str
    structured_outputs: Mapping[str, object]
    """``{"choice": [...]}`` or ``{"json": schema}``, to which a reply is forced."""
    logprobs: bool
    top_logprobs: int
    chat_template_kwargs: Mapping[str, object]
    stream: bool
    stream_options: dict[str, bool]
    input: str
    """Of an embeddings request, in place of messages."""
    encoding_format: str


@dataclass(frozen=True)
class Dialect:
    """One way to speak chat completions."""

    thinking: Literal["switch", "always", "never", "unknown"] = "unknown"
    """Whether the request decides, or nothing does."""
    switch: Sequence[str] = ()
    """Where the request says true or false: names from the outside in."""
    thinking_streams: bool = False
    """Whether it thinks only in a streamed answer."""
    efforts: Sequence[str] = ()
    """Legal values of ``reasoning_effort``; none where the field is not known."""
    stream: Literal["allowed", "required"] = "allowed"
    structured: Literal["vllm", "json_schema", "none"] = "none"
    """How a form is enforced: any of vLLM's, only a JSON schema, or not at all. A form is an aid
    to the prompt, which asks for it anyway; where it cannot be enforced it is left out."""
    top_logprobs: int = 0
    """Most alternatives per token; 0 where no log-probs of the answer can be had."""
    lists_models: bool = True
    """Whether its list of models names every one that it serves."""


DIALECTS = {name: Dialect(**settings) for name, settings in table(__file__).items()}


def dialect_of(model: Model) -> Dialect:
    """The dialect that a model's endpoint speaks. Raises UserError: there is none of that name."""
    return named_dialect(dialect_name(model))


def named_dialect(name: str) -> Dialect:
    """The dialect of that name; without a name OpenAI's.
    Raises UserError: there is none of that name."""
    return bounds.pick("judge.endpoint.dialect", name or "openai", DIALECTS, "vllm")


def dialect_name(model: Model) -> str:
    """``endpoint.dialect``, or what it stands for where it is empty."""
    return model.endpoint.dialect or ("simulated" if model.computed else "openai")


def check_dialect(judge: Judge, wanted: Mapping[str, Any]) -> None:
    """Refuse settings that the endpoint cannot carry out; ``wanted`` is what the judge's grading
    adds to the body of a request. Raises UserError: with what would do instead."""
    dialect, sampling, endpoint = dialect_of(judge), judge.sampling, judge.endpoint
    here = f"the dialect {dialect_name(judge)} (judge.endpoint.dialect)"

    def refuse(setting: str, why: str, instead: str) -> NoReturn:
        raise UserError(f"judge.{setting} is not possible: {why}. {instead}.")

    why, fixed = {
        "switch": ("", sampling.thinking),
        "always": ("always thinks", True),
        "never": ("never thinks", False),
        "unknown": ("has no switch for thinking", None),
    }[dialect.thinking]
    if sampling.thinking not in (None, fixed):
        refuse(
            f"sampling.thinking={str(sampling.thinking).lower()}",
            f"{here} {why}",
            "Leave it out with judge.sampling.thinking=null, or choose a dialect with a switch: "
            + ", ".join(name for name, item in DIALECTS.items() if item.switch),
        )
    if sampling.thinking and dialect.thinking_streams and not endpoint.stream:
        raise UserError(
            f"judge.sampling.thinking=true needs a streamed answer in {here}; type "
            "judge.endpoint.stream=true."
        )
    if sampling.reasoning_effort is not None and sampling.reasoning_effort not in dialect.efforts:
        refuse(
            f"sampling.reasoning_effort={sampling.reasoning_effort}",
            f"{here} knows {', '.join(dialect.efforts) or 'no such setting'}",
            f"Type judge.sampling.reasoning_effort={(*dialect.efforts, 'null')[0]}",
        )
    if dialect.stream == "required" and not endpoint.stream:
        why = f"{here} answers only as a stream"
        refuse("endpoint.stream=false", why, "Type judge.endpoint.stream=true")
    if wanted.get("logprobs") and not dialect.top_logprobs:
        raise UserError(
            f"judge.grading.name={judge.grading.name} reads log-probs, but {here} gives none for"
            " the answer. Choose another grading, for example judge.grading.name=likert, or"
            " switch log-probs off: +judge.grading.options.soft=false."
        )
    spelled = spell_grading(dialect, wanted)
    if judge.grading.options.get("structured") and len(spelled) < len(wanted):
        refuse(
            "grading.options.structured=true",
            f"{here} does not enforce the form that the grading {judge.grading.name} needs",
            "Type judge.grading.options.structured=false",
        )


def chat_body(
    endpoint: Endpoint,
    sampling: Sampling,
    messages: Sequence[Mapping[str, str]],
    sample_index: int = 0,
    extra: Mapping[str, Any] | None = None,
    dialect: Dialect | None = None,
) -> Body:
    """The JSON body of one request: the one place that knows what an endpoint is sent.

    ``extra`` (what a grading adds) and then ``endpoint.extra_body`` overrule what the sampling
    gives; of the token limit ``extra`` may just say the least (``max_tokens_at_least``). The number
    of the draw, ``sample_index``, is added to the seed."""
    dialect = named_dialect(endpoint.dialect) if dialect is None else dialect
    limit = _limit(endpoint)
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": list(messages),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        limit: sampling.max_tokens,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed + sample_index
    if sampling.thinking is not None and dialect.switch:
        inner: Any = sampling.thinking
        for key in reversed(dialect.switch):
            inner = {key: inner}
        body |= inner
    if sampling.reasoning_effort is not None:
        body["reasoning_effort"] = sampling.reasoning_effort
    spelled = spell_grading(dialect, extra or {})
    if "max_tokens" in spelled:  # gradings do not know how the endpoint spells it
        spelled[limit] = spelled.pop("max_tokens")
    if "max_tokens_at_least" in spelled:
        body[limit] = max(body[limit], spelled.pop("max_tokens_at_least"))
    return cast("Body", body | spelled | endpoint.extra_body)


def judge_body(
    judge: Judge, extra: Mapping[str, Any], messages: Sequence[Mapping[str, str]], sample_index: int
) -> Body:
    """The body of one request to a judge; ``extra`` is what its grading adds."""
    return chat_body(
        judge.endpoint, judge.sampling, messages, sample_index, extra, dialect_of(judge)
    )


def changed_body(judge: Judge, body: Body, remind: bool = False, budget: int = 1) -> Body:
    """The body of a request for the same verdict that reminds of the format, or allows ``budget``
    times the tokens."""
    changed: dict[str, Any] = dict(body)
    if remind:
        # In the last turn and not in one more: many chat templates want roles to alternate.
        *earlier, last = body["messages"]
        changed["messages"] = [*earlier, {**last, "content": f"{last['content']}\n\n{REMINDER}"}]
    if budget > 1:
        changed[_limit(judge.endpoint)] *= budget
    return cast("Body", changed)


def _limit(endpoint: Endpoint) -> str:
    """The field that holds the token limit."""
    return endpoint.max_tokens_field or "max_tokens"


def spell_grading(dialect: Dialect, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What a grading adds to a request, as the endpoint takes it.

    ``structured_outputs`` ({"choice": [...]} or {"json": schema}) becomes the dialect's own form,
    and ``top_logprobs`` is cut to what the endpoint gives.
    """
    body = dict(wanted)
    form = body.pop("structured_outputs", None)
    if form is not None and dialect.structured == "vllm":
        body["structured_outputs"] = form
    elif form is not None and dialect.structured == "json_schema" and "json" in form:
        schema = {"name": "verdict", "strict": True, "schema": form["json"]}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if dialect.structured == "none":
        body.pop("response_format", None)
    if "top_logprobs" in body:
        body["top_logprobs"] = min(body["top_logprobs"], dialect.top_logprobs)
    return body


def described(judge: Judge) -> str:
    """The dialect in a few words, for people."""
    dialect = dialect_of(judge)
    parts = {
        "thinking": dialect.thinking,
        "stream": "on" if judge.endpoint.stream else f"off ({dialect.stream})",
        "structured": dialect.structured,
        "log-probs": str(dialect.top_logprobs or "none"),
    }
    return f"{dialect_name(judge)}: " + ", ".join(f"{key} {value}" for key, value in parts.items())
