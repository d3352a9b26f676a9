"""Options of the bias set, whose help loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from judges.probes.biasset import POLICY, VARIANTS
from study.cell.folder import CellFolder
from study.cli import option
from study.config.bounds import Choice, Number
from study.config.presets import preset_names
from study.errors import UserError

ONLY = ("biasset",)
BUILT, FILLS, RULED = 250, (POLICY, "variants"), "rules"
GENERATION = (
    *("run", "model", "adapter", "endpoint", "checkpoint", "temperature", "top_p", "top_k"),
    *("max_tokens", "thinking", "batch", "api_key_env"),
)
"""Options that say who answers, and how, as experiments.evaluate has them."""


@dataclass(frozen=True)
class BiasSetOptions:
    """Options of ``experiments.data biasset``, beside ``seed``, ``path`` and ``out``."""

    n: int = option("prompts of each source", BUILT, Number(low=1), only=ONLY)
    fill: str = option("slots to fill", "", Choice(FILLS), only=ONLY)
    slots: list[str] = option("variants to write; left out, all", [], Choice(VARIANTS), only=ONLY)
    rewriter: str = option("judge preset that writes variants, or rules", "", only=ONLY)
    overwrite: bool = option("replace texts of another author", False, only=ONLY)
    run: CellFolder | None = option("folder of the run whose policy answers", only=ONLY)
    model: str | None = option("model folder that answers, or its name at the endpoint", only=ONLY)
    adapter: Path | None = option("folder of an adapter that answers", only=ONLY)
    endpoint: str | None = option("URL of an endpoint that answers", only=ONLY)
    checkpoint: int | None = option("step of the run's checkpoint", legal=Number(low=0), only=ONLY)
    temperature: float = option("of the answers", 0.7, Number(low=0, high=5), only=ONLY)
    top_p: float = option("of the answers", 0.8, Number(low=1e-6, high=1), only=ONLY)
    top_k: int = option("of the answers; 0 takes all tokens", 20, Number(low=0), only=ONLY)
    max_tokens: int = option("longest answer, in tokens", 1024, Number(low=1), only=ONLY)
    thinking: bool | None = option("switch the policy's thinking on or off", only=ONLY)
    batch: int = option("prompts answered at once", 8, Number(low=1), only=ONLY)
    api_key_env: str | None = option("variable that holds the endpoint's key", only=ONLY)
    runs_dir: Path = option("folder of the verdict store", Path("runs"), only=ONLY)
    given: frozenset[str] = frozenset()
    """Options that were typed."""

    def check_bias_set(self, path: Path | None, out: Path | None) -> None:
        """Refuse options that do not go together. Raises UserError: an option without a meaning for
        what is filled, or nothing that says who fills it."""
        if out is None:
            raise UserError("experiments.data biasset needs out= (JSONL file of the bias set).")
        if out.suffix != ".jsonl":
            raise UserError(f"out={out} must end in .jsonl, which probes read.")
        belongs = {POLICY: GENERATION, "variants": ("slots", "rewriter", "runs_dir")}
        for kind, names in belongs.items():
            if kind != self.fill and (typed := sorted(self.given & {*names})):
                raise UserError(
                    f"{typed[0]}= has no meaning without fill={kind}. Leave it out, or type"
                    f" fill={kind}."
                )
        if not self.fill and path is not None:
            raise UserError("path= is the bias set to fill, and needs fill=. Type fill=variants")
        if self.fill == "variants" and self.rewriter not in (RULED, *preset_names("judge")):
            raise UserError(
                f"rewriter={self.rewriter} writes no variants. Type rewriter=rules, or one of the"
                f" judges {', '.join(preset_names('judge'))}."
            )
        if self.fill == POLICY and not self.given & {"run", "model", "adapter", "endpoint"}:
            raise UserError(
                f"fill={POLICY} needs a policy that answers: run=CELL_FOLDER, model=FOLDER,"
                " adapter=FOLDER, or endpoint=URL model=NAME."
            )
