"""How long IFEval takes to score 541 responses, strict and loose: benchmarks/rewards/ifeval.py

The responses are made up (the prompt's own words, cut and marked up, so that checkers have work).
The peer is the checkers' package asked once per text without our sharing of variants: verdicts must
agree before anything is timed.
"""

from __future__ import annotations

import random
import time

from experiments.evaluation import ifeval


def responses(prompts: list[ifeval.Prompt]) -> dict[int, str]:
    """One response of some hundred words per prompt."""
    texts = {}
    for prompt in prompts:
        draw = random.Random(prompt.key)
        words = (prompt.text.split() * 40)[: draw.randint(150, 400)]
        draw.shuffle(words)
        lines = [" ".join(words[start : start + 12]) for start in range(0, len(words), 12)]
        texts[prompt.key] = "**Answer**\n" + ".\n".join(lines) + "."
    return texts


def naive(prompt: ifeval.Prompt, response: str, checkers: object) -> tuple[list[bool], list[bool]]:
    """Strict and loose with a fresh check of each of the eight texts, nothing shared."""
    lines = response.split("\n")
    cuts = [lines, lines[1:], lines[:-1], lines[1:-1]]
    texts = ["\n".join(cut).strip() if n else response for n, cut in enumerate(cuts)]
    texts += [text.replace("*", "") for text in texts]
    strict = ifeval.check(prompt, response, checkers, 0).strict  # ty: ignore[invalid-argument-type]
    loose = [False] * len(strict)
    for text in texts:
        if text.strip():
            strict_of_text = ifeval.check(prompt, text, checkers, 0).strict  # ty: ignore[invalid-argument-type]
            loose = [a or b for a, b in zip(loose, strict_of_text, strict=True)]
    return list(strict), loose


def main() -> None:
    """Equality first, then the two times in turn, three rounds."""
    root = ifeval.data_root(None)
    prompts, checkers = ifeval.load_prompts(root), ifeval.load_checkers(root)
    texts = responses(prompts)
    for prompt in prompts:
        ours = ifeval.check(prompt, texts[prompt.key], checkers, 0)
        assert (list(ours.strict), list(ours.loose)) == naive(prompt, texts[prompt.key], checkers)
    times: dict[str, list[float]] = {"ours": [], "naive": []}
    for _ in range(3):
        started = time.perf_counter()
        for prompt in prompts:
            naive(prompt, texts[prompt.key], checkers)
        times["naive"].append(time.perf_counter() - started)
        started = time.perf_counter()
        scores = ifeval.score(prompts, texts, checkers)
        times["ours"].append(time.perf_counter() - started)
    ours, peer = min(times["ours"]), min(times["naive"])
    words = sum(len(text.split()) for text in texts.values()) / len(texts)
    print(
        f"{scores['n_prompts']} responses of {words:.0f} words, {scores['n_instructions']} checks"
    )
    print(f"strict and loose {ours:.2f} s; every text anew {peer:.2f} s: {peer / ours:.2f}x")


if __name__ == "__main__":
    main()
