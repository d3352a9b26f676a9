"""Single answers of a study: which are shown, the page that shows them, and files for others."""

MOST, MOST_MB = 5000, 10.0
"""Answers that a page holds at most, and its megabytes."""
