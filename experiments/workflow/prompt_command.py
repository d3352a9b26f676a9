"""What a policy is shown before it writes a program for a problem.

problem= is {id, domain, prompt, entry_point, group_key}, in a file or as JSON itself; answers and
hidden tests may stand in it and are not read. buffer= are rows as `experiments.workflow buffer`
takes them. The result has messages, blocks [{id, version, sha, tokens, kept}], tokens and few_shots
[{id, similarity}]. Without tokenizer=, a token is up to 6 letters, 1 other character, or a run of
line breaks. Under cap= the examples go first, one by one, then domain, then rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.policies.tokens import by_rule, by_tokenizer
from experiments.workflow.buffer_command import read_buffer
from experiments.workflow.experience import MODES
from experiments.workflow.find import FORMS
from experiments.workflow.problem import read_problem
from experiments.workflow.prompt import SHOTS, Prompter
from study.cli import command, option, output, word
from study.config.bounds import Choice, Number
from study.config.schema import MANY
from study.system.files import write_json


@dataclass(frozen=True)
class Options:
    """Options of the command ``prompt``: the problem, the examples, and the limits."""

    what: str = word("print the prompt of a problem", "prompt")
    problem: str = option("JSON file of the problem", required=True)
    buffer: Path | None = option("JSONL file of executed programs, for examples")
    cap: int | None = option("most tokens of the prompt", legal=Number(low=1, high=MANY))
    form: str = option("form of the programs", "python", Choice(FORMS))
    shots: int = option("most examples", SHOTS, Number(low=0, high=SHOTS))
    mode: str = option("how examples are chosen", "cosine", Choice(MODES))
    blocks: Path | None = option("folder of newer blocks, as optimise writes it")
    tokenizer: Path | None = option("folder of a model, or its tokenizer.json, to count tokens by")
    out: Path = output("JSON file for the result", required=True)


@command("experiments.workflow prompt problem=problem.json out=prompt.json", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 made, 2 for a user's error."""
    problem = read_problem(options.problem)
    buffer = read_buffer(options.buffer, "buffer") if options.buffer else None
    count = by_tokenizer(options.tokenizer) if options.tokenizer else by_rule
    prompter = Prompter(options.form, count, blocks=options.blocks or "")
    prompt = prompter.prompt(problem, buffer, options.cap, options.shots, options.mode)
    blocks = [
        {
            "id": block.id,
            "version": block.version,
            "sha": block.sha,
            "tokens": block.tokens,
            "kept": block.kept,
        }
        for block in prompt.blocks
    ]
    result = {
        "messages": prompt.messages,
        "blocks": blocks,
        "tokens": prompt.tokens,
        "few_shots": [{"id": entry.id, "similarity": like} for entry, like in prompt.few_shots],
    }
    write_json(options.out, result)
    left_out = [block.id for block in prompt.blocks if not block.kept]
    print(
        f"{prompt.tokens} tokens, {len(prompt.few_shots)} examples;"
        f" not in it: {', '.join(left_out) or 'nothing'}. {options.out}"
    )
    return 0
