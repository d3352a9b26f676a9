"""What may stand around the words of a verdict: for those who find verdicts in replies, and for
those who take them out of what a judge is shown. Both take the same for blank; else a judge that
quotes an answer says a verdict.
"""

BLANKS = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""All blanks of Unicode, ends of lines among them; ``\\s`` of a pattern."""
MARKS = "\"'`*.,;:!"
"""Quotation marks, emphasis and punctuation around a word, which are no part of it."""
SPACE = r"[^\S\n]"
"""Pattern of a blank that ends no line."""
HEADING = "criterion"
"""May stand right before the number of a criterion on a line, in any case."""


def bare(value: str) -> str:
    """A word without the blanks and marks around it."""
    return value.strip(BLANKS + MARKS)
