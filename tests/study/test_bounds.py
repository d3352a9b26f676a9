"""What a config field may hold: bounds of the schema, the one place that enforces them, and the
marks that took the place of lists."""

import dataclasses
import math
import typing
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.ask.identity import judge_id as id_of
from study.cell.cells import make_cell
from study.config import bounds, schema
from study.config.bounds import LONGEST_NAME, Choice, Name, Number, check
from study.config.compose import load_judge
from study.config.marks import (
    JUDGE_ID,
    MLFLOW_PARAM,
    RUN_TIME,
    judge_id,
    marked_keys,
    mlflow_param,
    run_time,
)
from study.config.schema import Judge, Study, Trainer, freeze
from study.errors import UserError

FREE = {
    "Failure.per_length", "Simulated.leniency", "Simulated.scale", "Simulated.drift_per_1000",
    "Reward.threshold",
}  # fmt: skip
"""Numbers of any size and sign: a dose may be negative."""


def nested(path: str, value: object) -> dict[str, object]:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def dataclasses_of_the_schema() -> list[type]:
    return [
        member
        for member in vars(schema).values()
        if isinstance(member, type)
        and dataclasses.is_dataclass(member)
        and not member.__name__.endswith("Schema")
        and member.__qualname__ == member.__name__
        and member.__dataclass_params__.frozen
    ]


@pytest.mark.parametrize("cls", dataclasses_of_the_schema(), ids=lambda cls: cls.__name__)
def test_every_number_of_the_schema_has_bounds(cls: type) -> None:
    """A new field without bounds fails here, so that it is thought of."""
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        kinds = {hints[item.name], *typing.get_args(hints[item.name])} - {type(None)}
        if kinds & {int, float} and typing.get_origin(hints[item.name]) not in (list, dict):
            named = f"{cls.__name__}.{item.name}"
            assert isinstance(item.metadata.get("legal"), Number) or named in FREE, named


def test_every_default_is_legal_and_moves_no_hash() -> None:
    for cls in dataclasses_of_the_schema():
        assert freeze(cls, dataclasses.asdict(cls())) == cls()
    # Bounds are no part of a cell's identity; the digest was taken before there were any.
    data = {"judge": {"name": "sim-fair"}, "trainer": {"steps": 4, "loss_type": "grpo"}, "seed": 1}
    assert make_cell(data).id == "8173987f8b"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("trainer.steps", -5, "1 or more"),
        ("trainer.steps", 0, "1 or more"),
        ("trainer.steps", 10**12, "at most 1000000"),
        ("trainer.steps", True, "a whole number"),
        ("trainer.steps", 2.5, "a whole number"),
        ("trainer.steps", "4", "a whole number"),
        ("trainer.steps", None, "a whole number"),
        ("trainer.group_size", 1, "2 or more"),
        ("trainer.prompts_per_step", 0, "1 or more"),
        ("trainer.learning_rate", math.nan, "finite"),
        ("trainer.learning_rate", -1e-6, "0 or more"),
        ("trainer.learning_rate", 10**400, "finite"),
        ("trainer.temperature", 0, "0.001 or more"),
        ("trainer.top_p", 0.0, "above 0"),
        ("trainer.top_p", 1.5, "at most 1"),
        ("trainer.epsilon", math.inf, "finite"),
        ("trainer.loss_type", "dpo", "dr_grpo"),
        ("trainer.scale_rewards", "true", "group, batch, none"),
        ("trainer.lr_scheduler", "cosine_with_min_lr", "linear"),
        ("seed", -1, "0 or more"),
        ("seed", 2**32, "at most 4294967295"),
        ("task.seed", -1, "0 or more"),
        ("judge.sampling.seed", -1, "0 or more"),
        ("judge.sampling.temperature", -0.1, "0 or more"),
        ("judge.sampling.max_tokens", 0, "1 or more"),
        ("judge.sampling.votes", 0, "1 or more"),
        ("judge.endpoint.deadline_s", 0.0, "0.001 or more"),
        ("judge.endpoint.max_concurrency", 0, "1 or more"),
        ("judge.endpoint.requests_per_min", 0.0, "above 0"),
        ("judge.price.input", -1.0, "0 or more"),
        ("judge.max_unscored_frac", 1.1, "at most 1"),
        ("judge.on_failure", "ignore", "drop_group"),
        ("judge.name", "a/b", "a plain name"),
        ("judge.serve.device", "tpu", "gpu, cpu"),
        ("judge.serve.dtype", "int8", "bfloat16"),
        ("judge.serve.lora", {"../x": "folder"}, "a plain name"),
        ("judge.simulated.tpr", 2.0, "at most 1"),
        ("judge.simulated.doses", {"length": math.nan}, "finite"),
        ("judge.simulated.failure.kinds", ["lost"], "unparsed"),
        ("judge.grading.options", {"positive": [1.0, {"deep": math.inf}]}, "finite"),
        ("policy.name", "..", "a plain name"),
        ("policy.dtype", "float31", "bfloat16"),
        ("policy.lora.r", 0, "1 or more"),
        ("policy.lora.dropout", 1.0, "below 1"),
        ("policy.architecture", {"layers": 0}, "1 or more"),
        ("reward.rules", "skip", "ignore, run, judge"),
        ("reward.rule_part", "some", "mean, all"),
        ("reward.truth_weight", 2.0, "at most 1"),
        ("reward.domains", {"qa": "both"}, "judge, rule"),
        ("correction.recheck", 1.5, "at most 1"),
        ("correction.rubric_dropout", 1, "below 1"),
        ("correction.calibrate", -1, "0 or more"),
        ("correction.panel", "best", "median"),
        ("scaffold.name", "rusca", "none, ruscarl"),
        ("scaffold.x0", -1.0, "0 or more"),
        ("sweep.workers", -1, "0 or more"),
        ("cost.max_calls", 0, "above 0"),
        ("sandbox", "none", "auto, unsafe"),
        ("study", "../../x", "a plain name"),
        ("study", ".hidden", "a plain name"),
        ("study", "-rf", "a plain name"),
        ("study", "probes", "not probes"),
        ("study", "", "a plain name"),
        ("study", "x" * (LONGEST_NAME + 1), "a plain name"),
        ("arm", "a b", "a plain name"),
        ("shadow", ["../x"], "a plain name"),
        ("trainer", None, "a table"),
        ("factors", "judge", "a list"),
    ],
)  # fmt: skip
def test_what_is_not_legal_is_refused_with_key_value_and_what_is(path, value, expected) -> None:
    with pytest.raises(UserError) as caught:
        freeze(Study, nested(path, value))
    message = str(caught.value)
    assert message.startswith(path) or f"a key of {path}" in message
    assert expected in message
    assert len(message) < 600


def test_words_and_presets_are_named_as_they_are_typed() -> None:
    with pytest.raises(UserError, match=r"trainer\.steps=-5 .* Type for example: trainer\.steps="):
        freeze(Trainer, {"steps": -5})
    assert Choice(("a", "")).describe() == "one of a, an empty text"
    assert Name(empty=True).accepts("") and not Name().accepts("")


@given(st.text())
def test_a_plain_name_stays_in_its_folder(text: str) -> None:
    try:
        check("study", text, Name())
    except UserError:
        return
    assert "/" not in text and not text.startswith((".", "-")) and 0 < len(text) <= LONGEST_NAME
    assert text.isascii() and text.isprintable() and " " not in text


@given(st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans()))
def test_any_value_of_steps_is_taken_whole_or_refused(value) -> None:
    try:
        steps = freeze(Trainer, {"steps": value}).steps
    except UserError:
        return
    assert steps == value and isinstance(steps, int) and 1 <= steps <= 1_000_000


@pytest.mark.parametrize("bound", ["low", "high", "above", "below"])
def test_a_bound_says_and_keeps_its_limit(bound: str) -> None:
    number = Number(**{bound: 3})
    assert "3" in number.describe()
    assert [number.accepts(value) for value in (2, 3, 4)] == {
        "low": [False, True, True],
        "high": [True, True, False],
        "above": [False, False, True],
        "below": [True, False, False],
    }[bound]


def test_the_losses_and_schedulers_are_those_of_the_trainer() -> None:
    """Read from the sources of TRL and transformers: each legal word is known there."""
    import inspect
    import re

    import torch
    from transformers import get_scheduler
    from trl import GRPOTrainer

    from study.config.bounds import words_of

    source = inspect.getsource(GRPOTrainer._compute_loss)
    lines = [line for line in source.splitlines() if "self.loss_type" in line]
    assert set(words_of(Trainer, "loss_type")) == set(re.findall(r'"(\w+)"', " ".join(lines)))
    for word in words_of(Trainer, "lr_scheduler"):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
        get_scheduler(word, optimizer, num_warmup_steps=0, num_training_steps=4)


@dataclass(frozen=True)
class Inner:
    url: str = mlflow_param(run_time("here"))
    tries: int = run_time(bounds.number(3, low=1))
    model: str = judge_id("m")


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    whole: Inner = run_time(field(default_factory=Inner))
    many: list[Inner] = field(default_factory=list)
    plain: int = 0


def test_keys_of_a_mark_are_found_inside_and_bounds_stay() -> None:
    inside = ("inner.url", "inner.tries", "maybe.url", "maybe.tries")
    assert marked_keys(Outer, RUN_TIME) == (*inside, "whole")
    assert marked_keys(Outer, MLFLOW_PARAM) == ("inner.url", "maybe.url", "whole.url")
    assert Outer() == Outer(inner=Inner("here", 3, "m"))
    assert Inner.__dataclass_fields__["tries"].metadata["legal"] == bounds.Number(low=1)


def test_what_cannot_change_a_result() -> None:
    """Anything not here is part of a cell's hash: to be thought about before it is added."""
    endpoint = (
        "url api_key_env max_concurrency deadline_s connect_timeout_s idle_timeout_s attempts"
        " backoff_s max_reply_bytes reuse_connections requests_per_min tokens_per_min adaptive"
        " shared start_command replicas served_as"
    )
    judge = {f"judge.{key}" for key in ("price", "serve", "max_unscored_frac")}
    executor = {f"executor.{key}" for key in ("price", "serve", "max_failed_frac")}
    roles = ("judge", "executor", "workflow.buffer.embedder")
    keys = {f"{role}.endpoint.{key}" for role in roles for key in endpoint.split()}
    others = "study arm factors runs_dir plan device sandbox shadow tracking store cost sweep"
    others += " trainer.save_steps trainer.keep_steps trainer.vllm.url trainer.vllm.gpu_memory"
    others += " trainer.reference"
    wanted = {*others.split(), *judge, *executor, *keys}
    assert set(marked_keys(Study, RUN_TIME)) == wanted


def test_fields_of_a_judges_identity_have_names_of_their_own() -> None:
    """`judges.ask.identity.judge_id` hashes them under their last name."""
    keys = marked_keys(Judge, JUDGE_ID)
    names = [key.rpartition(".")[2] for key in keys]
    hashed = "revision model dialect max_tokens_field extra_body grading sampling scorer simulated"
    assert sorted(names) == sorted(hashed.split())
    assert not set(keys) & set(marked_keys(Judge, RUN_TIME))


@pytest.mark.parametrize(
    ("preset", "wanted"),
    [
        ("sim-fair", "81a96f6545fabb23"),
        ("sim-verbose", "fda342c459ef1469"),
        ("sim-keyword", "06e0817673c5ab1f"),
        ("smollm2-135m", "0739c7ea86368e50"),
        ("qwen3-8b", "d4b10959d8deb3b9"),
        ("gpt-oss-20b", "e61f7e385ebcc361"),
        ("qwq-plus", "73d66a81d8d2c218"),
    ],
)
def test_ids_of_the_presets_are_those_of_the_first_studies(preset: str, wanted: str) -> None:
    """A stored verdict is found by these: they were taken before there were marks."""
    assert id_of(load_judge(preset)) == wanted
