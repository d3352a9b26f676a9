"""The charts with which MLflow opens a study: runs averaged by judge, five charts first.

MLflow keeps the state of a page of charts as JSON in a tag of the experiment, and a link can name
it. What is written here is what its page reads (checked against MLflow 3.17); a field that another
version does not know is left alone by it.
"""

from __future__ import annotations

import json
from typing import Any

VIEWS = ("judge.name", "judge.family")
"""Axes by which every study has a ready chart view; see `store.ui_link`."""
CHARTS = {
    "judge/mean": "Judge score",
    "truth/mean": "Truth (rule score)",
    "bias/judge_minus_truth": "Judge minus truth",
    "policy/length": "Words of an answer",
    "judge/unscored_frac": "Share of verdicts that are missing",
}
"""Metric -> what it is; MLflow's page of charts titles each by its metric all the same. The five
that say whether a judge led its policy astray."""
FIRST = "Judge against truth"
"""Title of the section of the five; a longer one is cut off where the page is narrow."""
FOLDED = ("cost", "judge", "policy", "reward", "time", "trainer", "truth")
"""Sections of further charts, by the first part of a metric's name; they can be unfolded."""


def view(axis: str) -> str:
    """State of MLflow's chart view: the cells without their parent, averaged by ``axis``; sorted by
    anything but the time of creation, the page lists child runs in their own right."""
    by_axis = [{"mode": "tag", "groupByData": axis}]
    sections = [_section(FIRST, True), *(_section(name, False) for name in FOLDED)]
    return json.dumps(
        {
            "groupBy": {"aggregateFunction": "average", "groupByKeys": by_axis},
            "searchFilter": "tags.`judgedrift.role` = 'cell'",
            "orderByKey": f"tags.`{axis}`",
            "orderByAsc": True,
            "runsHiddenMode": "SHOW_ALL",
            "useGroupedValuesInCharts": True,
            "hideEmptyCharts": True,
            "isAccordionReordered": True,
            "compareRunSections": sections,
            "compareRunCharts": [_chart(*each) for each in CHARTS.items()],
        }
    )


def _section(name: str, unfolded: bool) -> dict[str, Any]:
    return {
        "uuid": f"judgedrift-{name}",
        "name": name,
        "display": unfolded,
        "isReordered": False,
        "deleted": False,
        "isGenerated": True,
        "columns": 2,
    }


def _chart(metric: str, title: str) -> dict[str, Any]:
    return {
        "uuid": f"judgedrift-{metric}",
        "type": "LINE",
        "runsCountToCompare": 10,
        "metricSectionId": f"judgedrift-{FIRST}",
        "deleted": False,
        "isGenerated": True,
        "displayName": title,
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }
