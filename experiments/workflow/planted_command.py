"""Expected truth, judge score and tokens of every small program in a study's planted world.

The executor of the study is simulated, so all this is known before anything is trained: what each
judge pays for, which program it likes best, and the truth that is lost with that one. The result
is planted.json in the folder of the study: {version, executor, cells, problems (of each data set),
datasets: {NAME: {domain, share}}, programs: {AST_SHA: {dsl, small, truth: {DATASET: p}, score:
{JUDGE: {DATASET: s}}, tokens: {DATASET: n}}}}. Programs that are not small are those of the study's
own rollouts. Where cells differ in the executor, it is that of the most, which `cells` names.
"""

from __future__ import annotations

from dataclasses import dataclass

from analysis.workflow.programs import FILE, Contents, Expected, Means
from experiments.workflow.planted import write_planted
from study.cli import StudyOptions, command, word, writes
from study.screen import visible


@dataclass(frozen=True)
class Options(StudyOptions):
    """Options of the command ``planted``: the study."""

    what: str = word("compute what programs come to", "planted")


def best(contents: Contents, domain: str, judge: str | None) -> tuple[str, float, float]:
    """The small program that a judge likes best in a domain, or the truth where it is None: its
    text, what it is liked, and its truth; all data sets of the domain count alike."""
    names = [name for name, each in contents["datasets"].items() if each["domain"] == domain]

    def mean(by_dataset: Means) -> float:
        return sum(by_dataset[name] for name in names) / len(names)

    def liked(program: Expected) -> float:
        return mean(program["truth"] if judge is None else program["score"][judge])

    program = max((each for each in contents["programs"].values() if each["small"]), key=liked)
    return program["dsl"], liked(program), mean(program["truth"])


@command("experiments.workflow planted study=workflow-quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 written, 2 for a user's error."""
    with writes("study", options.folder):
        contents = write_planted(options.folder)
    judges = list(next(iter(contents["programs"].values()))["score"])
    print(
        f"{len(contents['programs'])} programs, {len(judges)} judges, the world of"
        f" {len(contents.get('cells', ()))} cells. {options.folder / FILE}"
    )
    for domain in dict.fromkeys(each["domain"] for each in contents["datasets"].values()):
        for judge in (None, *judges):
            text, liked, truth = best(contents, domain, judge)
            who = "truth" if judge is None else judge
            print(visible(f"{domain}: {who} likes {text} best ({liked:.2f}, truth {truth:.2f})"))
    return 0
