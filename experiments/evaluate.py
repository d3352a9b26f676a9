"""Held-out evaluation: ``python -m experiments.evaluate ifeval responses=FILE out=FILE``.

The answers come from a file, or are generated first, from a run, a model folder, an adapter or an
endpoint; docs/evaluation.md has every option.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from experiments.evaluation import ifeval
from experiments.evaluation.collect import collect
from experiments.evaluation.datasets import evaluate_datasets
from experiments.evaluation.generate import source_of
from experiments.evaluation.options import Options
from experiments.evaluation.results import track, write_result
from experiments.evaluation.rubric import evaluate_rubric
from experiments.workflow.evaluation import evaluate_workflow
from study.cli import command


def evaluate_ifeval(options: Options) -> None:
    """Collect the responses, score them, and write the result."""
    source_of(options)  # options that do not fit are said before data that are missing
    root = ifeval.data_root(options.root)
    prompts = ifeval.load_prompts(root)
    checkers = ifeval.load_checkers(root)
    selected_prompts = prompts[: options.limit]
    turns = {prompt.text: [{"role": "user", "content": prompt.text}] for prompt in selected_prompts}
    keys = {prompt.text.strip(): prompt.key for prompt in prompts}
    answers = collect(options, turns, keys, once=True)
    completions = {key: texts[0] for key, texts in answers.texts.items()}
    result: dict[str, Any] = {
        "evaluation": "ifeval",
        "model": answers.model,
        "responses": answers.files[0],
        "dataset": {"name": "ifeval", "digest": ifeval.digest(prompts)},
        "checkers": f"if-verifiable {version('if-verifiable')}",
        "seed": options.seed,
        "n_failed_generation": answers.failed,
        **ifeval.score(prompts, completions, checkers, options.seed),
    }
    if answers.settings is not None:
        result |= {"generation": answers.settings, "n_truncated": answers.truncated}
    target = options.out
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
    "datasets": evaluate_datasets,
    "ifeval": evaluate_ifeval,
    "rubric": evaluate_rubric,
    "healthbench": evaluate_rubric,
    "workflow": evaluate_workflow,
}


@command("experiments.evaluate ifeval responses=answers.jsonl out=result.json", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 evaluated, 2 for a user's error."""
    EVALUATIONS[options.what](options)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
