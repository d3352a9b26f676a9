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
from IPython.display import HTML, display

from analysis.probes import figures, report
from analysis.probes.profile import profile
from analysis.reports import markup

# %% tags=["parameters"]
folder = ""  # what experiments.probe wrote, e.g. runs/probes/instruct-mini
margin = 0.05  # score units within which a bias counts as none
threshold = 0.5  # the score from which a text is called good

# %%
judged = profile(folder, margin, threshold)
command = judged.evidence.manifest["command"]


def show(*fragments: str) -> None:
    display(HTML("".join(fragments)))


# %%
show(
    f"<h1>Judge profile: {markup.escape(judged.evidence.name)}</h1>",
    "<h2>Findings</h2>",
    markup.sentences(report.sentences(judged)),
    "<h2>What cannot be concluded</h2>",
    markup.sentences(report.limits(judged)),
    markup.paragraph(
        "How to read the numbers: a bias is what an edit changes in the judge's score beyond what "
        "it changes in the rule truth; where no rule knows the truth, an edit that keeps the "
        "content is taken to keep it. Brackets are 95 % t intervals with standard errors "
        "clustered by prompt, widened where most prompts stand at one value to what prompts that "
        "were not drawn could do; p is then at least that of the sign test over prompts, which "
        "asks whether prompts move one way, so it may be small where the bracket holds 0. Shares "
        "have Wilson intervals on the effective number of texts. Holm p corrects over the "
        "variants of one judge, BH p over judges and variants together. Worst cases set each "
        "missing score to the end of the scale that moves the mean most, down and up. `smallest` "
        "is the effect that these prompts would show with a chance of 80 %: a null is worth no "
        "more than that. A judge is said to have no bias only where two one-sided tests put it "
        "within the margin. A verdict that could not be had is missing, never 0."
    ),
)

# %%
for judge in command["judges"]:
    effects = judged.effects[judged.effects["judge"] == judge]
    show(f"<h2>What does {markup.escape(judge)} pay for beyond the truth?</h2>")
    if effects["effect"].notna().any():
        show(
            markup.figure(
                figures.forest(effects, judged.margin),
                f"Effect of each edit on {judge} beyond its effect on the truth, with 95 % "
                "intervals over prompts. Grey: the margin of equivalence; none is claimed by two "
                "one-sided tests at 5 %, so its bar may pass the margin a little.",
            )
        )
    show(markup.table(report.effects_table(judged, judge)))

# %%
show("<h2>How well does each judge know good from bad?</h2>")
show("<h3>Contents as they are</h3>", markup.table(report.levels_table(judged)))
show("<h3>All probes, edited or without content too</h3>")
show(markup.table(report.probes_table(judged)))
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
show("<h2>Do the judges agree with each other?</h2>")
show(markup.sentences(report.agreement_sentences(judged)))
if len(judged.agreement):
    show(markup.table(report.agreement_table(judged)))

# %%
show("<h2>Do judges favour their own texts?</h2>")
if judged.no_preference:
    show(markup.sentences(judged.no_preference))
if len(judged.preference):
    show(markup.table(judged.preference))

# %%
if len(judged.slots):
    show(
        "<h2>What does each slot of the set earn?</h2>",
        markup.paragraph(
            "Mean score of a slot's texts, and mean change of the score against the text that each "
            "was made from, with 95 % intervals over prompts. The truth has no part in either."
        ),
        markup.table(report.slots_table(judged)),
    )

# %%
show("<h2>What do texts without content earn?</h2>", markup.table(judged.hacks))

# %%
show(
    "<h2>Do the judges agree with themselves?</h2>",
    "<h3>Asked again</h3>",
    markup.table(judged.repeats),
    "<h3>With the order of two answers swapped</h3>",
    markup.table(judged.positions),
)

# %%
show("<h2>Which verdicts are missing?</h2>", markup.table(judged.reasons))
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
    "<h2>Where the numbers come from</h2>",
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
