"""Answers of a model behind an endpoint, asked for as judges are: one client, with its limits,
retries, deadline and replies without the key.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.evaluation.decoding import Decoding, Keep, Row, Turns, failed
from judges.endpoint.chat_completions import FILTERED
from judges.endpoint.complete import Fetched, chat_body, complete_all
from study.schema import Endpoint, Sampling


def answer_all(
    endpoint: Endpoint, prompts: Sequence[str], keep: Keep, decoding: Decoding, turns: Turns
) -> None:
    """Ask for every prompt; one that is refused is missing, and the others are asked for.

    Raises:
        UserError: nobody answers the first request, or its key or model is refused.
    """
    sampling = Sampling(
        temperature=decoding.temperature,
        top_p=decoding.top_p,
        max_tokens=decoding.max_tokens,
        seed=decoding.seed,
    )
    bodies = [chat_body(endpoint, sampling, turns(prompt)) for prompt in prompts]
    if decoding.thinking is not None:
        for body in bodies:
            body["chat_template_kwargs"] = {"enable_thinking": decoding.thinking}
    complete_all(endpoint, bodies, lambda place, fetched: keep(_row(prompts[place], fetched)))


def _row(prompt: str, fetched: Fetched) -> Row:
    """One response.

    A thinker that was cut off has its thoughts in a field of their own and no content: it is
    written as thinking that was never closed, so that it counts as that.
    """
    if fetched.outcome is not None:
        return failed(prompt, f"{fetched.outcome}: {fetched.reason}")
    reply = fetched.replies[-1]
    text, finish = reply.text, reply.finish_reason
    if finish == FILTERED and not text:
        return failed(prompt, "the endpoint filtered the answer")
    if not text and reply.reasoning and finish == "length":
        text = f"<think>{reply.reasoning}"
    return {
        "prompt": prompt,
        "response": text,
        "stop": "length" if finish == "length" else "stop",
        "tokens": reply.tokens_out,
    }
