"""The one error a user can fix: it is printed as a paragraph, without a traceback, and exits 2."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right.

    The message is one paragraph: what was given, what is legal, what to type.
    """
