"""Seconds that a real server takes per group of prompts, by layout of the rubric prompt.

    python -m judges.serve judge=smollm2-135m      # in another terminal
    python -m benchmarks.judges.prefix_time [url=http://127.0.0.1:8123/v1] [groups=3]

The count of ``prefix.py`` on a clock: prompts of VerInstruct's size and one token of reply, so
that nearly all the time is prefill. Layouts take turns, each group's texts are new, and the server
says how many tokens it found in its cache.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.judges.prefix import GROUP, RESPONSE, SETS
from judges.grading.rubric import RubricBatch
from study.rows import Criterion, make_row

LAYOUTS = ("ancestor", "cacheable")
WORDS = "answer short reason clear point order table window garden river music letter paper".split()
"""Plain words: about one token each, where random letters would be one each."""


def text(draw: random.Random, characters: int) -> str:
    """A text that begins like no other."""
    return " ".join(draw.choices(WORDS, k=characters // 7))


def ask(url: str, model: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    """One request for one token; its usage."""
    body = {"model": model, "messages": messages, "max_tokens": 1, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)["usage"]


def group_seconds(url: str, model: str, layout: str, draw: random.Random) -> tuple[float, int, int]:
    """Seconds, prompt tokens and cached ones of a group: one request first, then the others."""
    grading = RubricBatch({"layout": layout})
    sizes = SETS["VerInstruct"]
    count = round(sizes.criteria)
    criteria = tuple(Criterion(text(draw, sizes.characters)) for _ in range(count))
    task = make_row(({"role": "user", "content": text(draw, sizes.prompt)},), criteria)
    prompts = [grading.requests(task, text(draw, RESPONSE))[0].messages for _ in range(GROUP)]
    started = time.perf_counter()
    used = [ask(url, model, prompts[0])]
    with ThreadPoolExecutor(GROUP) as pool:
        used += pool.map(lambda messages: ask(url, model, messages), prompts[1:])
    took = time.perf_counter() - started
    details = [(usage.get("prompt_tokens_details") or {}) for usage in used]
    cached = sum(detail.get("cached_tokens") or 0 for detail in details)
    return took, sum(usage["prompt_tokens"] for usage in used), cached


def main(arguments: list[str]) -> None:
    """Take turns, print medians and the ratio of each pair of groups."""
    options = dict(argument.split("=", 1) for argument in arguments)
    url = options.get("url", "http://127.0.0.1:8123/v1")
    with urllib.request.urlopen(f"{url}/models", timeout=10) as reply:
        model = json.load(reply)["data"][0]["id"]
    draw = random.Random(0)
    group_seconds(url, model, "cacheable", draw)  # warms up what the first requests compile
    timings: dict[str, list[tuple[float, int, int]]] = {layout: [] for layout in LAYOUTS}
    for _ in range(int(options.get("groups", "3"))):
        for layout in LAYOUTS:
            timings[layout].append(group_seconds(url, model, layout, draw))
    for layout, runs in timings.items():
        seconds, tokens, cached = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{layout:10} {seconds:6.2f} s a group, {tokens:6.0f} tokens, {cached:6.0f} cached")
    ratios = [slow[0] / fast[0] for slow, fast in zip(*timings.values(), strict=True)]
    print(f"ancestor / cacheable: {statistics.median(ratios):.2f}x [{min(ratios):.2f}]")


if __name__ == "__main__":
    main(sys.argv[1:])
