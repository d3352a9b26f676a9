"""UniEval's sample-level correlations with human scores, to the six digits published."""

import pandas as pd
import pytest

from analysis.external.ratings import agreement_report, check_ratings
from analysis.external.tables import read_records
from analysis.statistics.agreement import KINDS

PUBLISHED = {
    ("topical_chat", "naturalness"): (0.443666, 0.513986, 0.373973),
    ("topical_chat", "coherence"): (0.595143, 0.612942, 0.465915),
    ("topical_chat", "engagingness"): (0.556510, 0.604739, 0.455941),
    ("topical_chat", "groundedness"): (0.536209, 0.574954, 0.451533),
    ("topical_chat", "understandability"): (0.380038, 0.467807, 0.360741),
    ("topical_chat", "overall"): (0.632796, 0.662583, 0.487272),
    ("qags_xsum", "consistency"): (0.461376, 0.487920, 0.399218),
    ("qags_cnndm", "consistency"): (0.681681, 0.662255, 0.531636),
    ("sfres", "overall"): (0.370815, 0.291593, 0.214708),
    ("sfhot", "overall"): (0.406425, 0.320721, 0.236024),
}


@pytest.mark.parametrize(("name", "dimension"), PUBLISHED)
def test_correlations_with_human_scores_to_six_digits(published, name, dimension):
    records = read_records(published("unieval_human_corr", f"{name}.jsonl"))
    rows = [
        {"item": place, "rater": role, "role": role, "score": record[role][dimension]}
        for place, record in enumerate(records)
        for role in ("human", "judge")
    ]
    one = agreement_report(check_ratings(pd.DataFrame(rows)))["judges"]["judge"]
    assert one["n"] == len(records)
    for kind, value in zip(KINDS, PUBLISHED[name, dimension], strict=True):
        found = one["overall"][kind]
        assert round(found["value"], 6) == value
        assert found["low"] < value < found["high"]
