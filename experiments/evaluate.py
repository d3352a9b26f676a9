"""Held-out evaluation: ``python -m experiments.evaluate ifeval responses=FILE out=FILE``.

The answers come from a file, or are generated first, from a run, a model folder, an adapter or an
endpoint; docs/evaluation.md has every option.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from typing import Any

from experiments.evaluation import generate, ifeval
from experiments.evaluation.options import Options
from experiments.evaluation.options import source as source_of
from experiments.evaluation.responses import match, model_of, read_responses
from experiments.evaluation.results import complete, guard, version_of, write_result
from experiments.evaluation.rubric import evaluate_healthbench, evaluate_rubric
from experiments.evaluation.tracked import track
from study.cli import command
from study.errors import UserError


def evaluate_ifeval(options: Options) -> None:
    """Generate responses where asked to, score them, and write the result.

    Raises:
        UserError: options that do not fit, responses that do not, or a result of another model.
    """
    target = options.out
    source = source_of(options)
    root = ifeval.data_root(options.root)
    prompts = ifeval.load_prompts(root)
    checkers = ifeval.load_checkers(root)
    chosen = prompts
    if source is None:
        assert options.responses is not None
        path = options.responses
    else:
        guard(target, source.model, "ifeval")
        chosen = prompts[: options.limit]
        path = options.responses_out or target.with_suffix(".responses.jsonl")
        if path.resolve() == target.resolve():
            raise UserError(f"out and responses_out are both {path}. Give them different names.")
        generate.fill(source, [prompt.text for prompt in chosen], path)
    responses = read_responses(path)
    model = model_of(responses, path)
    completions = match(responses, {prompt.text: prompt.key for prompt in prompts}, path)
    wanted = {prompt.key for prompt in chosen}
    completions = {key: text for key, text in completions.items() if key in wanted}
    failed = sum(one.text is None for one in responses)
    complete(len(completions), len(chosen), failed, path, options.allow_missing)
    data = path.read_bytes()
    result: dict[str, Any] = {
        "evaluation": "ifeval",
        "model": model,
        "responses": {"path": str(path.resolve()), "sha256": hashlib.sha256(data).hexdigest()},
        "dataset": {"name": "ifeval", "digest": ifeval.digest(prompts)},
        "checkers": version_of("if-verifiable"),
        "seed": options.seed,
        "n_failed_generation": failed,
        **ifeval.score(prompts, completions, checkers, options.seed),
    }
    if source is not None:
        result["generation"] = source.settings
        result["n_truncated"] = sum(one.fields.get("stop") == "length" for one in responses)
    write_result(target, result)
    numbers = {name: float(result[name]) for name in (*ifeval.MEASURES, "n_prompts", "n_empty")}
    track(options, "ifeval", numbers, result)
    for measure in ifeval.MEASURES:
        low, high = result["intervals"][measure]
        print(f"{measure:<18} {result[measure]:.4f}  95 % {low:.4f} to {high:.4f}")
    print(
        f"{result['n_prompts']} prompts, {result['n_instructions']} instructions;"
        f" {result['n_missing']} prompts without response, {result['n_empty']} empty,"
        f" {result['n_truncated_thinking']} cut off while thinking. {target}"
    )


EVALUATIONS: dict[str, Callable[[Options], None]] = {
    "ifeval": evaluate_ifeval,
    "rubric": evaluate_rubric,
    "healthbench": evaluate_healthbench,
}


@command("experiments.evaluate ifeval responses=answers.jsonl out=result.json", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 evaluated, 2 for a user's error."""
    EVALUATIONS[options.what](options)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
