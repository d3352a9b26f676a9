"""Three marks on the schema's fields, against the lists that they took the place of."""

from dataclasses import dataclass, field

import pytest

from judges.ask.identity import judge_id as id_of
from study.config import bounds
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
from study.config.schema import Judge, Study


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


def test_keys_of_a_mark_are_found_inside_and_a_marked_whole_is_one_key() -> None:
    inside = ("inner.url", "inner.tries", "maybe.url", "maybe.tries")
    assert marked_keys(Outer, RUN_TIME) == (*inside, "whole")
    assert marked_keys(Outer, MLFLOW_PARAM) == ("inner.url", "maybe.url", "whole.url")
    assert Outer() == Outer(inner=Inner("here", 3, "m"))


def test_a_mark_leaves_the_bounds_of_its_field() -> None:
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
    keys = {f"{role}.endpoint.{key}" for role in ("judge", "executor") for key in endpoint.split()}
    others = "study arm factors runs_dir plan device sandbox shadow tracking store cost sweep"
    others += " trainer.save_steps trainer.keep_steps trainer.vllm.url trainer.vllm.gpu_memory"
    others += " trainer.reference"
    wanted = {*others.split(), *judge, *executor, *keys}
    assert set(marked_keys(Study, RUN_TIME)) == wanted


def test_fields_of_a_judges_identity_have_names_of_their_own() -> None:
    """`judges.ask.identity.judge_id` hashes them under their last name."""
    keys = marked_keys(Judge, JUDGE_ID)
    names = [key.rpartition(".")[2] for key in keys]
    assert sorted(names) == sorted(
        "revision model dialect max_tokens_field extra_body grading sampling simulated".split()
    )
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
