# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %%
from analysis.display import markup, page
from analysis.probes import figures, report
from analysis.probes.profile import profile

# %% tags=["parameters"]
folder = ""  # what experiments.probe wrote, e.g. runs/probes/instruct-mini
margin = 0.05  # score units within which a bias counts as none
threshold = 0.5  # the score from which a text is called good

# %%
judged = profile(folder, margin, threshold)
command = judged.evidence.manifest["command"]


def show(*fragments: str) -> None:
    page.show(fragments)


# %%
show(
    markup.front(
        f"Judge profile: {judged.evidence.name}",
        report.extent(judged),
        report.headlines(judged),
        [],
        markup.links({"findings": "All findings", "caveats": "What cannot be concluded"}),
    ),
    markup.heading("Findings", 2, "findings"),
    markup.sentences(report.sentences(judged)),
    markup.heading("What cannot be concluded", 2, "caveats"),
    markup.sentences(report.limits(judged)),
)

# %%
for k, judge in enumerate(command["judges"]):
    effects = judged.effects[judged.effects["judge"] == judge]
    explained = set(judged.explained.loc[judged.explained["judge"] == judge, "variant"])
    show(markup.heading(f"What does {judge} pay for beyond the truth?", 2, f"judge-{k}"))
    if effects["effect"].notna().any():
        show(
            markup.figure(
                figures.forest(effects, judged.margin, explained),
                f"Effect of each edit on {judge} beyond its effect on the truth, with 95 % "
                "intervals over prompts. Hollow: a bias that another behaviour explains, such as "
                "the length of what was added. Grey: the margin of equivalence; none is claimed "
                "by two one-sided tests at 5 %, so its bar may pass the margin a little.",
            )
        )
    show(
        markup.table(
            report.effects_table(judged, judge),
            f"effects-{k}",
            f"What each edit changes in the score of {judge}, the largest effect first.",
            report.EFFECTS_LEAD,
        )
    )

# %%
show(markup.heading("How well does each judge know good from bad?", 2, "levels"))
show(markup.table(report.levels_table(judged), "levels", "Contents as they are."))
show(
    markup.table(
        report.probes_table(judged), "probes", "All probes, edited or without content too."
    )
)
single = judged.scores[~judged.scores["pairwise"]]
if single.loc[single["bias"] == "content", "score"].notna().any():
    show(
        markup.figure(
            figures.scores(single, bool(single["truth"].notna().any())),
            "Scores of contents as they are (right, half right, wrong, and a policy's answer), "
            "and what the rules say of the same texts.",
        )
    )

# %%
show(markup.heading("Do the judges agree with each other?", 2, "agreement"))
show(markup.sentences(report.agreement_sentences(judged)))
if len(judged.agreement):
    show(markup.table(report.agreement_table(judged), "agreement", "Judges beside each other."))

# %%
show(markup.heading("Do judges favour their own texts?", 2, "own"))
if judged.no_preference:
    show(markup.sentences(judged.no_preference))
if len(judged.preference):
    show(markup.table(judged.preference, "own", "Own texts beside those of others."))

# %%
if len(judged.slots):
    show(
        markup.heading("What does each slot of the set earn?", 2, "slots"),
        markup.paragraph(
            "Mean score of a slot's texts, and mean change of the score against the text that each "
            "was made from, with 95 % intervals over prompts. The truth has no part in either."
        ),
        markup.table(report.slots_table(judged), "slots", "Slots of the set."),
    )

# %%
show(
    markup.heading("What do texts without content earn?", 2, "hacks"),
    markup.table(judged.hacks, "hacks", "Texts without content."),
)

# %%
show(
    markup.heading("Do the judges agree with themselves?", 2, "themselves"),
    markup.table(judged.repeats, "repeats", "The same text asked again."),
    markup.table(judged.positions, "positions", "The order of two answers swapped."),
)

# %%
show(
    markup.heading("Which verdicts are missing?", 2, "missing"),
    markup.table(judged.reasons, "missing", "Verdicts by judge and outcome."),
)
if judged.failures["share"].gt(0).any():
    show(
        markup.figure(
            figures.failures(judged.failures),
            "Unscored verdicts by quarter of the length of the judged text, with Wilson intervals.",
        )
    )
else:
    show(markup.paragraph(f"All {len(judged.evidence.verdicts):,} verdicts are scored."))

# %%
show(
    markup.heading("Where the numbers come from", 2, "sources"),
    markup.paragraph(
        f"Set {command['set']}, {len(judged.evidence.manifest['prompts'])} prompts chosen by "
        f"{command['select']}, {judged.evidence.manifest['probes']} texts, seed {command['seed']}. "
        "Judges: "
        + ", ".join(
            f"{name} ({settings['judge_id']})"
            for name, settings in judged.evidence.manifest["judges"].items()
        )
        + ". Records: probes.parquet, verdicts.parquet, manifest.json beside this report."
    ),
)

# %%
show(
    markup.heading("How to read the numbers", 2, "method"),
    markup.paragraph(
        "A bias is what an edit changes in the judge's score beyond what "
        "it changes in the rule truth; where no rule knows the truth, an edit that keeps the "
        "content is taken to keep it. Brackets are 95 % t intervals with standard errors "
        "clustered by prompt, widened where most prompts stand at one value to what prompts that "
        "were not drawn could do; p is then at least that of the sign test over prompts, which "
        "asks whether prompts move one way, so it may be small where the bracket holds 0. Shares "
        "have Wilson intervals on the effective number of texts. Holm p corrects over the "
        "variants of one judge, BH p over judges and variants together. Worst cases set each "
        "missing score to the end of the scale that moves the mean most, down and up. Smallest "
        "is the effect that these prompts would show with a chance of 80 %: a null is worth no "
        "more than that. A judge is said to have no bias only where two one-sided tests put it "
        "within the margin. A verdict that could not be had is missing, never 0."
    ),
)
