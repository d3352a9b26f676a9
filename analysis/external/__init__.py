"""Tables of verdicts that others made."""
