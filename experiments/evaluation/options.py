"""The options of an evaluation's command line, and who is to answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.evaluation import generate
from study.errors import UserError
from study.secrets import refuse_arguments

SOURCES = ("responses", "run", "model", "adapter", "endpoint")
SHARED = ("out", "allow_missing", "seed", "track")
GENERATION = (
    *("responses_out", "limit", "temperature", "top_p", "max_tokens", "thinking"),
    *("checkpoint", "batch", "dtype", "chat_template", "api_key_env", "concurrency", "timeout_s"),
)
LOCAL, REMOTE = ("batch", "dtype", "chat_template"), ("api_key_env", "concurrency", "timeout_s")


class Options:
    """``key=value`` arguments, read as the type that each is asked for."""

    def __init__(self, arguments: Sequence[str], legal: Sequence[str]) -> None:
        refuse_arguments(arguments)
        self.given: dict[str, str] = {}
        for argument in arguments:
            key, equals, value = argument.partition("=")
            if not equals or key not in legal:
                raise UserError(f"{argument} is no option. Legal are {'=, '.join(legal)}=.")
            if key in self.given:
                raise UserError(f"{key} is given twice. Give it once.")
            self.given[key] = value

    def replaced(self, key: str, value: str) -> Options:
        """The same options with another value of one."""
        made = Options((), ())
        made.given = self.given | {key: value}
        return made

    def text(self, key: str) -> str | None:
        return self.given.get(key) or None

    def flag(self, key: str) -> bool | None:
        value = self.text(key)
        if value is None:
            return None
        if value.lower() not in ("true", "false"):
            raise UserError(f"{key}={value} is neither true nor false.")
        return value.lower() == "true"

    def whole(self, key: str, default: int, least: int = 1) -> int:
        value = self.text(key) or str(default)
        if not value.isdecimal() or int(value) < least:
            raise UserError(f"{key}={value} is no whole number from {least} up.")
        return int(value)

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self.text(key) or str(default)
        try:
            found = float(value)
        except ValueError:
            found = float("nan")
        if not low <= found <= high:
            raise UserError(f"{key}={value} is no number from {low:g} to {high:g}.")
        return found


def source(options: Options, turns: generate.Turns = generate.lone) -> generate.Source | None:
    """Who is to answer, or None for a file of responses."""
    named = {key for key in SOURCES if options.text(key)}
    legal = ({"responses"}, {"run"}, {"model"}, {"adapter"}, {"model", "adapter"})
    if named not in (*legal, {"endpoint", "model"}):
        raise UserError(
            f"Answers come from one place, and {', '.join(sorted(named)) or 'none'} is given. Type"
            " responses=FILE, run=CELL_FOLDER, model=FOLDER, adapter=FOLDER, both of them, or"
            " endpoint=URL model=NAME."
        )
    refused: tuple[str, ...] = ()
    if "responses" in named:
        refused = GENERATION
    elif "endpoint" in named:
        refused = (*LOCAL, "checkpoint")
    else:
        refused = REMOTE if "run" in named else (*REMOTE, "checkpoint")
    if wrong := [key for key in refused if options.text(key)]:
        raise UserError(f"{wrong[0]} has no meaning with {' and '.join(sorted(named))}.")
    if "responses" in named:
        return None
    decoding = generate.Decoding(
        temperature=options.number("temperature", 0.0, 0.0, 5.0),
        top_p=options.number("top_p", 1.0, 1e-6, 1.0),
        max_tokens=options.whole("max_tokens", generate.Decoding.max_tokens),
        seed=options.whole("seed", 0, least=0),
        thinking=options.flag("thinking"),
    )
    model, adapter = options.text("model"), options.text("adapter")
    if url := options.text("endpoint"):
        return generate.from_endpoint(
            url,
            str(model),
            decoding,
            options.whole("concurrency", 16),
            options.number("timeout_s", 600.0, 1.0, 86_400.0),
            options.text("api_key_env"),
            turns,
        )
    local = generate.Local(
        options.whole("batch", 8), options.text("dtype"), _template(options.text("chat_template"))
    )
    if run := options.text("run"):
        step = options.whole("checkpoint", 0, least=0) if options.text("checkpoint") else None
        return generate.from_run(Path(run), step, decoding, local, turns)
    return generate.from_folder(model, Path(adapter) if adapter else None, decoding, local, turns)


def _template(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"chat_template={file} cannot be read: {error}.") from error
