"""What isolates untrusted code here, and what it withstands: ``python -m experiments.sandbox``."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from study.cli import command, option
from study.config.bounds import Choice
from study.errors import UserError
from study.sandbox import attacks, tiers
from study.sandbox.attacks import Attack, Ended
from study.sandbox.calls import Outcome
from study.sandbox.tiers import Tier

TIERS = (Tier.BWRAP, Tier.LANDLOCK)


def expected(attack: Attack) -> str:
    """How ``attack`` has to end."""
    refused = "another value" if attack.cheats else "nothing got"
    ends = (refused if end is Outcome.RETURNED else str(end) for end in sorted(attack.ends))
    return " or ".join(ends)


def actual(ended: Ended) -> str:
    """How it ended, with what it got or left."""
    result = ended.result
    end = str(result.outcome)
    if result.outcome is Outcome.RETURNED:
        nothing = result.value in attacks.NOTHING
        end = "nothing got" if nothing else f"returned {str(result.value)[:60]}"
    return "; ".join([end, *ended.traces])


def table(tier: Tier) -> bool:
    """Print every attack with its expected and its actual end; whether all were held off."""
    withstood = True
    width = max(len(attack.name) for attack in attacks.ATTACKS)
    line = f"  {{:<8}}{{:<{width}}}  {{:<38}}{{}}".format
    print(line("", "attack", "expected", "got"))
    for ended in attacks.run(tier):
        withstood &= ended.held
        verdict = "held" if ended.held else "FAILED"
        print(line(verdict, ended.attack.name, expected(ended.attack), actual(ended)))
    return withstood


@dataclass(frozen=True)
class Options:
    """Options of `experiments.sandbox`: which tier has to hold."""

    tier: Tier | None = option(
        "the one tier to test, which must hold; left out, any one is enough",
        legal=Choice(TIERS),
    )


@command("experiments.sandbox tier=bwrap", __doc__, Options)
def main(options: Options) -> int:
    """Print the tiers and the attack table of each that holds; 1 where an attack got through."""
    withstood = True
    for tier in [options.tier] if options.tier else TIERS:
        fault = tiers.try_tier(tier)
        print(f"{tier}: {fault or 'every attempt of the canary was refused'}")
        withstood &= table(tier) if not fault else options.tier is None
    try:
        print(f"used here: {tiers.find()}")
    except UserError as error:
        print(error)
        return 1
    return 0 if withstood else 1


if __name__ == "__main__":
    sys.exit(main())
